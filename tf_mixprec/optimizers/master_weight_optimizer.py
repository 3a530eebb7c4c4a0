"""The optimizer wrapper that keeps float32 masters of 16-bit variables."""

import contextlib
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tf_mixprec._typing import Gradient
from tf_mixprec._typing import Tensor
from tf_mixprec._typing import Variable
from tf_mixprec.numerics import rounding as rounding_rules
from tf_mixprec.numerics.casting import dtype_name
from tf_mixprec.numerics.casting import in_16_bits
from tf_mixprec.optimizers import arguments
from tf_mixprec.optimizers import distribution
from tf_mixprec.optimizers import gradients as gradient_lists
from tf_mixprec.optimizers import keras_internals
from tf_mixprec.optimizers import master_checks
from tf_mixprec.optimizers import master_views
from tf_mixprec.optimizers import masters
from tf_mixprec.optimizers import random_bits
from tf_mixprec.optimizers.delegation import TransparentWrapper
from tf_mixprec.optimizers.master_regularizer import MasterRegularizer
from tf_mixprec.optimizers.tracing import as_written


@keras.saving.register_keras_serializable(package="tf_mixprec")
class MasterWeightOptimizer(TransparentWrapper):
    """Lets an optimizer update float32 masters of 16-bit variables.

    ```text
    apply:  gradients in float32
            the inner optimizer's step, slots and all, on the masters
            16-bit variable = rounded master
    ```

    An update that is smaller than half an ulp of a 16-bit weight is lost on it,
    but not on the master. Float32 variables are the inner optimizer's alone.
    `mp.wrap` puts this under the loss scale when a variable has 16 bits, and
    then it works on several replicas; by itself it is for one device.

    A master never goes stale: where the weight is not the rounded master any
    more, because it was loaded or assigned to, the next step starts from the
    weight. With `storage="remainder"` the weight is the upper half of the
    master, so the master is at most half an ulp from what was assigned; `sync`
    clears the lower half.

    It is transparent: `learning_rate`, `iterations`, `clipnorm` and whatever
    else the inner optimizer has are read and set through it. Clipping, weight
    decay, constraints and moving averages act on the masters.

    Args:
        inner_optimizer: The `keras.optimizers.Optimizer` that makes the update.
        storage: `"float32"`: the masters are variables, 4 bytes an element.
            `"remainder"`, for bfloat16: the 16 bits that a weight lacks, 2
            bytes an element, with the same bits. `None`, for bfloat16 and
            `rounding="stochastic"`: no masters. Defaults to `"float32"`.
        rounding: `"nearest"`, half way away from zero in bfloat16, to even in
            float16; or `"stochastic"`, for bfloat16: to either neighbour, with
            the value as the mean. Defaults to `"nearest"`.
        seed: Int: of stochastic rounding. The bits follow from it and from
            `iterations`, so that a resumed run is the same run. Defaults to 0.
        name: String. Defaults to a unique name.

    Attributes:
        saturated_weights: Scalar int variable: how many elements of float16
            weights were beyond 65504, and stored as that, in all updates.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If storage and rounding do not go together, or with a
            variable in the step.

    Example:

    >>> import keras
    >>> import tf_mixprec as mp
    >>> optimizer = mp.MasterWeightOptimizer(keras.optimizers.SGD(1.0))
    >>> weight = keras.Variable(1.0, dtype="bfloat16")
    >>> for _ in range(4):  # 1 - 2**-10 is 1 in bfloat16
    ...     optimizer.apply([2.0**-10], [weight])
    >>> float(weight)
    0.99609375

    Reference:
        - [Micikevicius et al., 2018](https://arxiv.org/abs/1710.03740),
          section 3.1
    """

    def __init__(
        self,
        inner_optimizer: keras.optimizers.Optimizer,
        storage: str | None = "float32",
        rounding: str = "nearest",
        *,
        seed: int = 0,
        name: str | None = None,
    ):
        master_checks.check_backend()
        arguments.check_inner_optimizer(inner_optimizer)
        if isinstance(inner_optimizer, MasterWeightOptimizer):
            master_checks.refuse_second_masters(inner_optimizer)
        master_checks.check_choices(storage, rounding)
        master_checks.check_seed(seed)
        super().__init__(inner_optimizer, name)
        del self.loss_scale_factor  # which is the inner optimizer's
        self.storage = storage
        self.rounding = rounding
        self.seed = seed
        self._masters: dict[Any, masters.Master] = {}
        self.saturated_weights = self.add_variable(
            shape=(),
            dtype="int",
            aggregation="only_first_replica",
            name="saturated_weights",
        )

    def build(self, variables: Sequence[Variable]) -> None:
        """Makes masters, and the inner optimizer's variables in float32."""
        if self.built:
            return
        variables = list(variables)
        narrow = in_16_bits(variables)
        master_checks.check_variables(narrow, self.storage, self.rounding)
        with keras_internals.seen_as("float32", narrow):
            self.inner_optimizer.build(variables)
        with distribution.outside_of_traces():
            made = [
                masters.make(v, self.storage, self.rounding) for v in narrow
            ]
        self._masters = {
            keras_internals.key_of(self, master.weight): master
            for master in made
        }
        self._master_variables = [
            m.variable for m in made if m.variable is not None
        ]
        self.built = True

    @as_written
    def apply(
        self,
        grads: Sequence[Gradient],
        trainable_variables: Sequence[Variable] | None = None,
    ) -> None:
        """Makes a step on the masters.

        Args:
            grads: Gradients of the loss: dense tensors, `tf.IndexedSlices` or
                `None`, in any float dtype.
            trainable_variables: The variables they belong to. Defaults to
                those that the optimizer was built with.

        Raises:
            ValueError: If gradients and variables do not match, every gradient
                is `None`, or under a strategy of several replicas.
        """
        master_checks.check_is_alone()
        grads = [g if g is None else gradient_lists.widened(g) for g in grads]
        if not grads:
            return
        variables = self._known_variables(grads, trainable_variables)
        with self._masters_seen():
            grads = self._regularized(grads, variables)
            self.inner_optimizer.apply(grads, variables)

    def finalize_variable_values(self, var_list: Sequence[Variable]) -> None:
        """Replaces the weights, and their masters, by the moving averages."""
        if not self._masters:
            self.inner_optimizer.finalize_variable_values(var_list)
            return
        averages = keras_internals.moving_averages(self.inner_optimizer)
        for variable in var_list:
            key = keras_internals.key_of(self, variable)
            if key not in averages:
                continue
            average = ops.convert_to_tensor(averages[key])
            if key in self._masters:
                self._masters[key].write(average)
            else:
                variable.assign(average)

    def sync(self) -> None:
        """Makes every master what its weight is, low bits cleared."""
        for master in self._masters.values():
            master.sync()

    def master_weights(self, model: keras.Model) -> dict[str, Tensor]:
        """Returns the float32 values of a model's trainable variables.

        Args:
            model: The model that the optimizer was built for.

        Returns:
            By `path` of the variable: its master; its own value in float32 if
            it has none.
        """
        return {
            variable.path: self.master_of(variable)
            for variable in model.trainable_variables
        }

    def master_of(self, variable: Variable) -> Tensor:
        """Returns the float32 value of one variable."""
        master = self._masters.get(keras_internals.key_of(self, variable))
        if master is not None:
            return master.read()
        return ops.cast(variable, "float32")

    @property
    def variables(self) -> list[Variable]:
        """The counter and the masters, then the inner optimizer's variables."""
        return [
            self.saturated_weights,
            *(self._master_variables if self.built else []),
            *self.inner_optimizer.variables,
        ]

    @property
    def _trainable_variables(self) -> list[Any]:
        """What `keras.callbacks.SwapEMAWeights` swaps with moving averages.

        These are float32, and so are 16-bit variables here: their masters.
        """
        inner = vars(self).get("inner_optimizer")
        if inner is None:  # Keras looks while it makes this object
            raise AttributeError("_trainable_variables")
        views = dict(zip(self._masters, self._views(holds=False), strict=True))
        return [
            views.get(keras_internals.key_of(self, variable), variable)
            for variable in keras_internals.trainable_variables(inner)
        ]

    @_trainable_variables.setter
    def _trainable_variables(self, value: Any) -> None:
        """Keeps none of its own."""

    @_trainable_variables.deleter
    def _trainable_variables(self) -> None:
        """Has none of its own."""

    def _views(self, *, holds: bool) -> list[master_views.MasterView]:
        """Returns what stands for each 16-bit variable."""
        if not self._masters:
            return []
        turns = master_views.Turns(self.inner_optimizer._iterations)
        return [
            master.view(
                key, masters.Step(self._rounds(index, master), turns, holds)
            )
            for index, (key, master) in enumerate(self._masters.items())
        ]

    @contextlib.contextmanager
    def _masters_seen(self) -> Iterator[None]:
        """Lets 16-bit variables hold views of their masters."""
        branches = keras_internals.has_branches(self.inner_optimizer)
        views = self._views(holds=not branches)
        weights = [master.weight for master in self._masters.values()]
        with keras_internals.holding(
            dict(zip(map(id, weights), views, strict=True)), weights
        ):
            yield
        for view in views:
            view.publish()

    def _regularized(
        self, gradients: Sequence[Gradient], variables: Sequence[Variable]
    ) -> list[Gradient]:
        """Returns gradients with those of penalties on masters."""
        return [
            gradient_lists.plus_gradient_of(
                variable.regularizer.regularizer,
                variable,
                gradient,
            )
            if gradient is not None
            and isinstance(
                getattr(variable, "regularizer", None), MasterRegularizer
            )
            else gradient
            for gradient, variable in zip(gradients, variables, strict=True)
        ]

    def _rounds(
        self, index: int, master: masters.Master
    ) -> Callable[[Tensor], Tensor]:
        """Returns what rounds the values of a weight."""
        if self.rounding == "stochastic":
            stream = random_bits.Stream(
                self.seed, index, self.inner_optimizer._iterations
            )
            return lambda x: rounding_rules.stochastically_rounded(
                x, stream.next(ops.shape(x))
            )
        dtype = dtype_name(master.weight)

        def rounds(x: Tensor) -> Tensor:
            if dtype == "float16":
                self._count_saturated(x)
            return rounding_rules.rounded(x, dtype)

        return rounds

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor, in JSON types."""
        return {
            "name": self.name,
            "inner_optimizer": keras.saving.serialize_keras_object(
                self.inner_optimizer
            ),
            "storage": self.storage,
            "rounding": self.rounding,
            "seed": self.seed,
        }

    @classmethod
    def from_config(
        cls,
        config: dict[str, Any],
        custom_objects: dict[str, Any] | None = None,
    ) -> "MasterWeightOptimizer":
        """Returns the optimizer that a config describes."""
        config = dict(config)
        inner_optimizer = arguments.deserialize_optimizer(
            config.pop("inner_optimizer"), custom_objects
        )
        return cls(inner_optimizer, **config)

    def save_own_variables(self, store: Any) -> None:
        """Saves the float32 masters: Keras saves `inner_optimizer` itself."""
        store["saturated_weights"] = ops.convert_to_numpy(
            self.saturated_weights
        )
        for index, master in enumerate(self._masters.values()):
            if master.variable is not None:
                value = ops.convert_to_numpy(master.read())
                store[f"master_{index}"] = value

    def load_own_variables(self, store: Any) -> None:
        """Loads the masters, from whatever storage they were saved.

        Without masters in the file, they follow the weights.
        """
        if "saturated_weights" in store:
            self.saturated_weights.assign(store["saturated_weights"])
        for index, master in enumerate(self._masters.values()):
            if f"master_{index}" in store:
                master.load(store[f"master_{index}"])

    def _count_saturated(self, x: Tensor) -> None:
        beyond = ops.abs(x) > rounding_rules.LARGEST_FLOAT16
        self.saturated_weights.assign_add(ops.sum(ops.cast(beyond, "int32")))
