"""The loss scale as a small state machine: pure, with no variables.

A gradient that is too small for 16 bits becomes zero. So the loss is multiplied
by a `loss_scale` before the backward pass, and the gradients are divided by it
before they are used. The scale follows a rule:

```text
if a gradient was inf or nan:  the step is skipped, and the scale is multiplied
                               by `backoff_factor`
after `growth_interval` good steps:  the scale is multiplied by `growth_factor`
```

Three parts, one file each: a *rule* (`DynamicLossScale`, `StaticLossScale`)
says how the scale moves, a *state* (`LossScaleState`) says where it stands, and
`next_state(state, found_inf, rule)` makes one step. `presets` holds the rules
of other frameworks.
"""

from tf_mixprec.loss_scale.rule import DynamicLossScale
from tf_mixprec.loss_scale.rule import LossScaleRule
from tf_mixprec.loss_scale.rule import StaticLossScale
from tf_mixprec.loss_scale.state import LossScaleState
from tf_mixprec.loss_scale.update import next_state

__all__ = [
    "DynamicLossScale",
    "LossScaleRule",
    "LossScaleState",
    "StaticLossScale",
    "next_state",
]
