"""Streams that survive their worker: another worker continues the text (decision 0079)."""

from router.continuing.keeper import StreamKeeper

__all__ = ["StreamKeeper"]
