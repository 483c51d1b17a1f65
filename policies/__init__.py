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
from policies.matchmaking import DECODE_COST, DECODE_POLICIES, Look, Matchmaker, Partner, decode_policy
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
from policies.pairing import (
    ALONE,
    BOOTSTRAP_HOST_LABEL,
    BOOTSTRAP_PORT_LABEL,
    CONVERTIBLE_LABEL,
    DP_SIZE_LABEL,
    HAND_OVERS,
    HANDOVER_LABEL,
    SITE_LABEL,
    HandOver,
    Pairing,
    Partners,
)
from policies.placement import NO_WORKER_RETRY_AFTER_S, Reason, place
from policies.prospects import Prospect, prospect
from policies.redispatch import GiveUp, Redispatch, RedispatchRules, RetryBudget, redispatch
from policies.rendezvous import turn_of
from policies.scoring import POLICIES, Policy, make_policy
from policies.slow_start import admitted, shares
from policies.views import Candidates, Chosen, RequestView, Shed, Ships, Slots
from policies.waiting import Inversions, Tickets
from policies.waiting_lines import Ticket
from policies.work_ahead import WorkAhead
from radix import FULL_ATTENTION, AttentionProfile, Forget, Insert, Trim

__all__ = [
    "ALONE",
    "ANY_BUCKET",
    "BOOTSTRAP_HOST_LABEL",
    "BOOTSTRAP_PORT_LABEL",
    "BUCKET_LABEL",
    "CONVERTIBLE_LABEL",
    "DECODE_COST",
    "DECODE_POLICIES",
    "DP_SIZE_LABEL",
    "FULL_ATTENTION",
    "HANDOVER_LABEL",
    "HAND_OVERS",
    "NO_WORKER_RETRY_AFTER_S",
    "POLICIES",
    "PROFILES",
    "RUNNING_MAX_LABEL",
    "SITE_LABEL",
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
    "HandOver",
    "Insert",
    "Inversions",
    "Left",
    "LengthBuckets",
    "LengthDemand",
    "Look",
    "Matchmaker",
    "Miss",
    "Op",
    "Outlook",
    "Pairing",
    "Partner",
    "Partners",
    "Placed",
    "Policy",
    "Prospect",
    "Reason",
    "Redispatch",
    "RedispatchRules",
    "Reported",
    "RequestView",
    "RetryBudget",
    "ServiceFit",
    "ServiceLevel",
    "ServiceModel",
    "Shed",
    "Ships",
    "Slots",
    "Started",
    "Ticket",
    "Tickets",
    "Trim",
    "Waiting",
    "WorkAhead",
    "Worker",
    "WorkerGone",
    "WorkerPut",
    "admitted",
    "class_of",
    "decode_ops",
    "decode_policy",
    "decoding_after",
    "encode_op",
    "encode_ops",
    "make_policy",
    "place",
    "plan_buckets",
    "probe_from_us",
    "prospect",
    "redispatch",
    "repeated_blocks",
    "shares",
    "turn_of",
    "waits_for_leader",
]
