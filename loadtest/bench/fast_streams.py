"""Pace of fast streams and its scaling with processes, under the C load generator of the router kit.

    python -m loadtest.bench.fast_streams [--streams 500 1000 2000] [--processes 1 2] [--gap-ms 20]

One ``cacheway serve --workers N`` with its defaults and a Valkey of its own, between the kit's ``mock`` (16
engines, a chunk each ``--gap-ms`` in every stream) and its ``lg`` (`loadtest.bench.peers`; both are C, each
one process, so that they leave the most of a small machine to the gateway). All run on all cores. For each
number of streams and processes: chunks per second with all open, beside those that were due; CPU of the
gateway per chunk; the cores that gateway, mock and lg took; and the transit of a chunk from the mock's send
to lg's read. Where the pace falls behind, the machine is full, and the pace is the most that it carries.
"""

import argparse
import asyncio
import os
import resource
import sys
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec
import uvloop

from loadtest.bench.markdown import table
from loadtest.bench.peers.__main__ import HOME
from loadtest.bench.process_tree import cpu_s, tree_of
from loadtest.processes import ChildFailed, GatewayChild, free_port
from router.child_process import ChildProcess
from router.shared import EmbeddedValkey

ENGINES = 16
"""Enough that no stream waits for one: 256 requests of each are in flight by default."""

STARTS_PER_S = 200
"""Streams that begin in a second: a machine that is full when they do would let some wait for a worker."""

WARM_UP_S = 2.0
PROMPT_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Pace:
    """One run; ``*_cores`` is CPU seconds per second with all streams open.

    Attributes:
        due_per_s: Chunks per second without any delay.
        transit_ms: Median and 99th percentile of the way of a chunk.
    """

    streams: int
    processes: int
    chunks_per_s: float
    due_per_s: float
    chunk_us: float
    gateway_cores: float
    mock_cores: float
    lg_cores: float
    transit_ms: tuple[float, float]

    def row(self) -> list[str]:
        """Cells of the table."""
        return [
            f"{self.streams:,}",
            str(self.processes),
            f"{self.chunks_per_s:,.0f}",
            f"{self.due_per_s:,.0f}",
            f"{self.chunk_us:.1f}",
            *(f"{cores:.2f}" for cores in (self.gateway_cores, self.mock_cores, self.lg_cores)),
            "{:,.1f} / {:,.0f}".format(*self.transit_ms),
        ]


HEADS = (
    "streams",
    "processes",
    "chunks/s",
    "due",
    "gateway, us a chunk",
    "gateway, cores",
    "mock",
    "lg",
    "transit P50 / P99, ms",
)


class _Latencies(msgspec.Struct):
    p50: float
    p99: float


class _Said(msgspec.Struct):
    """The line of lg, as far as it is read."""

    completed: int
    errors: int
    bad_streams: int
    wall_s: float
    transit_ms: _Latencies


def main() -> int:
    """Measure each combination and print the table; the status is 1 if a stream broke."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.fast_streams", description="Pace of many fast streams."
    )
    parser.add_argument("--streams", type=int, nargs="+", default=[500, 1000, 2000], help="[%(default)s]")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2], help="[%(default)s]")
    parser.add_argument("--gap-ms", type=int, default=20, help="[%(default)s]")
    parser.add_argument("--chunks", type=int, default=500, help="of each stream [%(default)s]")
    options = parser.parse_args()
    if not (HOME / "lg").is_file() or not (HOME / "mock").is_file():
        print(f"no lg and mock in {HOME}: see `python -m loadtest.bench.peers --help`", file=sys.stderr)
        return 1
    try:
        rows = uvloop.run(_measured(options))
    except ChildFailed as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    print(f"{os.cpu_count()} cores\n\n{table(HEADS, (row.row() for row in rows), left=0)}")
    return 0


async def _measured(options: argparse.Namespace) -> list[Pace]:
    rows: list[Pace] = []
    for processes in options.processes:
        for streams in options.streams:
            rows.append(await _run(streams, processes, options))
            print(" | ".join(rows[-1].row()), flush=True)
    return rows


async def _run(streams: int, processes: int, options: argparse.Namespace) -> Pace:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cacheway-bench-")))
        log = stack.enter_context((folder / "mock.log").open("wb"))
        valkey = await stack.enter_async_context(EmbeddedValkey())
        first = free_port(row=ENGINES)
        ports = [str(port) for port in range(first, first + ENGINES)]
        flags = [
            "--ports",
            ",".join(ports),
            "--chunks",
            str(options.chunks),
            "--delay-ms",
            str(options.gap_ms),
        ]
        mock = await ChildProcess.start(str(HOME / "mock"), *flags, log=log)
        stack.push_async_callback(mock.end, 1.0)
        serve = ["--workers", str(processes), "--redis-url", valkey.url, "--shutdown-delay-secs", "0"]
        serve += ["--worker-urls", *(f"http://127.0.0.1:{port}" for port in ports)]
        gateway = await stack.enter_async_context(GatewayChild("gateway", serve, folder, "router"))
        await gateway.wait_until_ready()
        while gateway.log.read_bytes().count(b'"gateway.started"') < processes:  # noqa: ASYNC110 - a file
            await asyncio.sleep(0.1)
        await asyncio.sleep(WARM_UP_S)
        before = cpu_s(tree_of(gateway.pid)), cpu_s([mock.pid]), _children_s()
        said = await _load(gateway.port, streams, options.chunks)
        after = cpu_s(tree_of(gateway.pid)), cpu_s([mock.pid]), _children_s()
    gateway_s, mock_s, lg_s = (later - sooner for later, sooner in zip(after, before, strict=True))
    chunks, took_s = streams * options.chunks, said.wall_s - streams / STARTS_PER_S
    return Pace(
        streams,
        processes,
        chunks / took_s,
        1e3 * streams / options.gap_ms,
        1e6 * gateway_s / chunks,
        gateway_s / took_s,
        mock_s / took_s,
        lg_s / took_s,
        (said.transit_ms.p50, said.transit_ms.p99),
    )


async def _load(port: int, streams: int, chunks: int) -> _Said:
    """Open the streams one after the other; return the line that lg prints in the end."""
    flags = f"--port {port} --conc {streams} --n {streams} --stream"
    flags += f" --ramp-ms {1000 * streams // STARTS_PER_S}"
    flags += f" --expect-chunks {chunks} --prompt-bytes {PROMPT_BYTES}"
    lg = await asyncio.create_subprocess_exec(HOME / "lg", *flags.split(), stdout=asyncio.subprocess.PIPE)
    output, _ = await lg.communicate()
    said = msgspec.json.decode(output, type=_Said)
    if said.errors or said.bad_streams or said.completed < streams:
        raise ChildFailed(f"streams broke: {said}")
    return said


def _children_s() -> float:
    """CPU of this process' children that ended, lg among them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
