"""A gateway without sockets: everything behind the ports is fake, everything in front of them is real.

Time stands still until a test moves it. The fakes check the promises of the ports: an upstream that speaks
after its abort, or an exchange that answers twice, fails the test.
"""

import functools
import heapq
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

import orjson

from policies import (
    BreakerRules,
    Finished,
    FirstToken,
    FleetRules,
    FleetState,
    LengthBuckets,
    Op,
    OpRefused,
    Placed,
    encode_op,
    make_policy,
)
from policies.observing import Shadow
from router.continuing import StreamKeeper
from router.fleet import Core, HealthRules, LocalWorker, Registry
from router.gateway import Gateway, Plugins, RequestReader, Telemetry, starting, weights
from router.gateway.blame import Failure
from router.gateway.exchange import RequestExchange
from router.gateway.spans import Spans
from router.handover import Handover
from router.metrics import Metrics
from router.pairs import PairPlugin
from router.proxy import (
    ClientConnection,
    ClientRequest,
    Exchange,
    Header,
    RequestHead,
    UpstreamSink,
    WorkerPool,
)
from router.request_trace import TraceLine
from router.sessions import Sessions
from router.settings import Settings
from router.shared import LogClock, LogPort, LogStatus
from router.tenants import Door, Keyring, Limiter

CALM_S = 3600.0
"""Seconds within which the last timer ends, without effect, after the last request in flight."""

EPOCH_S = 1_700_000_000
"""Wall clock when a test begins."""

ALONE_STATUS = LogStatus(
    connected=True,
    degraded_reason=None,
    lag_s=0.0,
    snapshot_age_s=None,
    buffered_ops=0,
    dropped_ops=0,
    skipped_ops={},
    replicas=("r1",),
    ready=True,
    warming=None,
)
"""Status of the log of the only replica."""

SSE: list[Header] = [(b"content-type", b"text/event-stream; charset=utf-8")]
JSON: list[Header] = [(b"content-type", b"application/json")]


def chat(text: str = "word " * 1000, **more: Any) -> dict[str, Any]:
    """A chat of 5,000 bytes by default: four whole blocks of 1 KiB."""
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


class _Timer:
    """The timer that `VirtualTime.call_later` returns."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class VirtualTime:
    """The part of an event loop that an exchange uses, on a clock of its own."""

    def __init__(self) -> None:
        self._now_s = 100.0
        self._timers: list[tuple[float, int, _Timer]] = []
        self._count = itertools.count()
        self.clock = LogClock(lambda: round(self._now_s * 1e9), lambda: EPOCH_S * 10**9)

    def time(self) -> float:
        return self._now_s

    def call_later(self, delay_s: float, callback: Callable[..., None], *arguments: object) -> _Timer:
        timer = _Timer(functools.partial(callback, *arguments))
        heapq.heappush(self._timers, (self._now_s + delay_s, next(self._count), timer))
        return timer

    def call_soon(self, callback: Callable[..., None], *arguments: object) -> _Timer:
        return self.call_later(0.0, callback, *arguments)

    def advance(self, seconds: float) -> None:
        """Let time pass and run all timers that fall due, in order."""
        until_s = self._now_s + seconds
        while self._timers and self._timers[0][0] <= until_s:
            self.turn()
        self._now_s = until_s

    def turn(self) -> None:
        """Let time pass until the next timer, and run that one only."""
        self._now_s, _, timer = heapq.heappop(self._timers)
        if timer.callback is not None:
            timer.callback()

    @property
    def pending(self) -> int:
        """Timers that would still do something."""
        return sum(timer.callback is not None for _, _, timer in self._timers)


def headers_of(lines: bytes) -> list[Header]:
    """Header lines, taken apart."""
    assert lines == b"" or lines.endswith(b"\r\n")
    pairs = [line.split(b": ", 1) for line in lines.split(b"\r\n")[:-1]]
    return [(name, value) for name, value in pairs]


class FakeClient:
    """The client's side of an exchange; keeps all that it receives."""

    def __init__(self) -> None:
        self.status: Any = None
        self.headers: dict[bytes, bytes] = {}
        self.length: int | None = None
        self.body = b""
        self.finished = False
        self.aborted = False
        self.left = False

    @property
    def over(self) -> bool:
        return self.finished or self.aborted or self.left

    @property
    def error(self) -> dict[str, Any]:
        """The error of an answer in the OpenAI shape."""
        return cast(dict[str, Any], orjson.loads(self.body)["error"])

    def release_body(self) -> None:
        self.body_released = True

    def send_head(self, status: int, lines: bytes, *, length: int | None, body: bytes = b"") -> None:
        assert not self.finished
        assert not self.aborted
        assert self.status is None, "a second head"
        headers = headers_of(lines)
        self.status, self.headers, self.length = status, dict(headers), length
        assert len(self.headers) == len(headers), "a header twice"
        self.body = body

    def send_body(self, data: bytes) -> None:
        assert not self.finished
        assert not self.aborted
        assert self.status is not None, "body before head"
        self.body += data

    def finish(self) -> None:
        assert not self.finished
        assert not self.aborted
        assert self.status is not None, "an answer without head"
        assert self.length is None or self.length == len(self.body) or self.left
        self.finished = True

    def abort(self) -> None:
        assert not self.finished
        assert not self.aborted
        self.aborted = True


