"""What to do: pure decisions over frozen views, and the fold that makes the fleet's state."""

from policies.admission import RUNNING_MAX_LABEL, Admission, AdmissionRules, EarlyEnds
from policies.breaker import Breaker, BreakerRules, probe_from_us
from policies.bucket_members import BucketMembers
from policies.bucket_plan import (
    BucketDivision,
    BucketMember,
    BucketRules,
    BucketVerdict,
    LengthDemand,
    plan_buckets,
)
from policies.buckets import ANY_BUCKET, BUCKET_LABEL, LengthBuckets
from policies.cache_pools import CachePool
from policies.costs import PROFILES, ServiceFit, ServiceModel
from policies.decodes import DecodeFit, decoding_after
from policies.early_rejection import EarlyRejection, Miss, Outlook, ServiceLevel
from policies.fairness import Fairness, class_of
from policies.fleet import FleetRules, FleetState, Worker
from policies.followers import repeated_blocks, waits_for_leader
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
from policies.optimum import (
    Curve,
    Optimum,
    RemoteSite,
    Split,
    Stage,
    Stages,
    Throughput,
    ThroughputModel,
    UncachedLengths,
    WorkerClass,
    decode_per_s,
    egress_bytes_per_s,
    kv_bytes_per_s,
    service_curve,
)
from policies.placement import Reason, place
from policies.prospects import Prospect, prospect
from policies.redispatch import GiveUp, Redispatch, RedispatchRules, RetryBudget, redispatch
from policies.rendezvous import turn_of
from policies.scoring import POLICIES, Policy, make_policy
from policies.slow_start import admitted, shares
from policies.views import Candidates, Chosen, RequestView, Shed, Slots
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
    "BucketDivision",
    "BucketMember",
    "BucketMembers",
    "BucketPlan",
    "BucketRules",
    "BucketVerdict",
    "BytesPerToken",
    "CachePool",
    "Candidates",
    "Chosen",
    "Circuit",
    "CircuitSet",
    "Curve",
    "DecodeFit",
    "EarlyEnds",
    "EarlyRatio",
    "EarlyRejection",
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
    "LengthDemand",
    "Miss",
    "Op",
    "Optimum",
    "Outlook",
    "Placed",
    "Policy",
    "Prospect",
    "Reason",
    "Redispatch",
    "RedispatchRules",
    "RemoteSite",
    "Reported",
    "RequestView",
    "RetryBudget",
    "ServiceFit",
    "ServiceLevel",
    "ServiceModel",
    "Shed",
    "Slots",
    "Split",
    "Stage",
    "Stages",
    "Started",
    "Throughput",
    "ThroughputModel",
    "Ticket",
    "Tickets",
    "Trim",
    "UncachedLengths",
    "Waiting",
    "WorkAhead",
    "Worker",
    "WorkerClass",
    "WorkerGone",
    "WorkerPut",
    "admitted",
    "class_of",
    "decode_ops",
    "decode_per_s",
    "decoding_after",
    "egress_bytes_per_s",
    "encode_op",
    "encode_ops",
    "kv_bytes_per_s",
    "make_policy",
    "place",
    "plan_buckets",
    "probe_from_us",
    "prospect",
    "redispatch",
    "repeated_blocks",
    "service_curve",
    "shares",
    "turn_of",
    "waits_for_leader",
]
