"""A process's checks, log lines and waits at its start."""

import asyncio
import os
import socket

import pytest
from fakes.process import built, events, running


async def test_a_replica_has_a_name_of_its_own() -> None:
    """Also for several processes on one host with the same name in their settings."""
    names = {(await built()).replica for _ in range(3)}
    assert len(names) == 3
    assert (await built(shared={"replica_id": "r1"})).replica == "r1"
    several = await built(shared={"replica_id": "r1"}, server={"workers": 2})
    assert several.replica == f"r1-{os.getpid()}"


async def test_a_link_whose_kv_nobody_has_weighed_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    links = {"site": "a", "links": {"b>a": {"gbps": 80}}}
    await built(fleet=links, placement={"models": {"*": {"kv_bytes_per_token": 7}}})
    assert "links.unpriced" not in events(caplog)
    await built(fleet=links, placement={"models": {"m": {"attention": "linear"}}})
    assert "links.unpriced" in events(caplog)


async def test_a_start_without_workers_says_how_to_add_some(caplog: pytest.LogCaptureFixture) -> None:
    async with running(await built()):
        pass
    assert "name them with --worker-urls" in caplog.text


async def test_a_start_says_why_a_worker_is_not_healthy(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    async with running(await built(fleet={"worker_urls": [url]})):
        pass
    (missing,) = [entry for entry in caplog.records if getattr(entry, "event", "") == "worker.missing"]
    assert "connection failed" in vars(missing)["detail"]


async def test_a_worker_that_answers_nothing_does_not_hold_up_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The kernel connects, but no process answers; a probe may take a minute, the start takes 3 s."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        process = await built(fleet={"worker_urls": [url], "health_check_timeout_s": 60})
        async with asyncio.timeout(60), running(process) as client:
            assert (await client.get("/health")).status_code == 200
    assert "worker.missing" in events(caplog)