class FakeUpstream:
    """A request on its way to a fake worker; the test plays the worker."""

    workers = 1
    """At how many workers it is."""

    def __init__(self, pool: "FakePool", sent: dict[str, Any]) -> None:
        self.pool = pool
        self.sent = sent
        self.paused = False
        self.aborted = False
        self.headed = False
        self.over = False
        self._sink: UpstreamSink = sent["sink"]

    @property
    def live(self) -> bool:
        return not self.over and not self.aborted

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def abort(self) -> None:
        self.aborted = True

    # Actions of the worker.

    def head(self, status: int = 200, headers: Sequence[Header] = (), length: int | None = None) -> None:
        assert self.live
        assert not self.headed
        self.headed = True
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        self._sink.upstream_head(status, lines, length)

    def data(self, data: bytes) -> None:
        assert self.live
        assert self.headed
        self._sink.upstream_data(data)

    def end(self) -> None:
        assert self.live
        assert self.headed
        self.over = True
        self._sink.upstream_end()

    def fail(self, error: Exception) -> None:
        assert self.live
        self.over = True
        self._sink.upstream_failed(error)

    def answer(self, body: bytes = b"{}", status: int = 200) -> None:
        """A whole answer at once."""
        self.head(status, [(b"content-type", b"application/json")], len(body))
        if self.live and body:
            self.data(body)
        if self.live:
            self.end()


class FakePool:
    """A worker's connections."""

    def __init__(self, url: str, requests: list[FakeUpstream] | None = None) -> None:
        self.url = url
        self.requests = [] if requests is None else requests
        self.open = self.idle = 0
        self.drained = self.closed = False
        self.authorization = b""

    def send(
        self,
        head: RequestHead,
        lines: bytes,
        body: Sequence[Any],
        sink: UpstreamSink,
        **rules: Any,
    ) -> FakeUpstream:
        sent = {"method": head.method, "path": head.path, "query": head.query, "headers": headers_of(lines)}
        sent |= {"lines": lines, "body": body, "sink": sink, **rules}
        upstream = FakeUpstream(self, sent)
        self.requests.append(upstream)
        return upstream

    def drain(self) -> None:
        self.drained = True

    def close(self) -> None:
        self.closed = True


