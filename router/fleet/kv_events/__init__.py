"""KV events: stores and removals that engines publish, followed by one replica per worker for all."""

from router.fleet.kv_events.follower import Follower, State
from router.fleet.kv_events.following import FollowingRules, KvEvents

__all__ = ["Follower", "FollowingRules", "KvEvents", "State"]
