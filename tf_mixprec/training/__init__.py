"""Training of models in mixed precision.

`compile(model, ...)` is `model.compile` for 16 bits. Its parts, one file each:
`sixteen_bits` finds the layers, `optimizer_choice` wraps the optimizers,
`float32_ends` and `penalties` widen what losses and metrics get, `recompiling`
does it again for a loaded or cloned model, `report` says what was done.
`export_float32` makes a float32 model from masters.

`TrainStep` makes the step itself, and `fit` epochs of it: `replicas` hands out
batches, `step_function` is what is traced, `micro_batches` and `gradient_sums`
accumulate, `keras_losses` and `loss_hook` have the loss and `backward` scales
it, `snapshot` takes a skipped step back, `keras_loop` is what `fit` calls,
`misuse` has the checks.

`Checkpoint` saves a run: `checkpoint_state` says what is saved,
`checkpoint_file` reads and writes it, `checkpoint_fit` fits it to other knobs.
"""

from tf_mixprec.training.checkpoint import Checkpoint
from tf_mixprec.training.compile import compile
from tf_mixprec.training.export_float32 import export_float32
from tf_mixprec.training.fit import fit
from tf_mixprec.training.report import CompileReport
from tf_mixprec.training.train_step import TrainStep

__all__ = [
    "Checkpoint",
    "CompileReport",
    "TrainStep",
    "compile",
    "export_float32",
    "fit",
]
