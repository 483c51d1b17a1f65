"""A worker's connections: bounded, kept alive, given to requests in order of arrival.

    send --> the idle connection used last
         or  a place in the queue, and a new connection while there are fewer than the bound
         or  refused: the queue is full

A free connection serves, and a failed attempt to connect fails, the request that has waited longest. A stale
connection's request (`router.proxy.connection`) is sent once more, before all others, unless the caller or
`may_resend` forbids it. A request on a fresh connection is never repeated here: the gateway may prefer
another worker. One timer per pool checks connections and queue; limits are noticed up to one check (a quarter
of the shortest limit, at most one second) late, silence within an answer up to two.
"""

import asyncio
import ssl as tls
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from policies import setting
from radix import is_base_url
from router.destinations import Resolve
from router.errors import UpstreamError, WorkerRefused, WorkerUnreachable
from router.proxy.connection import PooledRequest, Upload, WorkerConnection
from router.proxy.headers import ANSWER_HEADERS, may_pass
from router.proxy.known_answers import KnownAnswers
from router.proxy.ports import RequestHead, UpstreamSink, UpstreamUpload

# RFC 9110 section 8.6: these carry no Content-Length when they carry no body.
_BODYLESS_METHODS = frozenset({b"GET", b"HEAD", b"DELETE", b"OPTIONS"})

JOINED_BYTES_MAX = 64 * 1024
"""Size up to which a copy into one buffer is cheaper than several buffers in one system call."""

CHECKED_AT_ONCE = 500
"""Connections checked in one turn of the loop: 0.3 to 0.9 ms (10,000 at once took 5 to 18 ms)."""


@dataclass(frozen=True)
class UpstreamRules:
    """Timeouts and the connection bound of one worker.

    Connecting includes the wait for a connection. The first byte is that of the body, since vLLM sends a
    stream's head before it has begun; its limit also holds for a worker that takes nothing of a request. Time
    during which the client was paused does not count as idle.
    """

    connect_timeout_s: float = setting(
        5.0,
        "Longest time to connect to a worker, TLS included, in seconds; then another worker is tried.",
        gt=0,
        live=True,
    )
    first_byte_timeout_s: float = setting(
        300.0,
        "Longest wait for the first byte of a streamed answer, in seconds. It includes the wait in the "
        "engine's queue and the prefill, which takes minutes for the longest prompts. Answers that are "
        "not streamed start when they are complete: server.request_timeout_s limits those.",
        gt=0,
        live=True,
    )
    idle_timeout_s: float = setting(
        120.0,
        "Longest gap between two pieces of an answer, in seconds; then the stream ends with an error event.",
        flag="stream-idle-timeout-secs",
        gt=0,
        live=True,
    )
    connections_max: int = setting(
        8192,
        "Most connections of one process to one worker; a request takes one until its answer ends. Beyond "
        "it as many requests wait for one, for at most upstream.connect_timeout_s. The default leaves the "
        "queue to the engine, and eight processes with that many reach the 65,535 open files that vLLM and "
        "SGLang allow themselves. A stream takes two open files of ours: the start warns if the hard limit "
        "(ulimit -Hn) is below twice this.",
        flag="upstream-connections-max",
        ge=1,
    )
    keepalive_s: float = setting(
        3.0,
        "Idle time after which we close a connection to a worker, in seconds. Keep it below the engine's "
        "own (5 s for uvicorn, which SGLang and vLLM use), else requests are sent into closing "
        "connections.",
        flag="upstream-keepalive-secs",
        ge=0,
        live=True,
    )


