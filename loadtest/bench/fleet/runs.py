"""One run: workers, a router and a load, each of them fresh, from start to outcome."""

import datetime
import statistics
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from loadtest.bench.child import started
from loadtest.bench.fleet.cells import PREFILL_TOKENS_PER_S, Cell, Router
from loadtest.bench.fleet.load import FleetLoad, FleetLoadReport, drive
from loadtest.bench.fleet.results import Outcome
from loadtest.bench.fleet.routers import routers_started
from loadtest.bench.fleet.script import Traces
from loadtest.bench.fleet.worker import WorkerPlan, WorkerReport, serve
from loadtest.bench.process_tree import cpu_s
from loadtest.processes import ChildFailed
from loadtest.unchanged.revision import present

WORKERS = 8
WINDOW_STEP_S = 300.0
"""Shift in the trace between the conversations of two repetitions."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Length of a run in trace seconds, and trace seconds in a second."""

    seconds: float
    speed: float


async def run(cell: Cell, router: Router, repetition: int, pace: Pace, traces: Traces) -> Outcome:
    """Run one router in one cell once; `ChildFailed` if a process does not come up, or ends early."""
    worker_plan = WorkerPlan(WORKERS, cell.cache_tokens, PREFILL_TOKENS_PER_S, pace.speed)
    work = traces.encoded_work(cell.users, repetition + 1, repetition * WINDOW_STEP_S, pace.seconds)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cacheway-bench-")))
        path = folder / "work.msgpack"
        path.write_bytes(work)
        plan = FleetLoad(str(path), cell.users, pace.seconds, pace.speed)
        load = await stack.enter_async_context(started(drive, plan))
        workers = await stack.enter_async_context(started(serve, worker_plan))
        ports = await workers.next(list[int])
        if ports is None:
            raise ChildFailed("the workers did not start")
        routers = await stack.enter_async_context(routers_started(router, ports, cell.replicas, folder))
        if not await load.next(bool):
            raise ChildFailed("the load did not start")
        before = _machine_s(), routers.cpu_s(), cpu_s((workers.pid,))
        load.tell(routers.ports)
        report = await load.next(FleetLoadReport)
        after = _machine_s(), routers.cpu_s(), cpu_s((workers.pid,))
        workers.stop()
        worked = await workers.next(list[WorkerReport])
        if report is None or worked is None:
            raise ChildFailed("the load or the workers ended early")
    (busy_s, total_s), router_cpu_s, worker_cpu_s = _differences(before, after)
    ttft_s = sorted(report.ttft_s) or [0.0]
    busy = [worker.busy_s for worker in worked]
    requests = max(1, sum(worker.requests for worker in worked))
    return Outcome(
        cell=cell.key,
        router=router,
        repetition=repetition,
        revision=present().decisions,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        seconds=pace.seconds,
        speed=pace.speed,
        requests=len(report.ttft_s),
        failed=sum(report.problems.values()),
        hit_ratio=sum(w.cached_tokens for w in worked) / max(1, sum(w.prompt_tokens for w in worked)),
        ideal_hit_ratio=report.ideal_hit_ratio,
        ttft_mean_s=statistics.fmean(ttft_s),
        ttft_p50_s=_quantile(ttft_s, 0.5),
        ttft_p90_s=_quantile(ttft_s, 0.9),
        ttft_p99_s=_quantile(ttft_s, 0.99),
        imbalance=max(busy) / max(1e-9, statistics.fmean(busy)),
        late_s=max(report.late_s, sum(worker.late_s for worker in worked) / requests),
        busy_ratio=busy_s / max(1e-9, total_s),
        wall_s=report.wall_s,
        router_cpu_s=router_cpu_s,
        load_cpu_s=report.cpu_s,
        worker_cpu_s=worker_cpu_s,
    )


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


_Look = tuple[tuple[float, float], float, float]


def _differences(before: _Look, after: _Look) -> _Look:
    (busy, total), router, worker = before
    (busy_now, total_now), router_now, worker_now = after
    return (busy_now - busy, total_now - total), router_now - router, worker_now - worker


def _machine_s() -> tuple[float, float]:
    """Busy and whole CPU time of the machine, in ticks, proc(5)."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)
