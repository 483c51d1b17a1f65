"""The shared log, snapshots, heartbeats and limits on Redis."""

from router.shared.adapter_uses import AdapterUses, Use
from router.shared.clock import LogClock
from router.shared.config import LogStatus, SharingRules, Warming
from router.shared.embedded import EmbeddedValkey
from router.shared.keys import Keys
from router.shared.lease_account import Charge, Refusal
from router.shared.leases import Leases
from router.shared.log_port import LogPort
from router.shared.ports import Fold, NoListener, Publish, RefusalReason, SharedListener, SkipReason
from router.shared.session_homes import SessionHomes
from router.shared.state import Hooks, SharedState
from router.shared.stored_responses import StoredResponses
from router.shared.vitals import Vitals

__all__ = [
    "AdapterUses",
    "Charge",
    "EmbeddedValkey",
    "Fold",
    "Hooks",
    "Keys",
    "Leases",
    "LogClock",
    "LogPort",
    "LogStatus",
    "NoListener",
    "Publish",
    "Refusal",
    "RefusalReason",
    "SessionHomes",
    "SharedListener",
    "SharedState",
    "SharingRules",
    "SkipReason",
    "StoredResponses",
    "Use",
    "Vitals",
    "Warming",
]
