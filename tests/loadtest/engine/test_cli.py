"""The command in a process of its own, on uvloop."""

import asyncio
import re
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import zmq
import zmq.asyncio

from loadtest.engine.cli import main

COMMAND = "import sys; from loadtest.engine.cli import main; sys.exit(main(sys.argv[1:]))"


async def launch(*arguments: Any) -> Any:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", COMMAND, "--port", "0", *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(60):
        line = (await process.stdout.readline()).decode()
    return process, line, re.findall(r"http://\S+", line)


async def test_it_serves_until_it_is_told_to_end() -> None:
    process, line, urls = await launch(
        "--engines",
        "2",
        "--dialect",
        "vllm",
        "--served-model-name",
        "a",
        "b",
        "--control-port",
        "0",
        "--tpot-ms",
        "1e6",
    )
    try:
        *engines, control = urls
        assert line.startswith("cacheway engine ready: vllm ")
        assert len(engines) == 2
        async with httpx.AsyncClient() as client:
            for url in engines:
                listed = (await client.get(f"{url}/v1/models")).json()["data"]
                assert [one["id"] for one in listed] == ["a", "b"]
            port = httpx.URL(engines[0]).port
            await client.post(f"{control}/_fault", params={"port": port}, json={"kind": "refuse"})
            with pytest.raises(httpx.ConnectError):
                await client.get(f"{engines[0]}/health")
            await client.delete(f"{control}/_fault", params={"port": port})
            await client.post(f"{engines[0]}/_fault", json={"kind": "reset", "after_chunks": 1})
            body = {"prompt": "x", "max_tokens": 9, "ignore_eos": True}
            with pytest.raises(httpx.ReadError):
                await client.post(f"{engines[0]}/v1/completions", json=body | {"max_tokens": 1})
            async with client.stream(
                "POST", f"{engines[1]}/v1/completions", json=body | {"stream": True}
            ) as stream:
                lines = stream.aiter_lines()
                await anext(lines)
                process.send_signal(signal.SIGTERM)
                with pytest.raises(httpx.ReadError):
                    [line async for line in lines]
        async with asyncio.timeout(60):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def test_help_tells_the_defaults_that_there_are_as_they_would_be_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["--profile", "mimo-v2-flash", "--help"])

    told = re.findall(r"\(default:\s+([^)]*)\)", capsys.readouterr().out)
    assert {"sglang", "mimo-v2-flash", "emulated"} < set(told)
    assert not {"", "None", "("} & set(told)


def test_a_port_that_is_taken_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["--port", str(taken.getsockname()[1])]) == 1

    assert "cacheway engine: " in capsys.readouterr().err


async def test_a_profile_gives_what_no_flag_says() -> None:
    """MiMo-V2.5-Pro in blocks of 64 on two ranks; the cache is as small as the flag says."""
    flags = [
        "--profile",
        "mimo-v2.5-pro",
        "--cache-tokens",
        "200000",
        "--chunk-tokens",
        "4096",
        "--speed",
        "1000",
    ]
    process, _, (url,) = await launch(*flags)
    try:
        async with httpx.AsyncClient() as client:
            info = (await client.get(f"{url}/server_info")).json()
            body = {"prompt": [1] * 1000, "max_tokens": 2, "routed_dp_rank": 1}
            answers = [(await client.post(f"{url}/v1/completions", json=body)).json() for _ in range(2)]
    finally:
        process.kill()
        await process.wait()

    assert (info["page_size"], info["dp_size"], info["max_total_num_tokens"]) == (64, 2, 100_000)
    assert len(info["internal_states"]) == 2
    assert (info["chunked_prefill_size"], info["max_running_requests"]) == (4096, 128)
    assert answers[1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 960}


@pytest.mark.parametrize(
    "wrong", [["--speed", "0"], ["--engines", "0"], ["--dialect", "x"], ["--profile", "x"], ["--nope"]]
)
def test_wrong_arguments_stop_the_start(capsys: pytest.CaptureFixture[str], wrong: Any) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(wrong)

    assert stopped.value.code == 2
    assert "See cacheway engine --help" in capsys.readouterr().err


async def test_events_are_published_and_replayed_on_the_loop_of_the_command() -> None:
    config = (
        '{"enable_kv_cache_events": true, "endpoint": "tcp://*:0", "replay_endpoint": "tcp://127.0.0.1:0"}'
    )
    process, _, (url,) = await launch("--dialect", "vllm", "--kv-events-config", config)
    context = zmq.asyncio.Context()
    try:
        async with httpx.AsyncClient() as client, asyncio.timeout(60):
            source = (await client.get(f"{url}/kv_event_sources")).json()["0"]
            await client.post(f"{url}/v1/completions", json={"prompt": [1] * 100, "max_tokens": 1})
            socket = context.socket(zmq.DEALER)
            socket.connect(source["replay_endpoint"])
            await socket.send_multipart((b"", bytes(8)))
            _, topic, sequence, batch = await socket.recv_multipart()
        assert (topic, sequence) == (b"", bytes(8))
        assert b"BlockStored" in batch
    finally:
        context.destroy(linger=0)
        process.kill()
        await process.wait()


def names(folder: Path) -> Any:
    return sorted(path.name for path in folder.iterdir())


async def test_engines_of_one_process_have_event_and_side_ports_of_their_own(tmp_path: Path) -> None:
    """Two engines of two ranks: ranks 0 and 1 of the first, then those of the second."""
    events = f'{{"publisher": "zmq", "endpoint": "ipc://{tmp_path}/kv"}}'
    process, _, urls = await launch(
        *("--engines", "2", "--dp-ranks", "2", "--kv-events-config", events),
        *("--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", "0"),
    )
    try:
        async with httpx.AsyncClient() as client:
            infos = [(await client.get(f"{url}/server_info")).json() for url in urls]
        assert [info["disaggregation_mode"] for info in infos] == ["prefill", "prefill"]
        assert infos[0]["disaggregation_bootstrap_port"] != infos[1]["disaggregation_bootstrap_port"]
        assert names(tmp_path) == ["kv", "kv_dp1", "kv_dp2", "kv_dp2_dp1"]
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize(
    "wrong",
    [
        ["--kv-events-config", "zmq"],
        ["--kv-transfer-config", "{}", "--dialect", "vllm"],
        ["--disaggregation-mode", "prefill", "--dialect", "vllm"],
        ["--disaggregation-mode", "both"],
    ],
)
def test_wrong_words_about_events_and_hand_over_stop_the_start(
    capsys: pytest.CaptureFixture[str], wrong: Any
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(wrong)

    assert stopped.value.code == 2
    assert "See cacheway engine --help" in capsys.readouterr().err


def test_an_event_endpoint_that_is_taken_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    events = f'{{"publisher": "zmq", "endpoint": "ipc://{tmp_path}/nowhere/kv"}}'
    assert main(["--port", "0", "--kv-events-config", events]) == 1

    assert "cacheway engine: KV events on" in capsys.readouterr().err