class WorkerPool:
    """The connections to one worker, made inside a running event loop; counts are since then.

    Attributes:
        rules: Current rules; a change holds for requests in flight, too.
        authorization: Header line with the key that the worker is shown; may be empty.
        reused: Requests that began on a kept connection; `retried` of them met a stale one.
        on_idle_closed: Called when the worker closes an idle connection before the gateway: it may be gone.
    """

    def __init__(
        self,
        url: str,
        rules: UpstreamRules | None = None,
        *,
        waiting_max: int = 1024,
        ssl: tls.SSLContext | None = None,
        resolve: Resolve | None = None,
        answer_headers: Collection[bytes] = (),
        may_resend: Callable[[], bool] = lambda: True,
    ) -> None:
        """Prepare without connecting; raise `ValueError` for a malformed URL.

        Args:
            url: ``http://`` or ``https://``, host, optional port and base path. IPv6 in brackets.
            rules: Timeouts and the connection bound.
            waiting_max: Most requests waiting for a connection; more fail with ``upstream_pool_full``.
            ssl: For ``https``; None verifies against the system's authorities.
            resolve: Finds the addresses that may be connected to; None takes the name as it is.
            answer_headers: Answer headers that pass beside `ANSWER_HEADERS`, in lower case.
            may_resend: Asked, and charged, before a request on a stale connection is sent again.
        """
        if not is_base_url(url):
            raise ValueError(f"not a worker URL: {url!r}; write http://host:port or https://host:port")
        parts = urlsplit(url)
        self.origin = f"{parts.scheme}://{parts.netloc}"
        self.rules = rules or UpstreamRules()
        self.authorization = b""
        self.opened = 0
        self.reused = 0
        self.retried = 0
        self.may_resend = may_resend
        self.on_idle_closed: Callable[[], None] = lambda: None
        self._resolve = resolve
        self.answer_headers = ANSWER_HEADERS.union(filter(may_pass, answer_headers))
        self.answers = KnownAnswers()
        self._ssl = (ssl or tls.create_default_context()) if parts.scheme == "https" else None
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._ssl is not None else 80)
        self._base_path = parts.path.rstrip("/").encode("ascii")
        self._host_line = b" HTTP/1.1\r\nhost: " + parts.netloc.encode("ascii") + b"\r\n"
        self._waiting_max = waiting_max
        self._loop = asyncio.get_running_loop()
        self._connections: set[WorkerConnection] = set()
        self._idle: list[WorkerConnection] = []
        self._waiting: OrderedDict[PooledRequest, None] = OrderedDict()
        self._connecting: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._draining = False
        self._closed = False

    @property
    def open(self) -> int:
        """Connections that are set up, idle or in use."""
        return len(self._connections)

    @property
    def idle(self) -> int:
        """Connections kept for the next request."""
        return len(self._idle)

    @property
    def in_use(self) -> int:
        """Connections with a request on them."""
        return len(self._connections) - len(self._idle)

    @property
    def waiting(self) -> int:
        """Requests without a connection."""
        return len(self._waiting)

    def send(
        self,
        head: RequestHead,
        lines: bytes,
        body: Sequence[bytes | memoryview],
        sink: UpstreamSink,
        *,
        patient: bool = False,
        resend: bool = True,
        upload: Upload | None = None,
    ) -> UpstreamUpload:
        """Send a request; return at once, before the sink is called.

        Args:
            head: Its method, path and query. The path is appended to the base path of the worker's URL.
            lines: Header lines, without those of a connection (`router.proxy.headers`).
            body: Flat pieces, sent in order and not copied if large: never change them.
            sink: Receives the answer.
            patient: Do not limit the wait for the first byte of an answer that comes whole.
            resend: Send it once more if it met a stale connection.
            upload: Bytes written after the body, while the request is on its way. It goes out on a new
                connection, since it could not be repeated after a stale one.
        """
        method, target, body_bytes = head.method, head.path, sum(map(len, body))
        if upload is not None:
            framing = upload.framing + b"\r\n"
        elif body_bytes or method not in _BODYLESS_METHODS:
            framing = b"content-length: %d\r\n\r\n" % body_bytes
        else:
            framing = b"\r\n"
        if head.query:
            target += b"?" + head.query
        pieces = method, b" ", self._base_path, target, self._host_line, self.authorization, lines, framing
        data = b"".join((*pieces, *body)) if body_bytes <= JOINED_BYTES_MAX else (b"".join(pieces), *body)
        request = PooledRequest(self, data, sink, method == b"HEAD", patient, resend)
        if upload is not None:
            request.upload = upload
        if self._idle and upload is None:
            self.reused += 1
            self._idle.pop().start(request)
        elif self._closed:
            self._fail_soon(request, "is no longer used", "upstream_pool_closed")
        elif len(self._waiting) >= self._waiting_max:
            self._fail_soon(request, "has no free connection and a full queue", "upstream_pool_full")
        else:
            request.queued_s = self._loop.time()
            self._waiting[request] = None
            self._connect_more()
        return request

    def drain(self) -> None:
        """Close idle connections now and the others when their answers end. Requests are still served."""
        self._draining = True
        for connection in tuple(self._idle):
            connection.drop()

    def close(self) -> None:
        """Close everything at once; waiting requests and those in flight fail. Idempotent."""
        self._draining = self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in self._connecting:
            task.cancel()
        error = WorkerUnreachable(
            f"{self.origin} is no longer used", code="upstream_pool_closed", asked=False
        )
        while self._waiting:
            self._waiting.popitem(last=False)[0].fail(error)
        for connection in tuple(self._connections):
            connection.give_up("is no longer used")

    # Called by requests and connections

    def forget(self, request: PooledRequest) -> None:
        """Drop a waiting request that was aborted."""
        self._waiting.pop(request, None)

    def release(self, connection: WorkerConnection) -> None:
        """Give a free connection to the next request, or keep it."""
        if self._waiting:
            connection.start(self._waiting.popitem(last=False)[0])
        elif self._draining:
            connection.drop()
        else:
            connection.idle_since_s = self._loop.time()
            self._idle.append(connection)

    def lost(self, connection: WorkerConnection) -> None:
        """Free the place of a closed connection."""
        if connection in self._connections:
            self._connections.remove(connection)
            if connection in self._idle:
                self._idle.remove(connection)
            self._connect_more()

    def retry(self, request: PooledRequest) -> None:
        """Send the request of a stale connection again, before all others."""
        if self._closed:
            self._fail_soon(request, "is no longer used", "upstream_pool_closed")
            return
        self.on_idle_closed()
        request.retried = True
        self.retried += 1
        request.queued_s = self._loop.time()
        self._waiting[request] = None
        self._waiting.move_to_end(request, last=False)
        self._connect_more()

    # Connecting

    def _connect_more(self) -> None:
        while (
            len(self._connecting) < len(self._waiting)
            and len(self._connections) + len(self._connecting) < self.rules.connections_max
        ):
            task = self._loop.create_task(self._connect(), name=f"connect to {self.origin}")
            self._connecting.add(task)
        if self._timer is None and not self._closed and (self._waiting or self._connections):
            self._timer = self._loop.call_later(self._tick_s(), self._tick)

    def _tick_s(self) -> float:
        rules = self.rules
        timeouts = rules.connect_timeout_s, rules.first_byte_timeout_s, rules.idle_timeout_s
        return min(1.0, min(*timeouts, rules.keepalive_s) / 4)

    async def _connect(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        error: UpstreamError | None = None
        try:
            async with asyncio.timeout(self.rules.connect_timeout_s):
                connection = await self._connection()
        except TimeoutError:
            error = self._too_slow_to_connect()
        except ConnectionRefusedError:
            error = WorkerRefused(f"{self.origin} refuses connections")
        except (OSError, UnicodeError) as cause:
            error = WorkerUnreachable(f"cannot connect to {self.origin}: {cause}", asked=False)
        finally:
            self._connecting.discard(task)
        if error is None and connection.closed:
            message = f"{self.origin} closed the connection as soon as it was made"
            error = WorkerUnreachable(message, asked=False)
        if error is None:
            self.opened += 1
            self._connections.add(connection)
            self.release(connection)
        elif self._waiting:
            self._waiting.popitem(last=False)[0].fail(error)
        self._connect_more()

    async def _connection(self) -> WorkerConnection:
        addresses = [self._host] if self._resolve is None else await self._resolve(self._host, self._port)
        name = None if self._ssl is None else self._host
        for address in addresses:
            try:
                _, connection = await self._loop.create_connection(
                    lambda: WorkerConnection(self, self._loop),
                    address,
                    self._port,
                    ssl=self._ssl,
                    server_hostname=name,
                )
            except OSError:
                if address == addresses[-1]:
                    raise
            else:
                return connection
        raise OSError(f"{self._host} has no address")

    def _too_slow_to_connect(self) -> WorkerUnreachable:
        return WorkerUnreachable(
            f"cannot connect to {self.origin} within {self.rules.connect_timeout_s:g} s",
            code="upstream_connect_timeout",
            asked=False,
        )

    def _fail_soon(self, request: PooledRequest, why: str, code: str) -> None:
        error = WorkerUnreachable(f"{self.origin} {why}", code=code, asked=False)
        self._loop.call_soon(request.fail, error)

    # The clock

    def _tick(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        while self._waiting and now_s - next(iter(self._waiting)).queued_s > self.rules.connect_timeout_s:
            request, _ = self._waiting.popitem(last=False)
            request.fail(
                self._too_slow_to_connect()
                if self._connecting
                else WorkerUnreachable(
                    f"{self.origin} had no free connection for {self.rules.connect_timeout_s:g} s",
                    code="upstream_pool_full",
                    asked=False,
                )
            )
        while self._idle and now_s - self._idle[0].idle_since_s > self.rules.keepalive_s:
            self._idle[0].drop()
        self._check(tuple(self._connections), now_s)
        self._connect_more()

    def _check(self, connections: tuple[WorkerConnection, ...], now_s: float) -> None:
        for connection in connections[:CHECKED_AT_ONCE]:
            connection.check(now_s)
        if len(connections) > CHECKED_AT_ONCE:
            self._loop.call_soon(self._check, connections[CHECKED_AT_ONCE:], now_s)
