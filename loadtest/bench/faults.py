"""What each failure of Valkey or of a replica costs a fleet under steady load.

    python -m loadtest.bench.faults                       every fault, each lasting 30 s: 15 minutes
    python -m loadtest.bench.faults --fault paused slow   some of them
    python -m loadtest.bench.faults --list

For each fault: four replicas and four emulated engines as processes, a Valkey of its own, load before
the fault, during it and after it (`loadtest.chaos.load`). One row a fault:

    failed       requests with an error, a broken stream or no answer within 30 s
    before, during   TTFT of the requests sent before the fault struck and while it lasted, P50/P99 in ms
    visible      from its beginning until every replica it hits says in /readiness that it is degraded
    gone         from its end until none says so any more; from its beginning if it passes by itself
    buffered     most operations that one replica kept because it could not send them
    dropped      operations dropped, by all replicas
    equal        whether all replicas, and one started afterwards, decide the same at the end

Client, engines and gateways share the machine: compare before with during, not with other machines.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from loadtest.chaos import FAULTS, Fault, Replica, Served, Stage, SteadyLoad, disagreements, settled, staged
from loadtest.engine import EngineSettings
from loadtest.processes import Child, free_port
from loadtest.scenario import engine_flags
from loadtest.workload import MODEL

ENGINE = EngineSettings(models=(MODEL,), prefill_tokens_per_s=100_000, prefill_base_ms=2, tpot_ms=10)
ENGINES = 4
POLL_S = 0.02
RECOVERY_S_MAX = 60.0
TRANSIENT_S = 5.0
KILLED = "replica killed"


@dataclass(frozen=True, slots=True)
class Row:
    """What one fault cost; see the module."""

    fault: str
    requests: int
    failed: int
    before_ms: tuple[float, float]
    during_ms: tuple[float, float]
    visible_s: float | None
    gone_s: float | None
    buffered_ops_max: int
    dropped_ops: int
    equal: str


@dataclass(slots=True)
class _Watch:
    """What replicas say about themselves, asked again and again."""

    replicas: list[Replica]
    hit: list[Replica]
    visible_at_s: float | None = None
    gone_at_s: float | None = None
    buffered_ops_max: int = 0

    async def run(self) -> None:
        """Ask until cancelled. A replica that was degraded once has shown it, whatever the others do."""
        loop = asyncio.get_running_loop()
        seen: set[str] = set()
        while True:
            degraded = {replica.url for replica in self.hit if await replica.degraded()}
            seen |= degraded
            if self.visible_at_s is None and len(seen) == len(self.hit):
                self.visible_at_s = loop.time()
            if degraded:
                self.gone_at_s = None
            elif seen and self.gone_at_s is None:
                self.gone_at_s = loop.time()
            for replica in self.replicas:
                buffered_ops = int(await replica.metric("cacheway_log_buffered_ops"))
                self.buffered_ops_max = max(self.buffered_ops_max, buffered_ops)
            await asyncio.sleep(POLL_S)


class _Fleet:
    """The processes of one row."""

    def __init__(
        self, stack: contextlib.AsyncExitStack, engine_urls: list[str], flags: Sequence[str]
    ) -> None:
        self._stack = stack
        self._engine_urls = engine_urls
        self._flags = flags
        self._directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cw-faults-")))
        self.children: list[Child] = []

    async def replica(self, redis_url: str) -> Replica:
        """Start a replica and wait until it is warm."""
        port, name = free_port(), f"r{len(self.children) + 1}"
        arguments = ["serve", "--host", "127.0.0.1", "--port", str(port), "--replica-id", name]
        arguments += ["--worker-urls", *self._engine_urls, "--redis-url", redis_url, "--namespace", "faults"]
        arguments += ["--congestion-max", "0", *self._flags]
        child = await self._stack.enter_async_context(Child(name, arguments, self._directory))
        self.children.append(child)
        url = f"http://127.0.0.1:{port}"
        await child.wait_for_answer(f"{url}/readiness")
        client = httpx.AsyncClient(base_url=url, timeout=30.0, trust_env=False)
        replica = Replica(await self._stack.enter_async_context(client))
        await replica.warmed()
        return replica


async def measure(fault: Fault, options: argparse.Namespace, engine_urls: list[str]) -> Row:
    """Run one fault from start to end."""
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        stage = await stack.enter_async_context(staged(fault))
        fleet = _Fleet(stack, engine_urls, options.flags)
        replicas = list(
            await asyncio.gather(
                *(fleet.replica(fault.url_of(stage, number)) for number in range(options.replicas))
            )
        )
        watch = _Watch(replicas, replicas[1::2] if fault.half else replicas)
        load = await stack.enter_async_context(
            SteadyLoad([replica.url for replica in replicas], rate_per_s=options.rate)
        )
        await asyncio.sleep(options.before)
        if not fault.lasting and not fault.sentinel:
            await stage.server.keep_copy()
            await asyncio.sleep(options.before)
        watcher = asyncio.create_task(watch.run(), name="watch")
        struck_s = loop.time()
        async with fault.strike(stage):
            await asyncio.sleep(options.duration if fault.lasting else TRANSIENT_S)
            mended_s = loop.time() if fault.lasting else struck_s
        equal = await _recovered(fleet, fault, stage, load, replicas)
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher
        return Row(
            fault=fault.name,
            requests=len(load.served),
            failed=len(load.failed),
            before_ms=_ttft_ms(served for served in load.served if served.sent_s < struck_s),
            during_ms=_ttft_ms(
                served
                for served in load.served
                if struck_s <= served.sent_s < max(mended_s, struck_s + TRANSIENT_S)
            ),
            visible_s=None if watch.visible_at_s is None else watch.visible_at_s - struck_s,
            gone_s=None if watch.gone_at_s is None else max(0.0, watch.gone_at_s - mended_s),
            buffered_ops_max=watch.buffered_ops_max,
            dropped_ops=sum(
                [int(await replica.metric("cacheway_ops_dropped_total")) for replica in replicas]
            ),
            equal=equal,
        )


async def _recovered(
    fleet: _Fleet, fault: Fault, stage: Stage, load: SteadyLoad, replicas: list[Replica]
) -> str:
    """Let the load go on for a while, then compare everybody, and a newcomer; ``yes`` or what differs."""
    await asyncio.sleep(TRANSIENT_S)
    await load.stop()
    try:
        await settled(replicas, RECOVERY_S_MAX)
        together = [*replicas, await fleet.replica(stage.url)]
        await settled(together, RECOVERY_S_MAX)
    except TimeoutError as error:
        return f"not settled: {error}"
    differing = await disagreements(together, load.prompts)
    return "yes" if not differing else f"{len(differing)} of {len(load.prompts)} prompts: {differing[0]}"


async def measure_kill(options: argparse.Namespace, engine_urls: list[str]) -> Row:
    """Kill one replica; only requests on its own connections may fail."""
    loop = asyncio.get_running_loop()
    fault = replace(FAULTS[0], name=KILLED)
    async with contextlib.AsyncExitStack() as stack:
        stage = await stack.enter_async_context(staged(fault))
        fleet = _Fleet(stack, engine_urls, options.flags)
        victim, *replicas = [await fleet.replica(stage.url) for _ in range(options.replicas)]
        load = await stack.enter_async_context(
            SteadyLoad([replica.url for replica in (victim, *replicas)], rate_per_s=options.rate)
        )
        await asyncio.sleep(options.before)
        struck_s = loop.time()
        load.urls.remove(victim.url)  # as a balancer does, whose next check fails
        await fleet.children[0].kill()
        gone_at_s = await _forgotten(replicas)
        equal = await _recovered(fleet, fault, stage, load, replicas)
        innocent = [served for served in load.failed if served.replica != victim.url]
        return Row(
            fault=f"{KILLED} ({len(load.failed) - len(innocent)} on its connections)",
            requests=len(load.served),
            failed=len(innocent),
            before_ms=_ttft_ms(served for served in load.served if served.sent_s < struck_s),
            during_ms=_ttft_ms(served for served in load.served if struck_s <= served.sent_s < gone_at_s),
            visible_s=gone_at_s - struck_s,
            gone_s=gone_at_s - struck_s,
            buffered_ops_max=0,
            dropped_ops=0,
            equal=equal,
        )


async def _forgotten(replicas: list[Replica]) -> float:
    """Wait until the survivors know only each other; when that was."""
    async with asyncio.timeout(RECOVERY_S_MAX):
        while any([len((await replica.shared())["replicas"]) > len(replicas) for replica in replicas]):  # noqa: ASYNC110 - another process's state
            await asyncio.sleep(POLL_S)
    return asyncio.get_running_loop().time()


def _ttft_ms(served: Iterable[Served]) -> tuple[float, float]:
    """P50 and P99, milliseconds; 0 if there is nothing."""
    times = sorted(one.ttft_s * 1e3 for one in served if one.ttft_s is not None)
    if not times:
        return 0.0, 0.0
    return times[len(times) // 2], times[min(len(times) - 1, len(times) * 99 // 100)]


def _table(rows: Sequence[Row], caption: str) -> Table:
    table = Table(title="Faults under steady load", caption=caption)
    for name in ("fault", "requests", "failed", "TTFT ms before", "during", "visible s", "gone s"):
        table.add_column(name, justify="left" if name == "fault" else "right")
    for name in ("buffered", "dropped", "equal"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.fault,
            str(row.requests),
            str(row.failed),
            "{:.0f}/{:.0f}".format(*row.before_ms),
            "{:.0f}/{:.0f}".format(*row.during_ms),
            "never" if row.visible_s is None else f"{row.visible_s:.2f}",
            "never" if row.gone_s is None else f"{row.gone_s:.2f}",
            str(row.buffered_ops_max),
            str(row.dropped_ops),
            row.equal.split(":", 1)[0],
        )
    return table


async def _run(options: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    async with contextlib.AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cw-faults-")))
        arguments = ["engine", "--port", "0", "--engines", str(ENGINES), *engine_flags(ENGINE)]
        engines = await stack.enter_async_context(Child("engines", arguments, directory))
        ready = await engines.wait_for_line("cacheway engine ready:")
        urls = [word for word in ready.split() if word.startswith("http://")]
        control = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, timeout=30.0))
        for name in options.fault:
            for url in urls:
                (await control.post(f"{url}/flush_cache")).raise_for_status()
            fault = next((fault for fault in FAULTS if fault.name == name), None)
            row = await (measure_kill(options, urls) if fault is None else measure(fault, options, urls))
            rows.append(row)
            print(json.dumps(asdict(row)), file=sys.stderr, flush=True)
    return rows


def main() -> None:
    """Run the faults and print the table; one JSON line for each goes to standard error as it ends."""
    names = [*(fault.name for fault in FAULTS), KILLED]
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.faults", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--list", action="store_true", help="list the faults and stop")
    parser.add_argument("--fault", nargs="+", default=names, choices=names, metavar="NAME", help="only these")
    parser.add_argument("--replicas", type=int, default=4, help="replicas (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=40.0, help="requests per second (default: %(default)s)")
    parser.add_argument(
        "--before", type=float, default=10.0, help="seconds of load before (default: %(default)s)"
    )
    parser.add_argument(
        "--duration", type=float, default=30.0, help="seconds a fault lasts (default: %(default)s)"
    )
    parser.add_argument("flags", nargs="*", default=[], help="more flags of `cacheway serve`, behind --")
    options = parser.parse_args()
    if options.list:
        print("\n".join(names))
        return
    rows = asyncio.run(_run(options))
    caption = f"{options.replicas} replicas, {options.rate:g} requests/s, {options.duration:g} s a fault"
    Console(width=140).print(_table(rows, caption))
    for row in rows:
        if ":" in row.equal:
            print(f"{row.fault}: {row.equal}")


if __name__ == "__main__":
    main()