class FakeShared:
    """The shared log of a fleet with one replica: applies at once, keeps all operations."""

    def __init__(self, rules: FleetRules | None = None) -> None:
        self.fleet = FleetState(rules or FleetRules(buckets=LengthBuckets()))
        self.ops: list[Op] = []
        self.refuses: type[Op] | tuple[()] = ()
        """Operations of this kind cannot be published."""

    def publish(self, op: Op, *more: Op) -> None:
        for each in (op, *more):
            encode_op(each)
            if isinstance(each, self.refuses):
                raise OpRefused("as a test wants")
        for each in (op, *more):
            self.ops.append(each)
            self.fleet.apply(each)

    def said(self, kind: type[Any]) -> list[Any]:
        """Published operations of one kind."""
        return [op for op in self.ops if isinstance(op, kind)]


class _Publishes(Protocol):
    def publish(self, op: Op, *more: Op) -> None: ...


def log_port(
    shared: _Publishes,
    time: VirtualTime,
    replica: str = "r1",
    replicas: Callable[[], tuple[str, ...]] = lambda: ("r1",),
    **status: Any,
) -> LogPort:
    """The log of a fake replica; fields of its status may be functions, called at each look."""

    def now() -> LogStatus:
        said = {name: value() if callable(value) else value for name, value in status.items()}
        return replace(ALONE_STATUS, replicas=replicas(), **said)

    return LogPort(replica, shared.publish, time.clock.now_us, now, replicas)


def registry(shared: FakeShared, time: VirtualTime, **rules: Any) -> Registry:
    """A registry with fake pools."""
    given: dict[str, Any] = {
        "replica": "r1",
        "breaker": BreakerRules(5, 2, 10.0, ejected_ratio_max=1.0),
        "replicas": lambda: ("r1",),
        "make_pool": lambda url: cast(WorkerPool, FakePool(url)),
        **rules,
    }
    log = log_port(shared, time, given.pop("replica"), given.pop("replicas"))
    names = ("health_failure_threshold", "health_success_threshold", "slow_start_s")
    wanted = {"slow_start_s": 0.0} | {name: given.pop(name) for name in names if name in given}
    return Registry(shared.fleet, log, HealthRules(**wanted), **given)


def pool_of(local: LocalWorker) -> FakePool:
    return cast(FakePool, local.pool)


def nobody_encodes(request: ClientRequest, connection: ClientConnection) -> Exchange:
    raise AssertionError("this bench has no encoders")


