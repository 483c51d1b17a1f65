"""A replica is killed under load: its own connections break, and nothing else."""

import asyncio
import contextlib
import dataclasses
import itertools
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx
import pytest
from fakes.replicas import ENGINE, RunningReplica, Start
from fakes.running import Fleet, until, until_async

from loadtest.chaos import ValkeyServer, disagreements, settled
from loadtest.client import LoadClient, Outcome
from loadtest.workload import MODEL

PATH = "/v1/chat/completions"

SLOW = dataclasses.replace(ENGINE, prefill_tokens_per_s=20_000)

PATIENT = ("--heartbeat-ttl-secs", "6")
"""Longer than a busy machine keeps a survivor from saying that it lives, or this test from looking."""


@pytest.fixture
async def fleet(namespace: str) -> AsyncIterator[Fleet]:
    async with contextlib.AsyncExitStack() as stack:
        fleet = Fleet("", namespace, stack)
        for _ in range(3):
            await fleet.engine(SLOW)
        yield fleet


def chat(text: str, **more: object) -> dict[str, object]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "ignore_eos": True}
    return {**body, "stream": True, "stream_options": {"include_usage": True}, **more}


@dataclass
class Session:
    """An agent that sends turn after turn through one replica, and goes on at another if that breaks.

    Its prompt takes 0.3 s to prefill, many times what a turn of another session takes that waits at its
    worker, also on a busy machine. So the cheapest place is always the warm one.
    """

    number: int
    homes: list[RunningReplica]
    answered: str = ""
    turns: list[Outcome] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    async def run(self, client: LoadClient, stop: asyncio.Event) -> None:
        text = f"session {self.number} " + "word " * (6000 + self.number)
        while not stop.is_set():
            body = json.dumps(chat(text, max_tokens=8)).encode()
            outcome = await client.send(self.homes[0].url, PATH, body)
            if outcome.error is not None:
                self.failures.append(outcome.error)
                self.homes.pop(0)
                continue
            self.turns.append(outcome)
            self.answered = text
            text += f"turn {len(self.turns)} " + "word " * 100
            await asyncio.sleep(0.05)  # an agent thinks

    def warm_since(self, turn: int) -> bool:
        """True if every turn from this one on found the previous turn's prompt cached at the same worker.

        The end of a prompt differs from the text that continues there, and the last block is not full.
        """
        return all(
            now.worker == before.worker
            and now.cached_tokens >= before.prompt_tokens - 2 * ENGINE.block_tokens
            for before, now in itertools.pairwise(self.turns[turn - 1 :])
        )


async def test_sessions_stay_warm_while_a_replica_is_killed(start: Start) -> None:
    """Nine sessions over three replicas; those of the dead one retry their turn at a survivor.

    Three streams through the victim go on for minutes: they must end with it, and the survivors must release
    their reservations.
    """
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(ValkeyServer())
        replicas = await asyncio.gather(*(start(server.url, *PATIENT) for _ in range(3)))
        victim, *survivors = replicas
        client = await stack.enter_async_context(LoadClient())
        sessions = [Session(n, list(replicas[n % 3 :]) + survivors) for n in range(9)]
        stop = asyncio.Event()
        tasks = [asyncio.create_task(session.run(client, stop)) for session in sessions]
        endless = [
            asyncio.create_task(victim.client.post(PATH, json=chat(f"endless {n}", max_tokens=60_000)))
            for n in range(3)
        ]

        async def reserved(requests: int, of: list[RunningReplica]) -> bool:
            return all([sum((await replica.loads()).values()) >= requests for replica in of])

        await until(lambda: all(len(session.turns) >= 4 for session in sessions))
        await until_async(lambda: reserved(3, replicas))
        turns_before = [len(session.turns) for session in sessions]
        victim.process.kill()
        assert await reserved(3, survivors)  # the survivors cannot know yet
        broken = await asyncio.gather(*endless, return_exceptions=True)
        assert all(isinstance(answer, httpx.TransportError) for answer in broken)

        def went_on() -> bool:
            return all(
                len(session.turns) >= turns + 6 for session, turns in zip(sessions, turns_before, strict=True)
            )

        await until(went_on)
        stop.set()
        await asyncio.gather(*tasks)

        for session in sessions:
            of_the_victim = session.number % 3 == 0
            assert len(session.failures) == of_the_victim, session.failures
            assert session.warm_since(2), session.number

        await settled(survivors)
        for replica in survivors:
            assert (await replica.shared())["replicas"] == sorted(other.name for other in survivors)
            workers = (await replica.client.get("/workers")).json()["workers"]
            assert {(worker["inflight_tokens"], worker["backlog_s"]) for worker in workers} == {(0, 0.0)}

        def declared() -> set[str]:
            return {event["replica"] for replica in survivors for event in replica.events("replica.left")}

        await until(declared)  # the log line is written a moment after the operation
        assert declared() == {victim.name}
        assert await disagreements(survivors, [session.answered for session in sessions]) == []
