"""Published against reproduced."""

from fakes.study import row

from loadtest.study.claims import table_of


def test_a_claim_is_the_change_from_without_to_with() -> None:
    """Affinity halves the makespan of the same tokens; the queue's order halves P90 of long prompts."""
    rows = [
        row("least_load", value="fcfs", mean_s=2.0),
        row("affinity", value="fcfs", mean_s=1.0, p90_s=4.0),
        row("affinity", value="uncached", p90_s=2.0),
    ]

    text = table_of(rows)

    assert "| affinity: prompt tokens per second | +30 % | 5K/s | 10K/s | +100 % |" in text
    assert "| few uncached tokens first: P90 beyond 64K | -30.5 % | 16.0 s | 8.00 s | -50 % |" in text


def test_buckets_are_compared_with_one_pool_of_the_same_engines_and_policy() -> None:
    """Short prompts gain where the longest and the mean lose."""
    rows = [
        row(value="one pool", mean_s=1.0, p90_s=2.0),
        row(value="buckets", mean_s=1.5, p90_s=1.0),
        row(value="one pool, 8 ranks", p90_s=4.0),
        row("affinity", value="buckets", p90_s=3.0),
    ]

    lines = table_of(rows).splitlines()[2:]

    assert lines == [
        "| length buckets, two ranks: P90 to 64K | lower | 2.00 s | 1.00 s | -50 % |",
        "| P90 beyond 64K | - | 8.00 s | 4.00 s | -50 % |",
        "| P90 beyond 256K | - | 10.0 s | 5.00 s | -50 % |",
        "| mean of all | - | 1.00 s | 1.50 s | +50 % |",
        "| reused | - | 50.0 % | 50.0 % | +0 % |",
    ]


def test_claims_that_were_not_tried_are_left_out() -> None:
    assert "buckets" not in table_of([row("affinity", value="fcfs")])
