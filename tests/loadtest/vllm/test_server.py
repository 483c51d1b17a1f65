"""An engine comes up, says why if it does not, and leaves nothing behind."""

import json
import socket
from pathlib import Path

import httpx
import pytest
from fakes.running import until

from loadtest.vllm import EngineFailed, EnginesHome, VllmServer, VllmSettings


def alive(pid: int) -> bool:
    """True if it runs; a process that has ended and was not collected yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def environment_of(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def said(server: VllmServer, what: str) -> list[str]:
    (line,) = [line for line in server.log.read_text().splitlines() if line.startswith(what)]
    return line.split()[1:]


async def test_an_engine_answers_and_all_its_processes_end_with_the_block(home: EnginesHome) -> None:
    async with VllmServer(VllmSettings(), home=home) as server:
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(f"{server.url}/health")).status_code == 200
        pids = [server.pid, int(said(server, "core")[0])]
        assert all(map(alive, pids))
        folder = server.log.parent
    await until(lambda: not any(map(alive, pids)))
    assert not folder.exists()


async def test_an_engine_is_told_its_settings_and_to_stay_on_this_machine(home: EnginesHome) -> None:
    settings = VllmSettings(
        model="gemma3", max_model_tokens=512, kv_blocks=99, flags=("--seed", "4"), environment={"A": "b"}
    )
    async with VllmServer(settings, home=home) as server:
        arguments = said(server, "arguments")
        (offline,) = said(server, "offline")
        environment = environment_of(server.pid)
    for flag, value in {
        "--max-model-len": "512",
        "--num-gpu-blocks-override": "99",
        "--host": "127.0.0.1",
        "--seed": "4",
    }.items():
        assert arguments[arguments.index(flag) + 1] == value
    assert arguments[1] == str(home.models / "gemma3")
    events = json.loads(
        "".join(arguments[arguments.index("--kv-events-config") + 1 :]).partition("}")[0] + "}"
    )
    assert (events["endpoint"], events["replay_endpoint"]) == (server.kv_events, server.kv_replay)
    assert offline == "1"
    assert b"A=b" in environment


async def test_a_killed_engine_starts_again_at_the_same_place(home: EnginesHome) -> None:
    async with VllmServer(VllmSettings(), home=home) as server:
        before = server.pid
        core = int(said(server, "core")[0])
        await server.kill()
        await until(lambda: not alive(core))
        assert not server.running
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port))
        await server.start()
        assert server.running
        assert server.pid != before


async def test_an_engine_that_does_not_come_up_says_why_and_what_to_do(home: EnginesHome) -> None:
    server = VllmServer(VllmSettings(flags=("--broken",)), name="one", home=home)
    with pytest.raises(EngineFailed) as failure:
        await server.start()
    await server.close()
    what, *log = str(failure.value).splitlines()
    assert what == "one ended with status 1; block_tokens must be a multiple of 32 on CPUs"
    assert log[-1] == "ValueError: No common block size for 16"


async def test_without_vllm_the_command_that_installs_it_is_named(tmp_path: Path) -> None:
    server = VllmServer(VllmSettings(), home=EnginesHome(tmp_path))
    with pytest.raises(EngineFailed, match=r"python -m loadtest\.vllm install"):
        await server.start()
    await server.close()


async def test_an_engine_without_events_has_no_endpoints(home: EnginesHome) -> None:
    async with VllmServer(VllmSettings(kv_events=False), home=home) as server:
        assert (server.kv_events, server.kv_replay) == ("", "")
        assert "--kv-events-config" not in said(server, "arguments")


async def test_ranks_stand_behind_one_api_server_and_publish_apart(home: EnginesHome) -> None:
    async with VllmServer(VllmSettings(ranks=2), home=home) as server:
        arguments = said(server, "arguments")
        assert arguments[arguments.index("--data-parallel-size") + 1] == "2"
        assert arguments[arguments.index("--api-server-count") + 1] == "1"
        assert server.kv_events.endswith("inproc")
