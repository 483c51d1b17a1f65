"""KV that is fetched, forgotten, or asked for too early; the sockets are tested with the connectors."""

import asyncio
from typing import Any

import pytest
from fakes.handover_worker import FakeWorker, Heard, served_job

from loadtest.engine.handover.carriers import Fabric
from loadtest.engine.handover.kept import KeptKv
from loadtest.engine.handover.legs import Counters, Transfers
from loadtest.engine.job import State
from loadtest.engine.timing import LinkTiming

NOW = Transfers(Fabric(LinkTiming(1e12)), lambda tokens: tokens, lambda new, cached: 0.0, layers=1)
NEVER = Transfers(Fabric(LinkTiming(1e-6)), lambda tokens: tokens, lambda new, cached: 0.0, layers=1)


class FakeAnswer:
    def __init__(self) -> None:
        self.owner: Any = None
        self.sent: list[int] = []

    def send(self, status: int, body: bytes) -> None:
        self.sent.append(status)


def kept_kv(transfers: Any = NOW, lease_s: float = 60.0, *, await_prefill: bool = False) -> Any:
    worker, counters = FakeWorker(), Counters()
    return KeptKv(worker, transfers, counters, lease_s, await_prefill=await_prefill), worker, counters  # type: ignore[arg-type]


def held(worker: FakeWorker) -> Any:
    job = served_job(Heard())
    worker.submit(job)
    job.role = "prefill"
    job.state = State.HELD
    return job


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the condition knows of no event
            await asyncio.sleep(0.002)


async def test_what_is_fetched_is_let_go() -> None:
    kept, worker, counters = kept_kv()
    job, answer = held(worker), FakeAnswer()
    kept.keep("a", job)
    kept.ask("a", 130, 0, answer)
    await until(lambda: answer.sent)

    assert worker.released == [job]
    assert counters.expired == 0
    kept.let_go("a")
    kept.renew("a")


async def test_a_lease_that_ends_lets_it_go() -> None:
    kept, worker, counters = kept_kv(lease_s=0.01)
    kept.keep("a", held(worker))
    await until(lambda: worker.released)

    assert counters.expired == 1


async def test_what_was_let_go_does_not_expire() -> None:
    kept, worker, counters = kept_kv(lease_s=0.01)
    kept.keep("a", held(worker))
    kept.let_go("a")
    await asyncio.sleep(0.03)

    assert counters.expired == 0


async def test_bytes_that_are_on_their_way_need_no_lease() -> None:
    kept, worker, counters = kept_kv(NEVER, lease_s=0.02)
    kept.keep("a", held(worker))
    kept.ask("a", 130, 0, FakeAnswer())
    kept.renew("a")
    await asyncio.sleep(0.05)

    assert (worker.released, counters.expired) == ([], 0)
    kept.close()


@pytest.mark.parametrize("begun", [False, True])
async def test_whoever_gives_up_leaves_what_has_not_begun(begun: bool) -> None:
    kept, worker, _ = kept_kv(NEVER, await_prefill=True)
    job, answer = held(worker), FakeAnswer()
    if begun:
        kept.keep("a", job)
    kept.ask("a", 130, 0, answer)
    answer.owner.client_left()
    if not begun:
        kept.keep("a", job)

    assert worker.released == ([job] if begun else [])
    assert answer.sent == []
    kept.close()


async def test_who_asks_early_is_answered_when_the_prefill_is_done() -> None:
    kept, worker, _ = kept_kv(await_prefill=True)
    answer = FakeAnswer()
    kept.ask("a", 130, 0, answer)
    await asyncio.sleep(0.01)
    assert answer.sent == []
    kept.keep("a", held(worker))
    await until(lambda: answer.sent)


async def test_a_name_that_comes_again_lets_the_older_go() -> None:
    kept, worker, _ = kept_kv()
    jobs = [held(worker), held(worker)]
    for job in jobs:
        kept.keep("a", job)
    # Not at once: the scheduler is telling of the newer.
    assert worker.released == []
    await until(lambda: worker.released)

    assert worker.released == jobs[:1]
    kept.close()
