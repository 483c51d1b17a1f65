"""The description of an engine that the gateway needs to work with it."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import httpx

from policies import Switched
from router.engines.sources import Source

RANKED = frozenset(("/v1/chat/completions", "/v1/completions", "/generate"))
"""Endpoints whose bodies may name a rank."""

RANK_HEADER = b"x-data-parallel-rank"
"""Header with the data-parallel rank of a request, of both engines; it counts before a field of the body."""


def rank_line(rank: int) -> bytes:
    """Return the header line that names a data-parallel rank; empty for -1, the engine's own choice."""
    return b"%b: %d\r\n" % (RANK_HEADER, rank) if rank >= 0 else b""


Read = Callable[[str, float], Awaitable[bytes | None]]
"""Reads a page, given its URL and a timeout in seconds; None if there is none in time."""


@dataclass(frozen=True, slots=True)
class Description:
    """An engine's report about itself; 0 or empty where it has none.

    Attributes:
        engine: Name of its dialect.
        capacity_tokens, running_max: KV capacity, and requests run at a time, of all data-parallel ranks.
        host_tokens: Tokens that can be reused from host memory, those on the devices included, of all ranks.
        step_tokens: Tokens prefilled per step, if a step's results can be reused only when it is over.
        role: ``plain``, ``prefill`` or ``decode``, as started or switched.
        ranks: Data-parallel ranks that a request can be sent to; 1 for none to choose from.
    """

    engine: str = ""
    capacity_tokens: int = 0
    running_max: int = 0
    step_tokens: int = 0
    bootstrap_port: int = 0
    role: str = ""
    ranks: int = 0
    host_tokens: int = 0


@dataclass(frozen=True, slots=True)
class LoadMetrics:
    """Names of an engine's load metrics (`router.fleet.engine_load`): requests running and waiting, KV used.

    Attributes:
        shares: Share of its KV capacity that running requests hold; the first that exists counts.
        used: Tokens that they hold, and the capacity, where no share exists.
    """

    running: bytes
    waiting: bytes
    shares: tuple[bytes, ...]
    used: tuple[bytes, bytes] | None = None


@dataclass(frozen=True, slots=True)
class RoleSwitch:
    """The way an engine takes another role in place.

    ``switch`` asks for it, given a client, a reader of pages, the worker's URL, the role, and the URLs of
    workers that have the role; it returns the result and the engine's message. ``role`` reads the present
    role, empty if unknown.
    """

    switch: Callable[[httpx.AsyncClient, Read, str, str, Iterable[str]], Awaitable[tuple[Switched, str]]]
    role: Callable[[Read, str], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class EngineDialect:
    """A kind of engine.

    Attributes:
        metrics_prefix: Prefix of the names of its metrics.
        handover: Default hand-over of its workers; one of `policies.HAND_OVERS`.
        event_pages: Paths of the pages that may name its KV event publishers.
        event_sources: Reads such a page, given the URL of the worker.
        info_page: Path of the page that describes it; empty if only its metrics do.
        describe: Reads that page, decoded from JSON, and its metrics.
        capacity_tokens: Reads its KV capacity from its metrics; 0 if they lack it.
        ranks: Reads its data-parallel ranks from its metrics; 0 if they lack them.
        rank_fields: Fields of a body that name the rank at `RANKED`, beside `RANK_HEADER`.
        overlooks_salt: Endpoints where it overlooks a salt.
        role_switch: None if any role needs no switch, and its cache stays.
    """

    name: str
    metrics_prefix: str
    load: LoadMetrics
    handover: str
    event_pages: tuple[str, ...]
    event_sources: Callable[[bytes | None, str], tuple[Source, ...]]
    info_page: str = ""
    describe: Callable[[Any, str], Description] = lambda _answer, _metrics: Description()
    capacity_tokens: Callable[[str], int] = lambda _: 0
    ranks: Callable[[str], int] = lambda _: 0
    rank_fields: tuple[str, ...] = ()
    overlooks_salt: frozenset[str] = frozenset()
    role_switch: RoleSwitch | None = None
