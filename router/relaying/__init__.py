"""Requests beside those with a JSON body: uploads, WebSockets, answers by id, paths that a setting names."""

from router.relaying.relaying import Relaying
from router.relaying.routes import Routes

__all__ = ["Relaying", "Routes"]
