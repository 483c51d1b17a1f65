"""``cacheway demo`` from end to end: Valkey, two replicas, four engines, all of them real processes."""

import asyncio
import json
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from loadtest.workload import MODEL


@asynccontextmanager
async def started(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start the demo as a terminal would, and leave nothing behind when a test fails.

    A test run in the background has SIGINT ignored, and children inherit that.
    """
    demo = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router", "demo", "--quick", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        yield demo
    finally:
        if demo.returncode is None:
            demo.terminate()
            await demo.communicate()


async def test_the_default_policy_reuses_more_than_round_robin_and_nothing_fails(tmp_path: Path) -> None:
    path = tmp_path / "demo.json"

    async with started("--json", str(path)) as demo:
        output, _ = await demo.communicate()

    assert demo.returncode == 0, output.decode()
    policies = {policy["policy"]: policy for policy in json.loads(path.read_text())["policies"]}
    requests = json.loads(path.read_text())["requests"]
    assert list(policies) == ["round_robin", "expected_cost"]
    for policy in policies.values():
        assert (policy["completed"], policy["failed"]) == (requests, 0)
        assert 0 < policy["ideal_share"] <= 1
        assert 0 < policy["ttft_p50_s"] <= policy["ttft_p90_s"] <= policy["ttft_p99_s"]
    assert policies["expected_cost"]["hit_ratio"] > policies["round_robin"]["hit_ratio"]
    for text in ("round_robin", "expected_cost", "share of", "curl", "from openai import OpenAI", "--keep"):
        assert text in output.decode()


def repeating_trace(folder: Path) -> Path:
    """Every second request repeats the one before; 30 s."""
    rows = [
        {"timestamp": 3000 * i, "input_length": 1024, "output_length": 8, "hash_ids": [0, i // 2 + 1]}
        for i in range(10)
    ]
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("end", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.deep)])
async def test_with_keep_the_fleet_answers_until_a_signal_and_leaves_nothing_behind(
    end: signal.Signals, tmp_path: Path
) -> None:
    """After a trace of 30 s that is replayed to its end in one."""
    path = tmp_path / "demo.json"
    replayed = ("--trace", str(repeating_trace(tmp_path)), "--speed", "30", "--json", str(path))
    async with started("--keep", "--policy", "expected_cost", *replayed) as demo:
        assert demo.stdout is not None
        printed = ""
        while "print(answer" not in printed:
            line = (await demo.stdout.readline()).decode()
            assert line, f"the demo ended early:\n{printed}"
            printed += line
        found = re.search(r"http://127\.0\.0\.1:(\d+)", printed)
        assert found is not None

        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            answer = await client.post(
                f"{found[0]}/v1/chat/completions",
                json={"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
            )
            workers = (await client.get(f"{found[0]}/list_workers")).json()["urls"]
        assert answer.status_code == 200
        assert answer.headers["x-cacheway-worker"]
        assert len(workers) == 4

        demo.send_signal(end)
        await demo.communicate()

    assert demo.returncode == 130
    for port in (int(found[1]), *(int(url.rpartition(":")[2]) for url in workers)):
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0
    (policy,) = json.loads(path.read_text())["policies"]
    assert (policy["completed"], policy["prompt_tokens"]) == (10, 10 * 1024)
    assert policy["hit_ratio"] > 0
