"""Replicas are restarted one after the other under load, and no client notices."""

import asyncio
import contextlib
import itertools
import json
import signal
from collections.abc import AsyncIterator

import httpx
from fakes.balancer import Balancer, balancer
from fakes.running import Fleet, command, until

from loadtest.engine import EngineSettings
from loadtest.processes import free_port

ENGINE = EngineSettings(prefill_tokens_per_s=1e6, prefill_base_ms=1, tpot_ms=4, emit_interval_ms=4)
REPLICAS = 2
CLIENTS = 8
DELAY_S = "2"
"""Ten polls of the balancer, after which even one on a busy machine notices."""


@contextlib.asynccontextmanager
async def replica(fleet: Fleet, port: int, *worker_urls: str) -> AsyncIterator[asyncio.subprocess.Process]:
    async with command(
        *("serve", "--host", "127.0.0.1", "--port", str(port), "--worker-urls", *worker_urls),
        *("--redis-url", fleet.redis_url, "--namespace", fleet.namespace),
        *("--shutdown-delay-secs", DELAY_S),
        ready_url=f"http://127.0.0.1:{port}/readiness",
    ) as process:
        yield process


class Load:
    """Clients with one connection each, which they keep as long as they may."""

    def __init__(self, front: Balancer) -> None:
        self._url = f"http://127.0.0.1:{front.port}"
        self._numbers = itertools.count()
        self.ending = False
        self.completed = {False: 0, True: 0}
        self.failures: list[str] = []

    async def run_client(self, client_number: int) -> None:
        """Send one request after the other until the end; some clients pause in between."""
        think_s = (0.02, 0.05, 0.1, 0.3)[client_number % 4]
        async with httpx.AsyncClient(base_url=self._url, timeout=60, trust_env=False) as client:
            while not self.ending:
                number = next(self._numbers)
                stream = number % 2 == 0
                body = {
                    "model": "emulated",
                    "messages": [
                        {"role": "user", "content": f"{number} of {client_number}: " + "word " * 300}
                    ],
                    "max_tokens": (4, 40, 200)[number % 3],
                    "ignore_eos": True,
                    "stream": stream,
                    "user": f"session-{client_number}-{number // 50}",
                }
                try:
                    await (self._stream if stream else self._whole)(client, body)
                except (httpx.HTTPError, AssertionError) as error:
                    self.failures.append(f"{'stream' if stream else 'whole'} {number}: {error!r}")
                else:
                    self.completed[stream] += 1
                await asyncio.sleep(think_s)

    @staticmethod
    async def _whole(client: httpx.AsyncClient, body: dict[str, object]) -> None:
        answer = await client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == body["max_tokens"]

    @staticmethod
    async def _stream(client: httpx.AsyncClient, body: dict[str, object]) -> None:
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            assert answer.status_code == 200
            lines = [line async for line in answer.aiter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        assert not any("error" in json.loads(line[6:]) for line in lines[:-1])


async def test_a_rolling_restart_behind_a_balancer_fails_no_request(fleet: Fleet) -> None:
    engines = [await fleet.engine(ENGINE) for _ in range(2)]
    urls = [engine.url for engine in engines]
    ports = [free_port() for _ in range(REPLICAS)]
    async with contextlib.AsyncExitStack() as stack:
        processes = await asyncio.gather(
            *(stack.enter_async_context(replica(fleet, port, *urls)) for port in ports)
        )
        front = await stack.enter_async_context(balancer(ports))
        await until(lambda: len(front.ready) == REPLICAS)
        load = Load(front)
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(load.run_client(number))
            for port, process in zip(ports, processes, strict=True):
                before = sum(load.completed.values())
                await until(lambda before=before: sum(load.completed.values()) > before + 10)  # type: ignore[misc]
                process.send_signal(signal.SIGTERM)
                async with asyncio.timeout(60):
                    assert await process.wait() == 0
                await stack.enter_async_context(replica(fleet, port, *urls))
                await until(lambda port=port: port in front.ready)  # type: ignore[misc]
            load.ending = True
        assert load.failures == []
        assert front.refused == 0
        assert min(load.completed.values()) > 20
        async with httpx.AsyncClient(trust_env=False) as client:
            status = (await client.get(f"http://127.0.0.1:{ports[0]}/readiness")).json()
            loads = (await client.get(f"http://127.0.0.1:{ports[0]}/get_loads")).json()["loads"]
        assert len(status["shared"]["replicas"]) == REPLICAS, "those that ended have left the log"
        assert [worker["load"] for worker in loads] == [0, 0]
    for process in processes:
        events = [json.loads(line)["event"] for line in process.output]  # type: ignore[attr-defined]
        assert "gateway.cut" not in events
        assert events.index("gateway.stopping") < events.index("gateway.stopped")
        assert "replica.left_silently" not in events
