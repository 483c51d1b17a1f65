"""Failures on demand, to test the software in front of an engine.

``POST /_fault`` adds one, ``DELETE /_fault`` ends them all. Each hits the next ``count`` requests of the data
API (0: all), the oldest fault first. With ``after_chunks`` 0 it strikes before the first byte of the answer,
or with ``after_head`` behind its head; else after that many chunks of a stream (or in the middle of an answer
in one piece).

    kind       what the client sees
    refuse     the port is closed for ``seconds`` (0: until ended), idle connections with it
    crash      as refuse, and every answer is reset and the cache lost, as if the process died: the next one
               has another start time
    unhealthy  health checks answer 503; requests are served
    reset      RST
    close      FIN: no answer, or a truncated one
    stall      silence for ``seconds`` (0: for ever), then the rest
    slow       the request is taken up ``seconds`` later
    error      ``status`` with the dialect's error body; within a stream, an error event
    garbage    bytes that are not HTTP

These strike in a hand-over, at the engine that has the KV, for the next ``count`` transfers or legs:

    stall_transfer   the KV arrives ``seconds`` late (0: never)
    fail_transfer    it is lost ``seconds`` after it was sent
    no_params        vLLM: a prefill leg leaves nothing to fetch, and with NIXL no ``kv_transfer_params``
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

FaultKind = Literal[
    "refuse",
    "crash",
    "unhealthy",
    "reset",
    "close",
    "stall",
    "slow",
    "error",
    "garbage",
    "stall_transfer",
    "fail_transfer",
    "no_params",
]

REQUEST_FAULTS: frozenset[FaultKind] = frozenset({"reset", "close", "stall", "slow", "error", "garbage"})
TRANSFER_FAULTS: frozenset[FaultKind] = frozenset({"stall_transfer", "fail_transfer"})
LEG_FAULTS: frozenset[FaultKind] = frozenset({"no_params"})


@dataclass(frozen=True, slots=True)
class Fault:
    """One failure; ``seconds`` are real ones, and the module explains the other fields."""

    kind: FaultKind
    after_chunks: int = 0
    count: int = 0
    seconds: float = 0.0
    status: int = 500
    after_head: bool = False

    @property
    def at_once(self) -> bool:
        """True if it strikes before the first byte of the answer."""
        return not self.after_chunks and not self.after_head

    @classmethod
    def parse(cls, fields: Any) -> "Fault":
        """Make a fault from decoded JSON; `ValueError` says what is wrong with it."""
        if not isinstance(fields, Mapping) or fields.get("kind") not in get_args(FaultKind):
            raise ValueError(f"kind must be one of {', '.join(get_args(FaultKind))}")
        kinds = {name: type(default) for name, default in _DEFAULTS.items()}
        for name, value in fields.items():
            if name == "kind":
                continue
            if name not in kinds:
                raise ValueError(f"unknown field {name!r}")
            if kinds[name] is bool:
                if not isinstance(value, bool):
                    raise ValueError(f"{name} must be true or false")
            elif isinstance(value, bool) or not isinstance(value, int | kinds[name]) or value < 0:
                raise ValueError(f"{name} must be a number, at least 0")
        if not 400 <= fields.get("status", 500) <= 599:
            raise ValueError("status must be from 400 to 599")
        return cls(**fields)


_DEFAULTS: dict[str, bool | int | float] = {
    "after_chunks": 0,
    "count": 0,
    "seconds": 0.0,
    "status": 500,
    "after_head": False,
}


class Faults:
    """The faults of one engine that are still to come."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Fault, int]] = []
        self.unhealthy = False

    @property
    def armed(self) -> int:
        """Faults that may still strike."""
        return len(self._waiting)

    def add(self, fault: Fault) -> None:
        """Arm a fault; ``refuse`` and ``crash`` are the engine's own doing and do not come here."""
        if fault.kind == "unhealthy":
            self.unhealthy = True
        else:
            assert fault.kind not in ("refuse", "crash")
            self._waiting.append((fault, fault.count))

    def clear(self) -> None:
        """End all faults."""
        self._waiting.clear()
        self.unhealthy = False

    def take(self, among: Collection[FaultKind] = REQUEST_FAULTS) -> Fault | None:
        """The fault of these kinds that strikes now, if any: the oldest."""
        for index, (fault, left) in enumerate(self._waiting):
            if fault.kind in among:
                if left == 1:
                    del self._waiting[index]
                elif left:
                    self._waiting[index] = (fault, left - 1)
                return fault
        return None
