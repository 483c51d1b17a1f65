"""The gateway's queue as it ships: the defaults of its settings, on virtual time."""

from dataclasses import replace

from loadtest.simulator.queueing import ASK_S, LOOK_S, QueueRules
from router.settings import Settings

K = Settings().queue.uncached_weight
"""k of the order, by default (``queue.uncached_weight``)."""

TIMEOUT_S = Settings().queue.timeout_s
"""Longest wait in seconds, by default (``queue.timeout_s``)."""


def shipped_queue(k: float = K) -> QueueRules:
    """Return the rules of the default settings with weight ``k`` of the predicted prefill.

    0: first come first.
    """
    settings = Settings()
    return QueueRules(
        k=k,
        admission=settings.admission,
        room=replace(settings.queue, look_s=LOOK_S, ask_s=ASK_S),
        level=settings.admission,
        quantum_s=settings.queue.fairness_quantum_s,
        window_s=settings.queue.fairness_window_s,
    )
