"""Prefill in one place and decode in another: the site of a prefill, and the state of links."""

from policies.disaggregation.decode_selection import DecodeSelector, decode_policy
from policies.disaggregation.encoders import choose_encoder
from policies.disaggregation.link_watch import LOOK_S as LINK_LOOK_S
from policies.disaggregation.link_watch import LinkWatch, Patience
from policies.disaggregation.offload import Offload, OffloadReason, OffloadRules, OffloadVerdict
from policies.disaggregation.offloading import Offloading, PastVerdict
from policies.disaggregation.optimum import (
    Curve,
    Optimum,
    RemoteSite,
    Split,
    Stages,
    Throughput,
    ThroughputModel,
    UncachedLengths,
    WorkerClass,
)
from policies.disaggregation.pair_decision import PairDecider, PairDecision, ScoredPair
from policies.disaggregation.role_demand import role_demand
from policies.disaggregation.role_plan import (
    NEVER_TOKENS,
    SWITCHED_OFF,
    TURNING_LABEL,
    RoleDemand,
    RoleMember,
    RoleRules,
    RoleVerdict,
    plan_roles,
)
from policies.disaggregation.role_turns import RoleStep, role_taken, turn_roles

__all__ = [
    "LINK_LOOK_S",
    "NEVER_TOKENS",
    "SWITCHED_OFF",
    "TURNING_LABEL",
    "Curve",
    "DecodeSelector",
    "LinkWatch",
    "Offload",
    "OffloadReason",
    "OffloadRules",
    "OffloadVerdict",
    "Offloading",
    "Optimum",
    "PairDecider",
    "PairDecision",
    "PastVerdict",
    "Patience",
    "RemoteSite",
    "RoleDemand",
    "RoleMember",
    "RoleRules",
    "RoleStep",
    "RoleVerdict",
    "ScoredPair",
    "Split",
    "Stages",
    "Throughput",
    "ThroughputModel",
    "UncachedLengths",
    "WorkerClass",
    "choose_encoder",
    "decode_policy",
    "plan_roles",
    "role_demand",
    "role_taken",
    "turn_roles",
]
