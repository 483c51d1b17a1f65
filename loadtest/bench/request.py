"""CPU of one request inside the gateway, without sockets.

    python -m loadtest.bench.request [--pairs] [--traced] [--requests 20000] [--profile | --parts]

A real gateway process (protocol, exchange, fold, metrics, request log) runs on a real event loop between
transports that only record writes. 64 clients each send a request, then the workers answer all of them, as
much in flight as in workload W1 of the peers' benchmark. The shared log has no server: operations are encoded
and dropped when the buffer is full.

    small    1 KB chat request, answered in one piece         us per request, Python calls per request
    stream   the same, answered by 100 events, one per read   us per event beyond those of ``small``

With ``--pairs`` each request goes to a prefill and a decode worker, as with SGLang. With ``--traced`` each is
exported as OpenTelemetry spans, to an absent collector. ``--parts`` measures the log line and the metrics of
a request alone, the writer's thread included; with ``PROMETHEUS_MULTIPROC_DIR=$(mktemp -d)`` the metrics of
several processes. Times are process CPU, median of the repeats.
"""

import argparse
import asyncio
import cProfile
import os
import pstats
import socket
import statistics
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, cast

import uvicorn
import uvloop
from rich.console import Console
from rich.table import Table
from uvicorn.server import ServerState

from loadtest.bench.costs import median_us
from policies import Attempt, Chosen, Usage
from router.app import GatewayProcess
from router.gateway import Gateway
from router.gateway.endpoints import Endpoint
from router.gateway.record import RequestRecord
from router.logs import Logs, configure_logs
from router.metric_families import of_kind
from router.metrics import Metrics
from router.proxy import GatewayProtocol
from router.proxy.connection import WorkerConnection
from router.proxy.late_writes import late_writes
from router.settings import Settings

CLIENTS = 64
WORKERS = 4
EVENTS = 100
PROMPT_BYTES = 1024

UNBOUNDED = {"backlog_target_s": 1e6, "backlog_target_s_max": 1e6}
"""A slow machine teaches long prefills: no request may wait for them here."""

ANSWER = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"bench","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"%b"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":256,"completion_tokens":50,"total_tokens":306}}' % (b"x" * 200)
)
EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"bench","choices":'
    b'[{"index":0,"delta":{"content":" token"},"finish_reason":null}]}\n\n'
)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"

REQUEST_LINE: dict[str, object] = {
    "event": "request.finished",
    "request_id": "req-0123456789abcdef01234567",
    "endpoint": "/v1/chat/completions",
    "client": "10.0.0.1",
    "status": 200,
    "outcome": "completed",
    "duration_s": 1.234567,
    "request_bytes": 4096,
    "answer_bytes": 20480,
    "attempts": 1,
    "model": "mimo-v2.5-pro",
    "stream": True,
    "worker_id": "10.0.0.1:8000",
    "reason": "affinity",
    "cached_tokens": 1024,
    "uncached_tokens": 22,
    "estimated_ttft_s": 0.123456,
    "ttft_s": 0.2,
}


class _Transport:
    """Takes written data and calls back; never full, never closed."""

    def __init__(self, sock: socket.socket, written: Callable[[], None]) -> None:
        self._socket = sock
        self._written = written

    def write(self, data: bytes) -> None:
        self._written()

    def writelines(self, pieces: list[bytes]) -> None:
        self._written()

    def get_extra_info(self, name: str, default: object = None) -> object:
        if name == "socket":
            return self._socket
        return default

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def _ignored(self, **_: object) -> None:
        """Nothing to do."""

    set_write_buffer_limits = pause_reading = resume_reading = close = abort = _ignored


