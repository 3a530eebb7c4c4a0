"""Dtype policies: which precision a layer, or a machine, should use."""

from tf_mixprec.policies import rules
from tf_mixprec.policies.policy import Policy
from tf_mixprec.policies.precision_rules import PrecisionRules
from tf_mixprec.policies.recommendation import Recommendation
from tf_mixprec.policies.recommendation import recommended_policy
from tf_mixprec.policies.scope import policy_scope

__all__ = [
    "Policy",
    "PrecisionRules",
    "Recommendation",
    "policy_scope",
    "recommended_policy",
    "rules",
]
