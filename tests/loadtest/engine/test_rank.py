"""A rank's accounts of slots and of work."""

from typing import Any

from fakes.kv_stack import FakeCache

from loadtest.engine.job import Job, Role, State
from loadtest.engine.kv.stack import KvStack
from loadtest.engine.rank import Rank
from loadtest.engine.waiting import WaitingJobs
from radix import chain_bytes

NOBODY: Any = None


def rank(slots: int = 2, tokens: int = 1000) -> tuple[Rank, FakeCache]:
    cache: Any = FakeCache(tokens, 4)
    return Rank(0, KvStack(cache, None), WaitingJobs(), slots), cache


def job(prompt_tokens: int, role: Role = "plain") -> Job:
    blocks = chain_bytes(bytes(prompt_tokens), 1, 4)
    return Job(blocks, prompt_tokens, 1, blocks, prompt_tokens, NOBODY, role=role)


def test_jobs_are_admitted_while_there_are_slots_and_room() -> None:
    for one, room in ((rank(slots=2), 2), (rank(slots=9, tokens=310), 3)):
        jobs = [job(100) for _ in range(4)]
        for waiting in jobs:
            one[0].push(waiting, 100, 0.0)

        assert list(one[0].admit(5.0)) == jobs[:room]
        assert one[0].running == room
        assert len(one[0].waiting) == 4 - room
        assert [waiting.was_admitted for waiting in jobs] == [number < room for number in range(4)]
        assert jobs[0].started_s == 5.0


def test_backlog_is_what_is_still_to_be_computed() -> None:
    """An estimate while a job waits, exact once it is admitted; nothing for one that is only decoded."""
    one, cache = rank()
    one.push(job(40), 40, 0.0)
    one.push(job(80, role="decode"), 0, 0.0)
    assert one.backlog_tokens == 40

    cache.held = dict.fromkeys([job(40).blocks[at : at + 8] for at in range(0, 40, 8)], 0)
    prompt, arriving = one.admit(0.0)
    assert one.backlog_tokens == 20
    assert (prompt.cached_tokens, prompt.context_tokens) == (20, 20)
    one.compute(prompt, 15)
    assert (one.backlog_tokens, prompt.context_tokens) == (5, 35)
    one.forget(prompt)
    assert one.backlog_tokens == 0
    assert arriving.state is State.ARRIVING
    assert not one.idle
    one.forget(arriving)
    assert one.idle


def test_what_a_job_would_compute_here_depends_on_what_is_held() -> None:
    one, cache = rank()
    cache.held = dict.fromkeys([job(40).blocks[at : at + 8] for at in range(0, 40, 8)], 0)

    assert one.uncached_tokens(job(40)) == 20
