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
from policies.link_states import LinkState, LinkStateRules, LinkStates
from policies.links import LinkRules, Links, Quote, link_name
from policies.offload import Offer, Offload, OffloadReason, OffloadRules, OffloadVerdict
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
    LinkMeasured,
    Op,
    Placed,
    Reported,
    Shipped,
    Shipping,
    Started,
    Waiting,
    WorkerGone,
    WorkerPut,
    decode_ops,
    encode_op,
    encode_ops,
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
    "LinkMeasured",
    "LinkRules",
    "LinkState",
    "LinkStateRules",
    "LinkStates",
    "Links",
    "Miss",
    "Offer",
    "Offload",
    "OffloadReason",
    "OffloadRules",
    "OffloadVerdict",
    "Op",
    "Outlook",
    "Placed",
    "Policy",
    "Prospect",
    "Quote",
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
    "Shipped",
    "Shipping",
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
    "decoding_after",
    "encode_op",
    "encode_ops",
    "link_name",
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
