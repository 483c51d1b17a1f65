"""Requests that two workers share: reservations, attempts, stalls, links and roles."""

from router.pairs.link_watch import watch_links
from router.pairs.plugin import PairPlugin
from router.pairs.role_planner import RolePlanner

__all__ = ["PairPlugin", "RolePlanner", "watch_links"]
