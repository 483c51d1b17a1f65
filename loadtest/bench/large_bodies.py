"""What large uploads cost the others, and what they cost in memory: a stream beside 200 bodies of 4 MB.

    python -m loadtest.bench.large_bodies --uploads 200 --megabytes 4

One gateway (``cacheway serve``, one process) stands in front of two emulated engines: one streams an
answer to a prompt of 1 KB, a token every 10 ms, the other takes the uploads. All uploads begin at once,
each on a raw socket of its own, and again until every one was answered ``--rounds`` times. The stream
is read by a process of its own, first for a while without uploads, then beside them:

    delay     gap between two reads of the stream, minus the engine's 10 ms
    lag       how late the gateway's event loop came to what was due (its own metric)
    memory    the gateway's peak resident memory beyond that of before, per body in flight

Engines, uploads and stream share the machine with the gateway, so on few cores delay and lag include
waiting for a core.
"""

import argparse
import asyncio
import itertools
import json
import os
import re
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path

import httpx
import uvloop
from prometheus_client.parser import text_string_to_metric_families

from loadtest.processes import Child, ChildFailed, free_port

TOKEN_S = 0.01
"""Between two tokens of the stream."""

QUIET_S = 5.0
"""How long the stream is read without uploads."""

STREAM_S_MAX = 600.0
"""No engine streams for longer, so nothing is left running."""

FIRST_READS = 20
"""Not counted: the engine's start."""

TIMEOUT_S = 120.0

_STREAM_ENGINE = (
    *("engine", "--port", "0", "--served-model-name", "stream"),
    *("--tpot-ms", str(TOKEN_S * 1000), "--prefill-tokens-per-s", "1e7", "--max-model-len", "1000000"),
)
_UPLOAD_ENGINE = (
    *("engine", "--port", "0", "--served-model-name", "uploads", "--tpot-ms", "0"),
    *("--prefill-tokens-per-s", "1e9", "--prefill-base-ms", "0.1", "--context-tokens", "1e12"),
    *("--max-model-len", "100000000", "--cache-tokens", "20000000", "--body-bytes-max", str(1 << 30)),
)


@dataclass(frozen=True, slots=True)
class Lag:
    """What ``cacheway_event_loop_lag_seconds`` has counted.

    Attributes:
        counts: Samples up to each bound, by bound in seconds, cumulative.
    """

    counts: dict[float, float]

    def since(self, before: "Lag") -> "Lag":
        """What was counted since an earlier scrape."""
        return Lag({bound: count - before.counts[bound] for bound, count in self.counts.items()})

    def quantile_s(self, share: float) -> float:
        """The bound within which this share of the samples lies, in seconds."""
        wanted = share * self.counts[float("inf")]
        return min(bound for bound, count in self.counts.items() if count >= wanted)


def lag_of(exposition: str) -> Lag:
    """Read the lag from a scrape."""
    return Lag(
        {
            float(sample.labels["le"]): sample.value
            for family in text_string_to_metric_families(exposition)
            for sample in family.samples
            if sample.name == "cacheway_event_loop_lag_seconds_bucket"
        }
    )


def delays_s(reads_s: Sequence[float]) -> list[float]:
    """How much later than due each read of the stream was, given when reads returned."""
    return [max(later - earlier - TOKEN_S, 0.0) for earlier, later in itertools.pairwise(reads_s)]


