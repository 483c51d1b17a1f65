"""What to do: pure decisions over frozen views, and the fold that makes the fleet's state."""

from policies.admission import RUNNING_MAX_LABEL, Admission, AdmissionRules, EarlyEnds
from policies.breaker import Breaker, BreakerRules, probe_from_us
from policies.bucket_members import BucketMembers
from policies.bucket_plan import Demand, Division, Member, PlanRules, Verdict, plan
from policies.buckets import ANY_BUCKET, BUCKET_LABEL, LengthBuckets
from policies.cache_pools import CachePool
from policies.costs import PROFILES, ServiceFit, ServiceModel
from policies.fairness import Fairness, class_of
from policies.fleet import FleetRules, FleetState, Worker
from policies.ops import (
    BucketPlan,
    BytesPerToken,
    Circuit,
    CircuitSet,
    EarlyRatio,
    Finished,
    FirstToken,
    Fitted,
    Left,
    Op,
    Placed,
    Reported,
    Started,
    Waiting,
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
from policies.waiting import Inversions, Tickets
from policies.waiting_lines import Ticket
from policies.work_ahead import WorkAhead
from radix import FULL_ATTENTION, AttentionProfile, Forget, Insert, Trim

__all__ = [
    "ANY_BUCKET",
    "BUCKET_LABEL",
    "FULL_ATTENTION",
    "POLICIES",
    "PROFILES",
    "RUNNING_MAX_LABEL",
    "Admission",
    "AdmissionRules",
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
    "Demand",
    "Division",
    "EarlyEnds",
    "EarlyRatio",
    "Fairness",
    "Finished",
    "FirstToken",
    "Fitted",
    "FleetRules",
    "FleetState",
    "Forget",
    "GiveUp",
    "Insert",
    "Inversions",
    "Left",
    "LengthBuckets",
    "Member",
    "Op",
    "Placed",
    "PlanRules",
    "Policy",
    "Reason",
    "Redispatch",
    "RedispatchRules",
    "Reported",
    "RequestView",
    "RetryBudget",
    "ServiceFit",
    "ServiceModel",
    "Shed",
    "Started",
    "Ticket",
    "Tickets",
    "Trim",
    "Verdict",
    "Waiting",
    "WorkAhead",
    "Worker",
    "WorkerGone",
    "WorkerPut",
    "admitted",
    "class_of",
    "decode_ops",
    "encode_op",
    "encode_ops",
    "make_policy",
    "place",
    "plan",
    "probe_from_us",
    "redispatch",
    "shares",
    "turn_of",
]
