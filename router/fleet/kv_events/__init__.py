"""KV events: what engines say they store and remove, followed by one replica per worker and told to all."""

from router.fleet.kv_events.follower import Follower, State
from router.fleet.kv_events.following import FollowingRules, KvEvents

__all__ = ["Follower", "FollowingRules", "KvEvents", "State"]
