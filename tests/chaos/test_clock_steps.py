"""A wall clock that is wrong, or steps while the replica runs, changes nothing."""

import asyncio
import signal

import pytest
from fakes.replicas import RunningReplica, Start
from fakes.running import until_async

from loadtest.chaos import ValkeyServer, disagreements, sessions, settled

STEPPED = """
import os, signal, sys, time

offset_s = float(os.environ.get("CLOCK_OFFSET_S", "0"))
wall_s, wall_ns = time.time, time.time_ns
time.time = lambda: wall_s() + offset_s
time.time_ns = lambda: wall_ns() + int(offset_s * 1e9)


def step(by_s):
    def stepped(*_):
        global offset_s
        offset_s += by_s
        print('{"event": "clock.stepped"}', flush=True)
    return stepped


signal.signal(signal.SIGUSR1, step(60.0))
signal.signal(signal.SIGUSR2, step(-60.0))

from router.__main__ import main

sys.exit(main())
"""
"""A replica whose wall clock is off by some seconds, and steps on request."""


PATIENT = ("--heartbeat-ttl-secs", "6")
"""Longer than a busy machine delays a replica's heartbeat, and a tenth of a step."""

LATE = ("Redis answers late", "Redis has not answered", "no answer within")
"""Reasons that a busy machine has, too: a process that does not run neither answers nor reads an answer."""


async def nobody_was_given_up(replicas: list[RunningReplica]) -> None:
    """Only late answers may degrade a replica: a busy machine makes Valkey late, but clocks must not."""
    everybody = sorted(replica.name for replica in replicas)
    for replica in replicas:
        assert (await replica.shared())["replicas"] == everybody
        assert replica.events("replica.left") == []
        assert replica.events("replica.given_up") == []
        assert [event for event in replica.events("redis.lost") if not event["reason"].startswith(LATE)] == []


@pytest.mark.deep
async def test_a_wall_clock_that_steps_a_minute_either_way_changes_nothing(start: Start) -> None:
    """Each step is watched for longer than the interval at which replicas check each other's heartbeats."""
    async with ValkeyServer() as server:
        replicas = list(
            await asyncio.gather(
                start(server.url, *PATIENT, program=("-c", STEPPED)),
                *(start(server.url, *PATIENT) for _ in range(2)),
            )
        )
        stepping = replicas[0]
        async with sessions([replica.url for replica in replicas]) as load:
            await load.completed(60)
            for steps, number in enumerate((signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR2), start=1):
                stepping.process.send_signal(number)

                async def stepped(steps: int = steps) -> bool:
                    return len(stepping.events("clock.stepped")) == steps

                await until_async(stepped)
                await load.completed(180)
                await nobody_was_given_up(replicas)
        assert load.failed == []
        await settled(replicas)
        assert await disagreements(replicas, load.prompts) == []


@pytest.mark.deep
async def test_replicas_whose_clocks_are_a_minute_off_are_as_good_as_any(start: Start) -> None:
    async with ValkeyServer() as server:
        replicas = list(
            await asyncio.gather(
                start(server.url, *PATIENT),
                *(
                    start(server.url, *PATIENT, program=("-c", STEPPED), environ={"CLOCK_OFFSET_S": offset_s})
                    for offset_s in ("60", "-60")
                ),
            )
        )
        async with sessions([replica.url for replica in replicas]) as load:
            await load.completed(240)
            await nobody_was_given_up(replicas)
        assert load.failed == []
        await settled(replicas)
        assert await disagreements(replicas, load.prompts) == []
