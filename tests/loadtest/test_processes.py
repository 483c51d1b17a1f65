"""Child processes: ready when they say so, gone when their owner is."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from loadtest import processes
from loadtest.processes import Child, ChildFailed, free_port
from router.serving import bound

ENGINE = ["engine", "--port", "0"]


def engine_url(line: str) -> str:
    return next(word for word in line.split() if word.startswith("http://"))


def environment_of(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


async def answers(url: str) -> bool:
    async with httpx.AsyncClient(trust_env=False) as client:
        try:
            return (await client.get(f"{url}/health")).status_code == 200
        except httpx.TransportError:
            return False


async def test_a_child_is_ready_with_its_line_and_its_answer_and_ends_with_the_block(tmp_path: Path) -> None:
    async with Child("engine", ENGINE, tmp_path) as child:
        url = engine_url(await child.wait_for_line("cacheway engine ready:"))
        await child.wait_for_answer(f"{url}/health")

    assert child._process is not None
    assert child._process.returncode is not None
    assert not await answers(url)


async def test_a_child_may_be_run_by_another_command_and_keeps_its_process_id(tmp_path: Path) -> None:
    async with Child("engine", ENGINE, tmp_path, within=("env", "CHAOS=yes")) as child:
        await child.wait_for_line("cacheway engine ready:")
        environment = environment_of(child.pid)
        await child.end()
    assert b"CHAOS=yes" in environment
    assert child._process is not None
    assert child._process.returncode == 0


async def test_a_child_is_ended_when_the_block_fails(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        async with Child("engine", ENGINE, tmp_path) as child:
            raise KeyError

    assert child._process is not None
    assert child._process.returncode is not None


async def test_a_child_that_ends_early_is_an_error_with_the_end_of_its_log(tmp_path: Path) -> None:
    async with Child("engine", ["engine", "--engines", "0"], tmp_path) as child:
        with pytest.raises(
            ChildFailed, match=r"(?s)engine ended with status 2:.*--engines must be at least 1"
        ):
            await child.wait_for_line("cacheway engine ready:")


async def test_settings_in_the_environment_do_not_reach_a_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong value would stop ``cacheway config``."""
    monkeypatch.setenv("CACHEWAY_PORT", "nonsense")

    async with Child("config", ["config"], tmp_path) as child:
        assert await child.wait_for_line("server:") == "server:"


OWNER = """
import asyncio, sys
from pathlib import Path
from loadtest.processes import Child

async def main():
    async with Child("engine", ["engine", "--port", "0"], Path(sys.argv[1])) as child:
        print(await child.wait_for_line("cacheway engine ready:"), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_child_does_not_outlive_an_owner_that_was_killed(tmp_path: Path) -> None:
    owner = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", OWNER, str(tmp_path)), stdout=asyncio.subprocess.PIPE
    )
    assert owner.stdout is not None
    url = engine_url((await owner.stdout.readline()).decode())
    assert await answers(url)

    owner.kill()
    await owner.wait()

    async with asyncio.timeout(60):
        while await answers(url):  # noqa: ASYNC110 - there is no signal
            await asyncio.sleep(0.02)


def test_the_preferred_port_is_taken_only_if_it_is_free() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_port(port) != port
    assert free_port(port) == port


def test_a_row_of_free_ports_may_be_asked_for() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_port(port - 1, row=2) != port - 1
    assert free_port(port, row=1) == port


def test_a_port_is_given_once_though_its_child_does_not_listen_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also to other processes: two gateways on one port answered each other's requests while one started."""
    first = processes.PORTS[1] + os.getpid() % 700  # where no other test draws a port
    monkeypatch.setattr(processes, "PORTS", (first, first + 3))
    given = {free_port() for _ in range(2)}
    ask = f"from loadtest import processes\nprocesses.PORTS = {processes.PORTS}\nprint(processes.free_port())"
    answer = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    given.add(int(answer.stdout))
    assert given == {first, first + 1, first + 2}
    assert free_port() in given, "that of the process that ended"
    with pytest.raises(ChildFailed, match="no free TCP port"):
        free_port()


def test_a_server_listens_beside_the_claim_of_its_port() -> None:
    """As most servers it sets SO_REUSEADDR; those of ``--workers`` also share their port."""
    port = free_port()
    for shared in (False, True):
        with bound("127.0.0.1", port, shared=shared) as one:
            one.listen()
            with socket.create_connection(("127.0.0.1", port), timeout=60):
                pass


def test_only_the_newest_ports_stay_claimed() -> None:
    for _ in range(processes.CLAIMS_MAX + 5):
        free_port()
    assert len(processes._claims) == processes.CLAIMS_MAX
