"""Around a plan there is one step in each direction."""

from fakes.planned import OURS, SPLIT, THEIRS

from loadtest.plan.candidate import Candidate
from loadtest.plan.steps import LOAD_STEP, steps_around


def test_workers_load_and_policy_change_one_at_a_time() -> None:
    plan = Candidate(OURS, 4)
    steps = steps_around(plan, [OURS.contender, THEIRS.contender])

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
    steps = steps_around(Candidate(SPLIT, 4, 2), [SPLIT.contender])

    changed = {(step.candidate.workers, step.candidate.decode_workers) for step in steps if step.load == 1.0}
    assert changed == {(5, 2), (3, 2), (4, 3), (4, 1), (3, 3), (5, 1)}


def test_nobody_can_do_without_the_last_worker() -> None:
    steps = steps_around(Candidate(SPLIT, 1, 1), [SPLIT.contender])

    assert all(step.candidate.workers >= 1 and step.candidate.decode_workers >= 1 for step in steps)
