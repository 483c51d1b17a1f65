"""The trace that real gateway processes write, and the workload that is read from it."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
from fakes.running import Fleet, command

from loadtest.processes import free_port
from loadtest.simulator.bounds import infinite_hit_tokens
from loadtest.simulator.readers import TraceFormat, detect_format, read_auto

SECRET = "Nobody may read these words. "
SYSTEM = SECRET * 140
"""4,060 bytes: almost four blocks of 1 KiB."""


def chat(*messages: str, **more: Any) -> dict[str, Any]:
    turns = [
        {"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(messages)
    ]
    return {"model": "emulated", "messages": turns, "max_tokens": 8, **more}


async def test_traffic_can_be_replayed_from_what_gateways_wrote(fleet: Fleet, tmp_path: Path) -> None:
    """Two turns of a conversation, one streamed, and a stranger, through two processes on one file."""
    path, engine, port = tmp_path / "trace", await fleet.engine(), free_port()
    arguments = ("--host", "127.0.0.1", "--port", str(port), "--worker-urls", engine.url, "--workers", "2")
    shared = ("--redis-url", fleet.redis_url, "--namespace", fleet.namespace)
    url = f"http://127.0.0.1:{port}"
    session = {"prompt_cache_key": "secret session"}
    async with (
        asyncio.timeout(60),
        command(
            "serve", *arguments, *shared, "--request-trace", str(path), ready_url=f"{url}/readiness"
        ) as process,
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client,
    ):
        first = await client.post("/v1/chat/completions", json=chat(SYSTEM, **session))
        answer = first.json()["choices"][0]["message"]["content"]
        body = chat(SYSTEM, answer, SECRET * 60, stream=True, **session)
        streamed = await client.post("/v1/chat/completions", json=body)
        stranger = await client.post("/v1/chat/completions", json=chat(SECRET[::-1] * 100))
        assert [one.status_code for one in (first, streamed, stranger)] == [200] * 3
        process.terminate()
        assert await process.wait() == 0

    content = path.read_bytes()
    assert content.count(b"\n") == 3
    for text in (SECRET[:10], SECRET[::-1][:10], "secret", answer[:10]):
        assert text.encode() not in content
    assert detect_format(path) is TraceFormat.LOG
    workload = read_auto(path)
    workload.check()
    conversation, other = workload.sessions
    one, two = conversation.requests
    assert (two.after, one.output_tokens) == ((0,), 8)
    assert two.tokens > one.tokens > len(SYSTEM) / 4
    hits = infinite_hit_tokens([one, two, other.requests[0]])
    assert 0.9 * one.tokens < hits[1] < one.tokens + 8
    assert hits[2] == 0
