"""The console: one page about the fleet, and the stream that feeds it.

    gateway ──FleetView──> RateWindow (ten minutes of figures, always)
                   └─────> EventStream (while a page listens) ──SSE──> assets/*.js in a browser

The page is hand-written modules and styles, without a build step or outside files (`router.admin.console`
serves them). It changes the fleet through the admin API.
"""

from router.console.plain_words import Trouble, Troubles, troubles
from router.console.ports import (
    Conditions,
    Counters,
    Decisions,
    FleetView,
    ReplicaView,
    WorkerFacts,
    WorkerLoad,
)
from router.console.rate_window import RateWindow, Sample
from router.console.stream import EventStream, TooManyListeners

__all__ = [
    "Conditions",
    "Counters",
    "Decisions",
    "EventStream",
    "FleetView",
    "RateWindow",
    "ReplicaView",
    "Sample",
    "TooManyListeners",
    "Trouble",
    "Troubles",
    "WorkerFacts",
    "WorkerLoad",
    "troubles",
]
