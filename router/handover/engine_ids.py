"""The ids of a Mooncake prefill engine's data-parallel ranks, by which decode engines call it.

    unknown ──ask──> asking: requests wait, for a second at most ──> known ──10 s──> known, and asked again
                        └─ no answer: the requests that wait fail       └─ its worker is gone ──> unknown

An engine makes its ids up when it starts and serves them at ``GET {bootstrap}/query``
(``mooncake/mooncake_connector.py``, ``MooncakeBootstrapServer``). With another's id, or an old one, a decode
engine fails. An engine that ends takes its connections with it, so ids are trusted only while one to its
worker is open; and they are refreshed now and then, beside the requests.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from router.destinations import Resolve
from router.errors import HandoverFailed, UpstreamError
from router.handover.bootstrap import Bootstrap, bootstrap_of
from router.proxy import RequestHead, UpstreamRequest, UpstreamRules, WorkerPool

if TYPE_CHECKING:
    from router.fleet import LocalWorker

QUERY_S = 1.0
"""Longest wait of a request for the ids."""

REFRESH_S = 10.0
"""Longest time until a restart between two looks at an engine's connections is noticed."""

ENGINES_MAX = 4096
"""Engines whose ids are cached, those asked for last."""

ANSWER_BYTES_MAX = 1 << 20

Rank = tuple[int, str]
"""A data-parallel rank, and its id."""

Receive = Callable[[Sequence[Rank], UpstreamError | None], None]
"""Takes the ids, at least one, or the reason for none."""


class EngineIds:
    """The ids of all prefill engines, asked for again after ``refresh_s``; failed queries are counted."""

    def __init__(
        self, counts: Counter[str], refresh_s: float = REFRESH_S, resolve: Resolve | None = None
    ) -> None:
        self._counts = counts
        self._resolve = resolve
        self._refresh_s = refresh_s
        self._engines: OrderedDict[Bootstrap, _Engine] = OrderedDict()

    def ask(self, worker: "LocalWorker", receive: Receive) -> None:
        """Report the ids of a worker: before this returns if they are known, and never an error."""
        bootstrap = bootstrap_of(worker)
        engine = self._engines.get(bootstrap)
        if engine is None:
            engine = self._engines[bootstrap] = _Engine(
                bootstrap, self._counts, self._refresh_s, self._resolve
            )
            if len(self._engines) > ENGINES_MAX:
                self._engines.popitem(last=False)
        self._engines.move_to_end(bootstrap)
        engine.ask(receive, trusted=worker.pool.open > 0)

    def forget(self, worker: "LocalWorker") -> None:
        """Forget ids that may be old: a request failed."""
        self._engines.pop(bootstrap_of(worker), None)


class _RankInfo(msgspec.Struct, gc=False):
    engine_id: str


_decode = msgspec.json.Decoder(dict[str, _RankInfo]).decode


class _Engine:
    """The ids of one engine; the sink of its queries."""

    def __init__(
        self, bootstrap: Bootstrap, counts: Counter[str], refresh_s: float, resolve: Resolve | None
    ) -> None:
        self._counts = counts
        self._refresh_s = refresh_s
        self._url = f"http://{bootstrap.host}:{bootstrap.port}"
        rules = UpstreamRules(QUERY_S, QUERY_S, QUERY_S, connections_max=1)
        self._pool = WorkerPool(self._url, rules, resolve=resolve)
        self._pool.drain()  # a query now and then needs no kept connection
        self._ranks: Sequence[Rank] = ()
        self._heard_s = 0.0
        self._waiting: list[Receive] = []
        self._query: UpstreamRequest | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._status = 0
        self._answer = b""

    def ask(self, receive: Receive, *, trusted: bool) -> None:
        age_s = asyncio.get_running_loop().time() - self._heard_s
        if self._ranks and trusted:
            receive(self._ranks, None)
        else:
            self._waiting.append(receive)
        if self._query is None and (self._waiting or age_s > self._refresh_s):
            self._answer = b""
            self._query = self._pool.send(RequestHead(b"GET", b"/query"), b"", (), self)
            self._timer = asyncio.get_running_loop().call_later(QUERY_S, self._late)

    def upstream_head(self, status: int, lines: bytes, length: int | None) -> None:
        """See `UpstreamSink`."""
        self._status = status

    def upstream_data(self, data: bytes) -> None:
        """See `UpstreamSink`."""
        self._answer += data
        if len(self._answer) > ANSWER_BYTES_MAX:
            self._fail("says too much")

    def upstream_end(self) -> None:
        """See `UpstreamSink`."""
        try:
            found = _decode(self._answer) if self._status == 200 else {}
            ranks = sorted((int(rank), info.engine_id) for rank, info in found.items())
        except (ValueError, RecursionError):
            ranks = []
        if not ranks:
            self._fail("does not tell its ids")
            return
        self._ranks = ranks
        self._heard_s = asyncio.get_running_loop().time()
        for receive in self._over():
            receive(ranks, None)

    def upstream_failed(self, error: UpstreamError) -> None:
        """See `UpstreamSink`."""
        self._fail(str(error))

    def _late(self) -> None:
        self._fail(f"did not answer within {QUERY_S:g} s")

    def _fail(self, why: str) -> None:
        """Report to the waiting requests that there are no ids; those known stay."""
        self._counts["query_failed"] += 1
        error = HandoverFailed(f"The bootstrap server {self._url} {why}.")
        for receive in self._over():
            receive((), error)

    def _over(self) -> Sequence[Receive]:
        query, self._query = self._query, None
        if query is not None:
            query.abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._answer = b""
        waiting, self._waiting = self._waiting, []
        return waiting
