"""What to do: pure decisions over frozen views, and the fold that makes the fleet's state."""

from policies.breaker import Breaker, BreakerRules, probe_from_us
from policies.bucket_members import BucketMembers
from policies.buckets import ANY_BUCKET, BUCKET_LABEL, LengthBuckets
from policies.cache_pools import CachePool
from policies.costs import PROFILES, ServiceFit, ServiceModel
from policies.fleet import FleetRules, FleetState, Worker
from policies.ops import (
    BucketPlan,
    BytesPerToken,
    Circuit,
    CircuitSet,
    Finished,
    FirstToken,
    Fitted,
    Left,
    Op,
    Placed,
    Started,
    WorkerGone,
    WorkerPut,
    decode_ops,
    encode_op,
    encode_ops,
)
from policies.placement import Reason, place
from policies.redispatch import GiveUp, Redispatch, RedispatchRules, RetryBudget, redispatch
from policies.rendezvous import turn_of
from policies.scoring import POLICIES, Policy, make_policy
from policies.slow_start import admitted, shares
from policies.views import Candidates, Chosen, RequestView, Shed
from radix import FULL_ATTENTION, AttentionProfile, Forget, Insert, Trim

__all__ = [
    "ANY_BUCKET",
    "BUCKET_LABEL",
    "FULL_ATTENTION",
    "POLICIES",
    "PROFILES",
    "AttentionProfile",
    "Breaker",
    "BreakerRules",
    "BucketMembers",
    "BucketPlan",
    "BytesPerToken",
    "CachePool",
    "Candidates",
    "Chosen",
    "Circuit",
    "CircuitSet",
    "Finished",
    "FirstToken",
    "Fitted",
    "FleetRules",
    "FleetState",
    "Forget",
    "GiveUp",
    "Insert",
    "Left",
    "LengthBuckets",
    "Op",
    "Placed",
    "Policy",
    "Reason",
    "Redispatch",
    "RedispatchRules",
    "RequestView",
    "RetryBudget",
    "ServiceFit",
    "ServiceModel",
    "Shed",
    "Started",
    "Trim",
    "Worker",
    "WorkerGone",
    "WorkerPut",
    "admitted",
    "decode_ops",
    "encode_op",
    "encode_ops",
    "make_policy",
    "place",
    "probe_from_us",
    "redispatch",
    "shares",
    "turn_of",
]
