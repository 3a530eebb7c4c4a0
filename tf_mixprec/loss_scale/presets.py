"""The loss-scale rules of other frameworks, with their own defaults.

Each preset moves the scale as the named framework does, step for step. Where a
framework has no floor or no ceiling, the preset has 2**-126 or 2**126, the last
powers of two that float32 holds together with their reciprocals; where it stops
the run at its floor, the preset holds the floor and counts the skipped steps
(stopping is a callback's job).

Use one by name, `mp.wrap(optimizer, preset="megatron")`, and override what you
want: `mp.wrap(optimizer, preset="megatron", initial_scale=2.0**16)`.

Attributes:
    apex: NVIDIA apex `amp.scaler.LossScaler` (opt levels O1 and O2).
    deepspeed: DeepSpeed ZeRO `DynamicLossScaler`, default `fp16` settings.
    deepspeed_consecutive: The same with `consecutive_hysteresis: true`.
    fairseq: fairseq `DynamicLossScaler`; its growth interval depends on the
        number of workers, this is the one of a single worker.
    flax: `flax.training.dynamic_scale.DynamicScale`.
    jmp: `jmp.DynamicLossScale(2**15)`; jmp itself has no default start.
    keras: Keras 3 `LossScaleOptimizer`.
    megatron: Megatron-LM `DynamicGradScaler` with its command-line defaults.
    paddle: PaddlePaddle `paddle.amp.GradScaler`.
    tf_keras: `tf.keras.mixed_precision.LossScaleOptimizer` (Keras 2).
    torch: `torch.amp.GradScaler`.
"""

from tf_mixprec.loss_scale.rule import DynamicLossScale

_NO_FLOOR = 2.0**-126
_NO_CEILING = 2.0**126

apex = DynamicLossScale(
    initial_scale=2.0**16, min_scale=_NO_FLOOR, max_scale=2.0**24
)

deepspeed = DynamicLossScale(
    initial_scale=2.0**16,
    growth_interval=1000,
    # `(cur_iter - last_overflow_iter) - 1` must be a multiple of the window:
    # the first good step does not count.
    growth_delay=1,
    min_scale=1.0,
    max_scale=_NO_CEILING,
    hysteresis=2,
    hysteresis_refill="growth",
)

deepspeed_consecutive = DynamicLossScale(
    **{**deepspeed.get_config(), "hysteresis_refill": "good_step"}
)

fairseq = DynamicLossScale(
    initial_scale=2.0**7,
    growth_interval=2**14,
    # The last power of two above `min_loss_scale=1e-4`: fairseq goes back to
    # it and stops the run.
    min_scale=2.0**-13,
    max_scale=_NO_CEILING,
    tolerance=0.0,
)

flax = DynamicLossScale(
    initial_scale=2.0**16,
    # `fin_steps == growth_interval` is asked before `fin_steps` counts the
    # step, and the growing step itself is not counted: 2001 steps.
    growth_interval=2001,
    min_scale=_NO_FLOOR,
    max_scale=_NO_CEILING,
)

jmp = DynamicLossScale(min_scale=1.0, max_scale=_NO_CEILING)

keras = DynamicLossScale(min_scale=_NO_FLOOR, max_scale=_NO_CEILING)

megatron = DynamicLossScale(
    initial_scale=2.0**32,
    growth_interval=1000,
    min_scale=1.0,
    max_scale=_NO_CEILING,
    hysteresis=2,
    hysteresis_refill="growth",
)

paddle = DynamicLossScale(
    initial_scale=2.0**16,
    min_scale=_NO_FLOOR,
    max_scale=_NO_CEILING,
    # `decr_every_n_nan_or_inf`: the count starts anew after each backoff.
    hysteresis=1,
    hysteresis_refill="backoff",
)

tf_keras = DynamicLossScale(min_scale=1.0, max_scale=_NO_CEILING)

torch = DynamicLossScale(
    initial_scale=2.0**16, min_scale=_NO_FLOOR, max_scale=_NO_CEILING
)

__all__ = [
    "apex",
    "deepspeed",
    "deepspeed_consecutive",
    "fairseq",
    "flax",
    "jmp",
    "keras",
    "megatron",
    "paddle",
    "tf_keras",
    "torch",
]
