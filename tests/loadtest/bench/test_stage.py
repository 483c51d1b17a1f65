"""The stage of the benchmarks, with a real gateway on it."""

import pytest

from loadtest.bench.http_load import LoadPlan
from loadtest.bench.stage import staged
from loadtest.processes import ChildFailed


async def test_a_load_runs_through_all_processes_and_its_cost_is_told() -> None:
    async with staged(2, gap_s=0.01) as stage:
        before = stage.sample()
        report = await stage.served(LoadPlan(stage.port, 32, requests=64, rate_per_s=400, chunks=5))
        after = stage.sample()
        assert (report.completed, len(stage.pids)) == (64, 2)
        assert after.cpu_s > before.cpu_s
        assert all(size > 1e6 for size in after.rss_bytes)

        plan = LoadPlan(stage.port, 8, chunks=5)
        async with stage.load(plan) as running:
            clients = []
            while sum(clients) < plan.connections:
                clients = stage.clients()
            running.stop()


async def test_a_load_that_is_not_served_fails() -> None:
    async with staged(1, gap_s=0.01, flags=("--api-key", "secret")) as stage:
        with pytest.raises(ChildFailed, match="status 401"):
            await stage.served(LoadPlan(stage.port, 1, requests=1, rate_per_s=100))
