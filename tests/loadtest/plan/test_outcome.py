"""The report of a plan has its cost, its certainty and its assumptions."""

from dataclasses import replace

from fakes.planned import OURS, outcome, trial

from loadtest.plan.candidate import Candidate
from loadtest.plan.division import Division
from loadtest.plan.outcome import HEADINGS


def plain(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


def test_the_headline_is_the_plan_its_level_and_its_cost() -> None:
    assert outcome().headline == (
        "The plan: expected_cost on 4 workers, for TTFT P90 ≤ 3 s, TPOT P90 ≤ 50 ms, at 10.00 per hour"
    )


def test_without_a_plan_the_closest_fleet_is_named() -> None:
    headline = plain(outcome(found=False, limit_s=1.0).headline)

    assert headline.startswith("No fleet that was tried holds TTFT P90 ≤ 1 s")
    assert "the closest is expected_cost on 4 workers, with a TTFT P90 of 2.00 s" in headline


def test_a_fleet_is_shown_by_its_worst_seed() -> None:
    (row,) = outcome().fleet_rows()

    assert [plain(cell) for cell in row] == [
        "expected_cost on 4 workers",
        "10.00",
        "2.20 s",
        "20.0 ms",
        "+27 %",
        "50.0 %",
        "70.0 %",
    ]
    assert len(row) == len(HEADINGS) + 1


def test_steps_are_rows() -> None:
    rows = outcome().step_rows()

    assert [row[0] for row in rows] == [
        "1.1 × the load",
        "0.91 × the load",
        "a worker more",
        "a worker less",
        "512 GiB of host memory each",
        "random",
    ]
    assert plain(rows[0][2]) == "2.50 s"


def test_certainty_counts_simulations_seeds_and_quarters() -> None:
    told = [plain(sentence) for sentence in outcome().certainty()]

    assert told == [
        "14 simulations of 1 requests each.",
        "The plan holds with all of 2 seeds: TTFT P90 from 2.00 s to 2.20 s. The limit is 3.00 s.",
        INTERVAL,
        "Worst quarter of the time: TTFT P90 2.64 s, within the limit.",
    ]


INTERVAL = (
    "95 % interval of the P90 of one run: 1.90 s to 2.10 s, as if requests were independent; bursts make it "
    "wider."
)


def test_a_limit_within_the_interval_is_called_close() -> None:
    close = replace(outcome(), tried=[(Candidate(OURS, 4), 10.0, trial(2.9))])

    assert "The limit is within that interval: one worker more is the safer choice." in close.certainty()


def test_a_quarter_above_the_limit_is_not_hidden() -> None:
    bursty = replace(outcome(), tried=[(Candidate(OURS, 4), 10.0, trial(2.9))])

    assert bursty.certainty()[-1].endswith("above the limit, which holds over the whole time only.")


def test_what_was_assumed_is_said() -> None:
    assumed = " ".join(outcome().assumptions())
    assert "Fewer than" not in " ".join(replace(outcome(), workers_min=1).assumptions())

    for words in (
        "dense-70b",
        "a trace",
        "2.5 per hour for a worker",
        "Fewer than 2 workers",
        "Everything <is> made up.",
    ):
        assert words in assumed


def test_a_fleet_that_lost_requests_has_no_margin_to_show() -> None:
    lossy = replace(
        outcome(),
        steps=[
            (step, cost, [trial(1.0), trial(1.0, completed_share=0.5)]) for step, cost, _ in outcome().steps
        ],
    )

    assert lossy.step_rows()[0][4] == "lost some"


def test_lengths_are_told_of_the_worst_seed_and_without_those_that_do_not_come() -> None:
    """A plan of two seeds in buckets, beside one pool of four workers whose long requests waited less."""
    division = Division((65_536, 1_048_576), (1.0, 1.0), 100.0)
    plan = Candidate(replace(OURS, division=division), 3)
    told = replace(
        outcome(),
        found=[plan],
        divisions=[division],
        tried=[*outcome().tried, (plan, 7.5, trial(2.6)), (plan, 7.5, trial(2.8))],
    )

    advice, kept, labels, longest = map(plain, told.buckets())

    assert advice == (
        "Divide the fleet into 0-64K, 64K-1M: 2.50 per hour less than expected_cost on 4 workers."
    )
    assert kept == (
        "0-64K, 64K-1M: kept; without them expected_cost on 4 workers at 10.00 per hour is the cheapest. "
        "TTFT P90 by length on 3 workers, of the worst seed: 0-64K 1.40 s instead of 1.10 s, pays for it; "
        "256K-1M 8.40 s instead of 6.60 s, pays for it."
    )
    assert labels.endswith("on the workers that take requests: 0-64K on 2, 64K-1M on 1.")
    assert longest.startswith("The plan rejects requests of more than 1,048,576 tokens")


def test_a_division_that_one_seed_alone_holds_is_told_as_that() -> None:
    division = Division((65_536, 1_048_576), (1.0, 1.0), 100.0)
    fleet = Candidate(replace(OURS, division=division), 3)
    told = replace(outcome(), divisions=[division], tried=[*outcome().tried, (fleet, 7.5, trial(2.0))])

    assert "with one seed, and nothing that holds with all" in told.buckets()[1]
