"""Workers that die and come back where they were."""

import contextlib
from pathlib import Path

import httpx
import pytest

from loadtest.chaos.two_sites import FAR, SITE, Sites, TwoSites, Worker


def test_the_cap_is_a_share_of_the_link() -> None:
    assert Sites(gbps=80.0, cap_ratio=0.9).cap_bytes_per_s == pytest.approx(9e9)


def test_a_worker_says_its_port_only_if_others_come_to_it(tmp_path: Path) -> None:
    prefill, decode = Worker("p", "prefill", FAR, tmp_path), Worker("d", "decode", SITE, tmp_path)
    assert (
        prefill.line("nixl") == f"{prefill.url} {prefill.side_port} site=dc2 handover=nixl worker_class=h200"
    )
    assert decode.line("sglang") == f"{decode.url} site=dc1 handover=sglang worker_class=h20"


async def test_a_worker_comes_back_with_its_ports(tmp_path: Path) -> None:
    async with Worker("w", "decode", SITE, tmp_path) as worker, httpx.AsyncClient() as client:
        assert (await client.get(f"{worker.url}/health")).status_code == 200
        await worker.kill()
        with pytest.raises(httpx.TransportError):
            await client.get(f"{worker.url}/health")
        await worker.start()
        assert (await client.get(f"{worker.url}/health")).status_code == 200
        assert worker.lives == 2


@pytest.mark.slow
async def test_both_sites_are_up_and_a_replica_may_be_killed() -> None:
    async with contextlib.AsyncExitStack() as stack:
        stage = TwoSites(Sites(), stack)
        await stage.start()
        await stage.look()
        assert {name for name, _ in stage.stats} == {"p1", "p2", "d1", "d2", "far1", "far2"}
        workers = (await stage.replicas[0].client.get("/workers")).json()["workers"]
        assert sorted(worker["role"] for worker in workers) == 2 * ["decode"] + 4 * ["prefill"]
        await stage.link_fault("slow", 0.0)
        link = (await stage.control.get(f"{stage.link_url}/_stats")).json()
        assert link["bytes_per_s"] == pytest.approx(0.1 * 50e9 / 8)
        url = await stage.kill_last_replica()
        with pytest.raises(httpx.TransportError):
            await stage.control.get(f"{url}/health")
        assert stage.errors() == []
