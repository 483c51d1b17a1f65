"""What the gateway has to know of an engine in order to work with it: one `EngineDialect` for each."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import httpx

from policies import Switched
from router.engines.sources import Source

Read = Callable[[str, float], Awaitable[bytes | None]]
"""Reads a page, given its URL and for how many seconds: None if there is none in time."""


@dataclass(frozen=True, slots=True)
class Description:
    """What an engine says of itself; 0 or empty where it does not.

    Attributes:
        engine: Name of its dialect.
        capacity_tokens: KV capacity, of all data-parallel ranks.
        running_max: Requests that all of them run at a time.
        step_tokens: Tokens that one step prefills, if others find what a step computes only when it is over.
        bootstrap_port: Port of its bootstrap server.
        role: What it was started for or switched to: ``plain``, ``prefill`` or ``decode``.
    """

    engine: str = ""
    capacity_tokens: int = 0
    running_max: int = 0
    step_tokens: int = 0
    bootstrap_port: int = 0
    role: str = ""


@dataclass(frozen=True, slots=True)
class LoadMetrics:
    """Names of the metrics that say an engine's load (`router.fleet.engine_load`).

    Attributes:
        running: Requests in its batch.
        waiting: Requests in its own queue.
        shares: Share of its KV capacity that running requests hold; the first that is there counts.
        used: Tokens that they hold, and of how many, where no share is told.
    """

    running: bytes
    waiting: bytes
    shares: tuple[bytes, ...]
    used: tuple[bytes, bytes] | None = None


@dataclass(frozen=True, slots=True)
class RoleSwitch:
    """How an engine takes another role in place.

    Attributes:
        switch: Asks for it, given a client, a reader of pages, the worker's URL, the role, and the URLs of
            workers that have the role: what became of it, and what the engine said.
        role: Which role an engine has now: ``prefill``, ``decode``, or empty if it does not say.
    """

    switch: Callable[[httpx.AsyncClient, Read, str, str, Iterable[str]], Awaitable[tuple[Switched, str]]]
    role: Callable[[Read, str], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class EngineDialect:
    """How one kind of engine speaks.

    Attributes:
        name: What the gateway calls the engine.
        metrics_prefix: Begins the names of its metrics.
        load: Which of them say its load.
        handover: How its prefill and decode workers hand over if no label says otherwise; one of
            `policies.HAND_OVERS`.
        event_pages: Paths of the pages that may say where it publishes KV events.
        event_sources: Reads such a page, given the URL of the worker.
        info_page: Path of the page that describes it; empty if only its metrics do.
        describe: Reads that page, decoded from JSON.
        capacity_tokens: Reads its KV capacity from its metrics; 0 if they do not say it.
        overlooks_salt: Paths of the endpoints where it overlooks a salt.
        role_switch: None if it has nothing to do for another role, and what it has cached stays.
    """

    name: str
    metrics_prefix: str
    load: LoadMetrics
    handover: str
    event_pages: tuple[str, ...]
    event_sources: Callable[[bytes | None, str], tuple[Source, ...]]
    info_page: str = ""
    describe: Callable[[Any], Description] = lambda _: Description()
    capacity_tokens: Callable[[str], int] = lambda _: 0
    overlooks_salt: frozenset[str] = frozenset()
    role_switch: RoleSwitch | None = None
