"""Around a plan there is one step in each direction."""

from dataclasses import replace

from fakes.planned import OURS, SPLIT, THEIRS

from loadtest.plan.candidate import Candidate
from loadtest.plan.division import Division
from loadtest.plan.steps import LOAD_STEP, Step, steps_around


def test_workers_load_and_policy_change_one_at_a_time() -> None:
    plan = Candidate(OURS, 4)
    steps = steps_around(plan, [OURS.contender, THEIRS.contender], [0.0], [0.0])

    assert [(step.candidate.workers, step.load) for step in steps] == [
        (4, LOAD_STEP),
        (4, 1 / LOAD_STEP),
        (5, 1.0),
        (3, 1.0),
        (4, 1.0),
    ]
    assert steps[-1].candidate == Candidate(THEIRS, 4)
    assert len({step.name for step in steps}) == len(steps)


def test_a_split_fleet_has_steps_on_both_sides() -> None:
    steps = steps_around(Candidate(SPLIT, 4, 2), [SPLIT.contender], [0.0], [0.0])

    changed = {(step.candidate.workers, step.candidate.decode_workers) for step in steps if step.load == 1.0}
    assert changed == {(5, 2), (3, 2), (4, 3), (4, 1), (3, 3), (5, 1)}


def test_nobody_can_do_without_the_last_worker() -> None:
    steps = steps_around(Candidate(SPLIT, 1, 1), [SPLIT.contender], [0.0], [0.0])

    assert all(step.candidate.workers >= 1 and step.candidate.decode_workers >= 1 for step in steps)


def sizes(host_gib: float, pool_gib: float) -> set[tuple[float, float]]:
    """Memory sizes that are one step from a plan's."""
    plan = Candidate(replace(OURS, host_gib=host_gib, pool_gib=pool_gib), 4)
    steps = steps_around(plan, [OURS.contender], [0.0, 512.0, 1024.0], [0.0, 4096.0])
    around = {(step.candidate.family.host_gib, step.candidate.family.pool_gib) for step in steps}
    return around - {(host_gib, pool_gib)}


def test_memory_goes_to_the_next_size_and_not_beyond() -> None:
    assert sizes(512.0, 0.0) == {(0.0, 0.0), (1024.0, 0.0), (512.0, 4096.0)}
    assert sizes(1024.0, 4096.0) == {(512.0, 4096.0), (1024.0, 0.0)}


def test_there_is_no_pool_without_host_memory_to_read_it_into() -> None:
    assert sizes(0.0, 0.0) == {(512.0, 0.0)}
    assert sizes(512.0, 4096.0) == {(1024.0, 4096.0), (512.0, 0.0)}


def test_a_divided_fleet_keeps_a_worker_in_every_bucket_and_may_become_one_pool() -> None:
    family = replace(SPLIT, division=Division((65_536, 1_048_576), (1.0, 1.0), 100.0))
    plan = Candidate(family, 2, 2)

    steps = steps_around(plan, [SPLIT.contender], [0.0], [0.0])

    assert min(step.candidate.workers for step in steps) == 2
    assert steps[-1] == Step("no buckets", Candidate(SPLIT, 2, 2))
