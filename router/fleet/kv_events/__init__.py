"""KV events: what engines say they store and remove, followed by one replica per worker and told to all."""

from router.fleet.kv_events.follower import Follower, State
from router.fleet.kv_events.following import KvEvents
from router.fleet.kv_events.start import check_kv_events, make_kv_events

__all__ = ["Follower", "KvEvents", "State", "check_kv_events", "make_kv_events"]
