"""Roles that follow the load, on a short day and night."""

from itertools import pairwise

import pytest

from loadtest.simulator.records import Outcome
from loadtest.simulator.simulation import simulate
from loadtest.study import roles
from loadtest.study.roles import DAY, NIGHT, WORKERS, capacity_per_s, config, main, mixed, traffic

PHASE_S = 1_800.0


def test_each_phase_asks_more_than_an_even_split_serves_and_less_than_the_best() -> None:
    for phase in (DAY, NIGHT):
        best, even = (
            capacity_per_s(phase, prefill, WORKERS - prefill)
            for prefill in (phase.best_prefill, WORKERS // 2)
        )
        splits = [capacity_per_s(phase, prefill, WORKERS - prefill) for prefill in range(1, WORKERS)]
        assert best == max(splits)
        assert even < roles.LOAD * best < best


def test_day_and_night_take_turns_and_the_same_seed_draws_the_same() -> None:
    drawn = traffic(100.0, 2, seed=3)

    kinds = [(session.start_s < 100.0, session.requests[0].tokens) for session in drawn.sessions]
    assert set(kinds) == {(True, DAY.prompt_tokens), (False, NIGHT.prompt_tokens)}
    assert drawn == traffic(100.0, 2, seed=3) != traffic(100.0, 2, seed=4)
    assert {session.requests[0].tokens for session in mixed(100.0).sessions} == {
        DAY.prompt_tokens,
        NIGHT.prompt_tokens,
    }


@pytest.mark.deep
def test_convertible_workers_answer_more_and_sooner_than_fixed_ones_and_do_not_flap() -> None:
    """Half an hour of each. From 3 and 3 a day needs more to prefill, a night more to decode."""
    workload = traffic(PHASE_S, 2)
    fixed, convertible = (simulate(workload, config(3, convertible=each)) for each in (False, True))

    assert not fixed.role_changes
    answered = [(one.records.outcome == Outcome.COMPLETED).mean() for one in (fixed, convertible)]
    assert answered[1] > answered[0]
    assert convertible.summary()["ttft_mean_s"] < 0.6 * fixed.summary()["ttft_mean_s"]
    by_day = [role for at_s, _, role in convertible.role_changes if at_s < PHASE_S]
    by_night = [role for at_s, _, role in convertible.role_changes if at_s >= PHASE_S]
    assert set(by_day) == {"prefill"}
    assert by_night == sorted(by_night, reverse=True)  # the rest of the day's demand, and then decode alone
    assert "decode" in by_night
    times_s = [at_s for at_s, _, _ in convertible.role_changes]
    dwell_s = config(3, convertible=True).roles.dwell_s_min
    assert all(later - sooner > dwell_s for sooner, later in pairwise(times_s))


@pytest.mark.deep
def test_under_a_steady_load_roles_settle() -> None:
    """Both kinds at once for an hour: an early change on few requests, taken back once, and then none."""
    changes = simulate(mixed(2 * PHASE_S), config(3, convertible=True)).role_changes
    assert len(changes) <= 2
    assert all(at_s < 1_200.0 for at_s, _, _ in changes)


def test_the_command_prints_a_row_for_each_fleet(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--phases", "1", "--phase-s", "60"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines[2:7]] == [
        "| 2 prefill and 4 decode",
        "| 3 prefill and 3 decode",
        "| 4 prefill and 2 decode",
        "| convertible",
        "| convertible, mixed load",
    ]
    assert all(line.endswith("| 0 |") for line in lines[2:7])