class Stage:
    """Gateway process with its clients and workers; create it inside a running event loop."""

    def __init__(self, *, pairs: bool = False, traced: bool = False) -> None:
        loop = asyncio.get_running_loop()
        roles = {"prefill": WORKERS, "decode": WORKERS} if pairs else {"plain": WORKERS}
        self._asked: dict[str, list[WorkerConnection]] = {role: [] for role in roles}
        self._late = late_writes(loop)
        self._socket = socket.socket()  # never connected: it only takes options
        traces = {"enable_trace": traced, "trace_ratio": 1.0, "otlp_traces_endpoint": "http://127.0.0.1:1"}
        settings = {"admission": UNBOUNDED} | ({"observability": traces} if traced else {})
        process = GatewayProcess(Settings.model_validate(settings), redis_url="redis://127.0.0.1:1/0")
        workers = [role for role, count in roles.items() for _ in range(count)]
        for port, role in enumerate(workers, 1):
            process.registry.add(f"http://127.0.0.1:{port}", role=role, labels={"handover": "sglang"})
        for local in process.registry.all():
            process.registry.probed(local, ok=True, refused=False, detail="")
            for _ in range(CLIENTS):
                connection = WorkerConnection(local.pool, loop)
                connection.connection_made(self._worker_transport(connection, local.worker.role))
                local.pool._connections.add(connection)
                local.pool.release(connection)
        config = uvicorn.Config(process.api, http=process.protocol, lifespan="off", log_config=None)
        config.load()
        state = ServerState()
        self._clients: list[GatewayProtocol] = []
        for _ in range(CLIENTS):
            client = process.protocol(config, state, {}, loop)
            client.connection_made(cast("asyncio.Transport", _Transport(self._socket, self._client_heard)))
            self._clients.append(client)
        self.writes = 0

    def close(self) -> None:
        """Give the socket back."""
        self._socket.close()

    def _client_heard(self) -> None:
        self.writes += 1

    def _worker_transport(self, connection: WorkerConnection, role: str) -> asyncio.Transport:
        asked = self._asked[role]
        return cast("asyncio.Transport", _Transport(self._socket, lambda: asked.append(connection)))

    async def round(self, request: bytes, answer: list[bytes]) -> None:
        """Every client sends a request, and every worker answers what it got, read by read."""
        for client in self._clients:
            client.data_received(request)
        self._late.flush()  # as at the end of a turn, but no timer joins in
        for role, asked in self._asked.items():
            assert len(asked) == CLIENTS, "a request did not reach its worker"
            for piece in small_answer() if role == "prefill" else answer:
                for connection in asked:
                    connection.data_received(piece)
            asked.clear()
        await asyncio.sleep(0)


def small_request(*, stream: bool) -> bytes:
    """A chat request with a prompt of `PROMPT_BYTES`, as it comes from a socket."""
    body = (
        b'{"model":"bench","messages":[{"role":"system","content":"You are a helpful assistant."},'
        b'{"role":"user","content":"%b"}],"max_tokens":100%b}'
        % (b"a" * PROMPT_BYTES, b',"stream":true' if stream else b"")
    )
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:30000\r\ncontent-type: application/json\r\n"
        b"accept: */*\r\nuser-agent: bench\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    )


def small_answer() -> list[bytes]:
    """A complete answer in one read."""
    return [
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
        % (len(ANSWER), ANSWER)
    ]


def streamed_answer() -> list[bytes]:
    """The head with the first event, then one event per read."""
    events = [b"%x\r\n%b\r\n" % (len(EVENT), EVENT)] * EVENTS
    return [STREAM_HEAD + events[0], *events[1:-1], events[-1] + b"0\r\n\r\n"]