class Bench:
    """A gateway in front of healthy fake workers.

    Args:
        workers: Number of workers.
        keys: Keys of tenants; None without a keys file.
        limiter: Limiter of the tenants.
        requests_max: Number of requests for which there are open files.
        spans: Makes the spans of requests; None: tracing is off.
        rules: Rules of the fold; None: length buckets, and the classes of the settings.
        sections: Sections of the settings.
    """

    def __init__(
        self,
        workers: int = 2,
        keys: Keyring | None = None,
        limiter: Limiter | None = None,
        requests_max: int = sys.maxsize,
        spans: Spans | None = None,
        rules: FleetRules | None = None,
        **sections: dict[str, Any],
    ) -> None:
        self.time = VirtualTime()
        self.settings = settings = Settings.model_validate(sections)
        self.status = ALONE_STATUS
        self.shared = FakeShared(
            rules or FleetRules(buckets=LengthBuckets(), weight_of=weights(settings.queue.classes))
        )
        self.upstreams: list[FakeUpstream] = []
        self.registry = registry(
            self.shared,
            self.time,
            make_pool=lambda url: cast(WorkerPool, FakePool(url, self.upstreams)),
        )
        self.log: list[dict[str, object]] = []
        self.trace: list[TraceLine] = []
        self.metrics = Metrics("test")
        self.handovers: dict[str, Handover] = {}
        key = settings.server.api_key
        self.door = Door(
            admin_key=None if key is None else key.get_secret_value().encode(),
            tenant_header=settings.tenancy.tenant_header.encode(),
            keys=keys,
        )
        log = LogPort(
            "r1",
            self.shared.publish,
            self.time.clock.now_us,
            lambda: self.status,
            lambda: self.status.replicas,
        )
        self.core = Core(self.shared.fleet, self.registry, log)
        self.pairs = PairPlugin(
            settings, self.core, self.handovers, loop=cast(Any, self.time), now_s=self.time.time
        )
        reader = RequestReader(
            settings,
            cached_as=self.registry.cached_as,
            listed_as=self.registry.listed_as,
            door=self.door,
            traced=spans is not None,
        )
        self.told: dict[int, str] = {}
        self.sessions = Sessions(settings.placement, self.shared.fleet, reader.hasher, self.told.__setitem__)
        self.gateway = Gateway(
            settings,
            self.core,
            reader,
            Telemetry(
                metrics=self.metrics,
                request_log=self.log.append,
                trace_request=self.trace.append,
                spans=spans,
            ),
            Plugins(
                self.pairs,
                limiter,
                make_shadow=lambda placement: Shadow(
                    make_policy(placement.shadow_policy, placement.shadow_policy_options),
                    self.shared.fleet,
                    placement.shadow_ratio,
                    functools.partial(self.metrics.shadowed, placement.shadow_policy),
                ),
                sessions=self.sessions,
            ),
            loop=cast(Any, self.time),
            now_s=self.time.time,
            requests_max=requests_max,
        )
        keeper = StreamKeeper(settings, reader)
        self._start = starting(self.gateway, nobody_encodes, self.pairs.share, maker_of=keeper.maker_of)
        self.clients: list[FakeClient] = []
        for number in range(workers):
            self.add(f"w{number}:80")

    def add(self, worker_id: str) -> LocalWorker:
        """Add a worker and find it healthy."""
        self.registry.add(f"http://{worker_id}")
        local = self.local(worker_id)
        self.registry.probed(local, ok=True, refused=False, detail="")
        return local

    def local(self, worker_id: str) -> LocalWorker:
        local = self.registry.get(worker_id)
        assert local is not None
        return local

    def start(
        self,
        body: bytes | dict[str, Any],
        *,
        path: bytes = b"/v1/chat/completions",
        headers: Sequence[Header] = (),
    ) -> tuple[RequestExchange, FakeClient]:
        """A client's request."""
        client = FakeClient()
        self.clients.append(client)
        now_s = self.time.time()
        request = ClientRequest(
            RequestHead(b"POST", path, headers=headers),
            body if isinstance(body, bytes) else orjson.dumps(body),
            "127.0.0.1",
            now_s,
        )
        exchange = self._start(request, client)
        assert isinstance(exchange, RequestExchange)
        return exchange, client

    def count(self, failures: Sequence[Failure]) -> None:
        """Let failures count against the workers."""
        now_us = self.time.clock.now_us()
        for failure in failures:
            self.registry.circuits.failed(failure.local, now_us, failure.sent_us, failure.code)

    @property
    def upstream(self) -> FakeUpstream:
        """The one request that a worker has now."""
        (live,) = [upstream for upstream in self.upstreams if upstream.live]
        return live

    def check(self) -> None:
        """Check the invariants at the end of all exchanges, successful or not."""
        attempts = {op.request_id: [op] for op in self.shared.said(Placed)}
        assert len(attempts) == len(self.shared.said(Placed)) == sum(each.workers for each in self.upstreams)
        for op in self.shared.ops:
            if isinstance(op, FirstToken | Finished):
                attempts[op.request_id].append(op)
        for placed, *rest in attempts.values():
            assert isinstance(placed, Placed)
            kinds = [type(op) for op in rest]
            assert kinds in ([Finished], [FirstToken, Finished])
        loads = self.shared.fleet.loads
        assert not loads.requests
        for column in (
            loads.prefill_us,
            loads.prefill_tokens,
            loads.inflight_requests,
            loads.inflight_tokens,
        ):
            assert not column.any()
        assert self.gateway.sending.inflight == 0
        assert all(client.over for client in self.clients)
        assert not any(upstream.live for upstream in self.upstreams)
        said = len(self.shared.ops)
        self.time.advance(CALM_S)
        assert (self.time.pending, len(self.shared.ops)) == (0, said)
        assert len(self.log) == len(self.clients)
