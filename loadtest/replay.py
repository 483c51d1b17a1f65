"""Replay of scripts against a fleet: times of requests, and their results.

A *script* is a session: it starts at a fixed time of the run and yields its turns one after the other, each
knowing the answer to the one before. A row of a trace is a script of one turn. Starts are open loop, the
turns of a session closed loop.

    start_s -> turn 1 -> answer -> think_s -> turn 2 -> ... -> end

The run ends with the last script, within `LoadClient`'s time limit. A turn that fails ends its session, and
the unsent turns count as failed, so that a fleet cannot look better by failing early.
"""

import asyncio
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from loadtest.client import LoadClient, Outcome
from loadtest.ideal import IdealCache


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a script.

    Attributes:
        think_s: Seconds between the previous answer (or the script's start) and this request.
        path: API path.
        prompt: As the emulated engine tokenises it, for the ideal.
        held_bytes: Leading bytes of ``prompt`` that an engine has processed in this script's last turn.
    """

    think_s: float
    path: str
    body: bytes
    prompt: bytes
    held_bytes: int = 0


class Script(Protocol):
    """A session to replay."""

    @property
    def start_s(self) -> float:
        """Seconds since the start of the run."""

    @property
    def turn_count(self) -> int:
        """Number of its turns."""

    def turns(self) -> Generator[Turn, Outcome, None]:
        """Yield the turns; each ``send`` brings the outcome of the turn yielded before."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One finished request, with the tokens that an infinite shared cache would have reused."""

    outcome: Outcome
    ideal_tokens: int


async def replay(
    scripts: Sequence[Script],
    base_urls: Sequence[str],
    client: LoadClient,
    ideal: IdealCache,
    observe: Callable[[Sample], None],
    *,
    inflight_max: int = 512,
    sticky: bool = False,
) -> int:
    """Run all scripts to their end; return the turns that were never sent, because their session had failed.

    The n-th script sends its k-th turn to replica ``(n + k) mod len(base_urls)``: alternating turns are the
    hardest case for replicas that share nothing. With ``sticky`` all its turns go to replica ``n mod
    len(base_urls)``. ``ideal`` gets every prompt in the order of sending, ``observe`` every finished request,
    without blocking. A request that waits for its place among ``inflight_max`` is late, and the wait counts
    in its TTFT.
    """
    loop = asyncio.get_running_loop()
    origin_s = loop.time()
    places = asyncio.Semaphore(inflight_max)
    unsent = 0

    async def run(number: int, script: Script) -> None:
        nonlocal unsent
        due_s = origin_s + script.start_s
        turns = script.turns()
        turn = next(turns)
        for sent in range(script.turn_count):
            due_s += turn.think_s
            await asyncio.sleep(due_s - loop.time())
            async with places:
                ideal_tokens = ideal.reuse(turn.prompt, turn.held_bytes)
                url = base_urls[(number if sticky else number + sent) % len(base_urls)]
                outcome = await client.send(url, turn.path, turn.body, due_s)
            observe(Sample(outcome, ideal_tokens))
            if outcome.error is not None:
                unsent += script.turn_count - sent - 1
                return
            due_s = loop.time()
            try:
                turn = turns.send(outcome)
            except StopIteration:
                return

    async with asyncio.TaskGroup() as tasks:
        for number, script in enumerate(scripts):
            tasks.create_task(run(number, script), name=f"script {number}")
    return unsent
