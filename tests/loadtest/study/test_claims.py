"""Published against reproduced figures, with the resolution of the seeds."""

from fakes.study import row

from loadtest.study.claims import table_of


def test_a_claim_is_the_change_from_without_to_with() -> None:
    """Affinity halves the makespan of the same tokens, at each of two seeds."""
    rows = [
        row(label, value="routing", mean_s=mean_s * seed, seed=seed)
        for seed in (1, 2)
        for label, mean_s in (("least_load", 2.0), ("affinity", 1.0))
    ]

    text = table_of(rows)

    assert (
        "| affinity over least load: prompt tokens per second | +30 % | 4K/s | 8K/s "
        "| +100 % (+100 % to +100 %) | higher | 100.0 % (100.0 % to 100.0 %); " in text
    )
    assert "| affinity over least load: reused from L2 | +25 % | 50.0 % | 50.0 % |" in text


def test_one_seed_is_told_apart_from_nothing() -> None:
    rows = [row("affinity", value="fcfs", p90_s=4.0), row("affinity", value="uncached", p90_s=2.0)]

    text = table_of(rows)

    assert "P90 beyond 64K | -30.5 % | 16.0 s | 8.00 s | -50 % | not told apart" in text


def test_buckets_are_compared_with_one_pool_of_the_same_engines() -> None:
    rows = [row(value=value, p90_s=p90_s) for value, p90_s in (("one pool", 2.0), ("buckets", 1.0))]

    assert "length buckets, two ranks: P90 to 64K | lower | 2.00 s | 1.00 s | -50 %" in table_of(rows)


def test_a_claim_without_its_cells_is_left_out() -> None:
    assert "affinity" not in table_of([row("affinity", value="routing")])