async def cpu_us(stage: Stage, requests: int, *, stream: bool) -> float:
    """CPU microseconds per request."""
    request, answer = small_request(stream=stream), streamed_answer() if stream else small_answer()
    rounds = max(1, requests // CLIENTS)
    began_s = time.process_time()
    for _ in range(rounds):
        await stage.round(request, answer)
    return (time.process_time() - began_s) * 1e6 / (rounds * CLIENTS)


async def calls(stage: Stage) -> float:
    """Python functions called per small request, those of the event loop's side included."""
    counted = 0

    def count(_: FrameType, event: str, __: Any) -> None:
        nonlocal counted
        counted += event == "call"

    sys.setprofile(count)
    try:
        await stage.round(small_request(stream=False), small_answer())
    finally:
        sys.setprofile(None)
    return counted / CLIENTS


async def opcodes(stage: Stage, rounds: int = 4) -> float:
    """Bytecode instructions executed per small request; the least of some rounds, since timers join in.

    Calls alone hide growth: functions get longer while their number stays.
    """
    counted = 0

    def trace(frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        nonlocal counted
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        counted += event == "opcode"
        return trace

    found, before = [], sys.gettrace()
    for _ in range(rounds):
        counted = 0
        sys.settrace(trace)
        try:
            await stage.round(small_request(stream=False), small_answer())
        finally:
            sys.settrace(before)
        found.append(counted / CLIENTS)
    return min(found)


async def measure(requests: int, repeats: int, *, profile: bool, pairs: bool, traced: bool) -> None:
    """Print the table, or a profile."""
    logs = configure_logs("info", os.open(os.devnull, os.O_WRONLY))
    stage = Stage(pairs=pairs, traced=traced)
    await cpu_us(stage, 2_000, stream=False)
    if profile:
        profiler = cProfile.Profile()
        profiler.enable()
        await cpu_us(stage, requests, stream=False)
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(50)
    else:
        Console().print(await figures(stage, requests, repeats))
    stage.close()
    logs.close()


async def figures(stage: Stage, requests: int, repeats: int) -> Table:
    """Measure by turns, since the machine's speed drifts."""
    smalls, streams = [], []
    for _ in range(repeats):
        smalls.append(await cpu_us(stage, requests, stream=False))
        streams.append(await cpu_us(stage, requests // 20, stream=True))
    small = statistics.median(smalls)
    table = Table("", "median", "min", "max")
    table.add_row("us per small request", f"{small:.1f}", f"{min(smalls):.1f}", f"{max(smalls):.1f}")
    events = sorted((streamed - small) / EVENTS for streamed in streams)
    table.add_row("us per event", f"{statistics.median(events):.2f}", f"{events[0]:.2f}", f"{events[-1]:.2f}")
    table.add_row("Python calls per small request", f"{await calls(stage):.0f}", "", "")
    table.add_row("opcodes per small request", f"{await opcodes(stage):,.0f}", "", "")
    return table


def print_parts(repeats: int) -> None:
    """Print the CPU of the request's log line and of its metrics."""

    def price(name: str, call: Callable[[], object], calls: int = 10_000) -> None:
        def some(_: int) -> None:
            for _ in range(calls):
                call()
            time.sleep(0.05)  # the writer's thread belongs to the price

        print(f"{name:20} {median_us(some, range(repeats)) / calls:8.2f} us")

    with open(os.devnull, "wb") as sink:  # noqa: PTH123 - a device, not a path
        logs = Logs("info", sink.fileno())
        price("request line", lambda: logs.request_log(REQUEST_LINE))
        logs.close()
    metrics = Metrics("bench", multiprocess_dir=os.environ.get("PROMETHEUS_MULTIPROC_DIR"))
    chosen = Chosen(0, 896, 896, 104, 0.1, 0.2, "affinity")
    ended = RequestRecord(
        b"/v1/chat/completions",
        "10.0.0.1",
        0.0,
        4096,
        gateway=cast("Gateway", None),
        bytes_sent=20480,
        endpoint=Endpoint.CHAT,
        attempt=Attempt("a", "10.0.0.1:8000", chosen, 0, 0, 256.0, 0.0),
        ended_s=1.1,
        outcome="completed",
        usage=Usage(1000, 900, 100),
    )

    def request() -> None:
        metrics.decided(("expected_cost", "affinity", 2e-5))
        metrics.streamed(0.1, 0.01, 1.0, 100)
        metrics.ended(ended)

    price("metrics of a request", request)
    price("flush", metrics.flush, 100)
    of_workers = [family for family in of_kind("worker") if family.labels == ("worker",)]
    metrics.readers.append(lambda: [(family, (f"w{i}",), 1.0) for i in range(100) for family in of_workers])
    price("scrape, 100 workers", metrics.exposition, 20)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="CPU of one request inside the gateway, without sockets.")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--pairs", action="store_true", help="let two workers share each request")
    parser.add_argument("--traced", action="store_true", help="tell each request as spans")
    parser.add_argument("--profile", action="store_true", help="print a profile of small requests instead")
    parser.add_argument("--parts", action="store_true", help="measure the log line and the metrics alone")
    arguments = parser.parse_args()
    if arguments.parts:
        print_parts(arguments.repeats)
        return
    uvloop.run(
        measure(
            arguments.requests,
            arguments.repeats,
            profile=arguments.profile,
            pairs=arguments.pairs,
            traced=arguments.traced,
        )
    )


if __name__ == "__main__":
    main()