def percentile(values: Sequence[float], percent: int) -> float:
    """A percentile, by the nearest of the values that are not smaller than the rest."""
    return sorted(values)[min(len(values) * percent // 100, len(values) - 1)]


def body_of(model: str, prompt: str, **more: object) -> bytes:
    """A chat request."""
    messages = [{"role": "user", "content": prompt}]
    return json.dumps({"model": model, "messages": messages, **more}).encode()


def head_of(body: bytes) -> bytes:
    """The head of a request with this body."""
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n" % len(body)
    )


def read_stream(port: int, flows: Event, stop: Event, reads_s: Connection) -> None:
    """Read a stream on a plain socket, say that it flows, and when told to stop, when each read returned.

    In a process of its own: whatever the uploads keep busy, it is not this reader.
    """
    tokens = int(STREAM_S_MAX / TOKEN_S)
    body = body_of("stream", "word " * 200, stream=True, max_tokens=tokens, ignore_eos=True)
    returned_s: list[float] = []
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as connection:
        connection.sendall(head_of(body) + body)
        while not stop.is_set() and connection.recv(1 << 16):
            returned_s.append(time.monotonic())
            if len(returned_s) == FIRST_READS:
                flows.set()
    reads_s.send(returned_s[FIRST_READS:])


async def stream_beside(port: int, work: Callable[[], Awaitable[object]]) -> list[float]:
    """The delays of a stream that is read while something else is done."""
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    flows, stop = context.Event(), context.Event()
    reader = context.Process(target=read_stream, args=(port, flows, stop, sender), daemon=True)
    reader.start()
    sender.close()  # now a reader that fails is noticed as the end of the pipe
    if not await asyncio.to_thread(flows.wait, TIMEOUT_S):
        raise ChildFailed("the stream does not flow")
    try:
        await work()
    finally:
        stop.set()
    return delays_s(await asyncio.to_thread(receiver.recv))


async def upload(port: int, body: bytes, rounds: int) -> None:
    """Send one body again and again, each time when the answer to the one before has come."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with closing(writer):
        for _ in range(rounds):
            writer.write(head_of(body))
            writer.write(body)
            await writer.drain()
            answer = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", answer)
            if not answer.startswith(b"HTTP/1.1 200") or length is None:
                raise RuntimeError(f"an upload failed: {answer[:200]!r}")
            await reader.readexactly(int(length[1]))


def memory_bytes(pid: int, field: str) -> int:
    """``VmRSS`` or ``VmHWM`` of a process."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Run it and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.large_bodies", description="A stream beside large uploads."
    )
    parser.add_argument("--uploads", type=int, default=200, help="at the same time [default 200]")
    parser.add_argument("--megabytes", type=float, default=4.0, help="of each body [default 4]")
    parser.add_argument("--rounds", type=int, default=3, help="uploads on each connection [default 3]")
    parser.add_argument("serve", nargs="*", help="more flags for `cacheway serve`, after --")
    options = parser.parse_args()
    try:
        print(uvloop.run(_measure(options)))
    except ChildFailed as error:
        print(error, file=sys.stderr)
        return 1
    return 0


async def _measure(options: argparse.Namespace) -> str:
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cacheway-bench-")))
        urls = []
        for name, arguments in (("stream", _STREAM_ENGINE), ("uploads", _UPLOAD_ENGINE)):
            engine = await stack.enter_async_context(Child(name, arguments, directory))
            ready = await engine.wait_for_line("cacheway engine ready:")
            urls += [word for word in ready.split() if word.startswith("http://")]
        port = free_port()
        serve = ("serve", "--host", "127.0.0.1", "--port", str(port), "--log-level", "warning")
        # The engine that takes the uploads is busier than any gateway: it may be late with its health.
        patient = ("--health-check-timeout-secs", "60", "--health-check-interval-secs", "60")
        arguments = (*serve, *patient, *options.serve, "--worker-urls", *urls)
        gateway = await stack.enter_async_context(Child("gateway", arguments, directory))
        await gateway.wait_for_answer(f"http://127.0.0.1:{port}/readiness")
        client = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, timeout=TIMEOUT_S))

        async def lag() -> Lag:
            return lag_of((await client.get(f"http://127.0.0.1:{port}/metrics")).text)

        async def uploads() -> None:
            await asyncio.gather(*(upload(port, body, options.rounds) for body in bodies))

        bodies = _bodies(options.uploads, int(options.megabytes * (1 << 20)))
        lags = [await lag()]
        quiet = await stream_beside(port, lambda: asyncio.sleep(QUIET_S))
        lags.append(await lag())
        rss_bytes, cpu_s = memory_bytes(gateway.pid, "VmRSS"), cpu_seconds(gateway.pid)
        beside = await stream_beside(port, uploads)
        cpu_s = cpu_seconds(gateway.pid) - cpu_s
        lags.append(await lag())
        peak_bytes = memory_bytes(gateway.pid, "VmHWM") - rss_bytes
        return table(
            {"without uploads": (quiet, lags[1].since(lags[0])), "beside": (beside, lags[2].since(lags[1]))}
        ) + (
            f"\n{options.uploads} x {options.rounds} uploads of {options.megabytes:g} MB; "
            f"{cpu_s * 1000 / (options.uploads * options.rounds):.1f} ms of CPU each, the stream's included; "
            f"peak memory {peak_bytes / sum(map(len, bodies)):.2f} bodies per upload in flight "
            f"({peak_bytes / 2**20:.0f} MB)"
        )


def _bodies(count: int, length: int) -> list[bytes]:
    """Prompts that differ from their first word on."""
    text = 'the quick brown fox said "hello" to the lazy dog\n' * (length // 52)
    return [body_of("uploads", f"{number} {text}", max_tokens=1) for number in range(count)]


def table(rows: dict[str, tuple[list[float], Lag]]) -> str:
    """A line for each phase."""
    lines = [
        "| stream | chunks | delay P50 | P99 | max | loop lag P50 | P99 | max |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, (delays, lag) in rows.items():
        stream = (statistics.median(delays), percentile(delays, 99), max(delays))
        loop = (lag.quantile_s(0.5), lag.quantile_s(0.99), lag.quantile_s(1.0))
        cells = [f"{value * 1000:.1f} ms" for value in stream] + [f"<= {value * 1000:g} ms" for value in loop]
        lines.append(f"| {name} | {len(delays)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
