"""Observation beside decisions: the choices of a second policy."""

from policies.observing.shadow import Comparison, Judged, Shadow

__all__ = [
    "Comparison",
    "Judged",
    "Shadow",
]
