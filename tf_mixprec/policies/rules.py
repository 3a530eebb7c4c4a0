"""Sets of rules: what is safe, and the levels of apex."""

from tf_mixprec.policies.kinds import KINDS
from tf_mixprec.policies.precision_rules import FLOAT32
from tf_mixprec.policies.precision_rules import FLOAT32_INSIDE
from tf_mixprec.policies.precision_rules import PrecisionRules
from tf_mixprec.policies.precision_rules import Rule

__all__ = ["KINDS", "O0", "O1", "O2", "O3", "Rule", "SAFE"]

SAFE = PrecisionRules(
    [
        Rule(
            policy=FLOAT32,
            kind="output",
            reason="losses and metrics need the digits",
        ),
        Rule(
            policy=FLOAT32,
            kind="regularized",
            reason="sums of squares overflow",
        ),
        Rule(
            policy=FLOAT32,
            kind="add_loss",
            reason="losses are added in float32",
        ),
        Rule(
            policy=FLOAT32_INSIDE,
            kind="preprocessing",
            reason="raw data exceed 65504",
        ),
        Rule(
            policy=FLOAT32_INSIDE,
            kind="softmax",
            reason="exponentials overflow or vanish",
        ),
        Rule(
            policy=FLOAT32_INSIDE,
            kind="normalization",
            reason="squares and small differences",
        ),
        Rule(
            policy=FLOAT32_INSIDE,
            kind="average",
            reason="sums over many elements",
        ),
        Rule(
            policy=FLOAT32_INSIDE,
            kind="attention",
            reason="logits overflow, masks must be exact",
        ),
        Rule(
            policy=FLOAT32_INSIDE,
            kind="embedding",
            reason="ids above 2048 would be rounded",
        ),
        Rule(
            policy=FLOAT32_INSIDE,
            kind="resize",
            reason="TensorFlow resizes in float32",
        ),
        Rule(
            policy=FLOAT32_INSIDE,
            kind="dot",
            reason="sums over many elements",
        ),
        Rule(
            policy=FLOAT32_INSIDE,
            layer_class="Masking",
            reason="numbers near the mask value would be masked",
        ),
        Rule(
            policy=FLOAT32_INSIDE,
            layer_class="MaxPooling3D",
            reason="TensorFlow has no float16 kernel for CPUs",
        ),
        Rule(
            policy=FLOAT32_INSIDE,
            layer_class="AdaptiveMaxPooling3D",
            reason="TensorFlow has no float16 kernel for CPUs",
        ),
    ]
)
"""What 16 bits hurt computes in float32; matrix products do not."""

O0 = PrecisionRules([], policy="float32")
"""apex's O0: float32."""

O1 = SAFE.with_policy("mixed_float16")
"""apex's O1: float32 variables, 16 bits where they are safe."""

O2 = PrecisionRules(
    [
        Rule(
            policy=FLOAT32_INSIDE,
            layer_class="BatchNormalization",
            reason="keep_batchnorm_fp32",
        ),
        Rule(
            policy="params=float16,compute=float16,output=float32",
            kind="output",
            reason="outputs are cast",
        ),
    ],
    policy="float16",
)
"""apex's O2: 16-bit variables, batch normalization in float32."""

O3 = PrecisionRules([], policy="float16")
"""apex's O3: float16 throughout."""

# A user who takes some of these need not have a layer for each.
ALL = (*SAFE.rules, *O2.rules)
