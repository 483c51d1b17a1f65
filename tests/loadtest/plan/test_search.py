"""The search finds the cheapest fleet and simulates little for it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from fakes.planned import OURS, SPLIT, THEIRS, trial
from hypothesis import given
from hypothesis import strategies as st

from loadtest.plan.candidate import Candidate
from loadtest.plan.objective import Prices, Slo
from loadtest.plan.search import Probe, Range, Search
from loadtest.plan.trial import Trial

SLO = Slo(4.0, 0.05)


class Lab:
    """Simulates by a formula, and remembers its probes."""

    def __init__(self, judge: Callable[[Probe], Trial]) -> None:
        self.judge = judge
        self.asked: list[Probe] = []
        self.batches = 0

    def run(self, probes: Sequence[Probe]) -> Mapping[Probe, Trial]:
        self.batches += 1
        self.asked += probes
        return {probe: self.judge(probe) for probe in probes}


def needs(workers: int) -> Callable[[Probe], Trial]:
    """A judge: this number of workers just holds the service level; half of them take twice as long."""
    return lambda probe: trial(3.99 * workers / probe.candidate.workers)


@given(needed=st.integers(1, 70), low=st.integers(1, 60), first=st.integers(0, 60), high=st.integers(0, 60))
def test_the_fewest_workers_are_found_wherever_the_search_begins(
    needed: int, low: int, first: int, high: int
) -> None:
    """The result is that of trying all of them, with about the logarithm of their number."""
    among = Range(low, low + first, low + first + high)
    lab = Lab(needs(needed))
    found = Search(SLO, Prices(), 1, lab.run).search({OURS: (among, Range(1, 1, 1))})

    least = next((count for count in range(among.low, among.high + 1) if count >= needed), None)
    assert [one.workers for one in found] == ([] if least is None else [least])
    assert len(lab.asked) == len(set(lab.asked)) <= 16


def test_of_two_families_the_cheaper_one_comes_first() -> None:
    def judge(probe: Probe) -> Trial:
        return needs(4 if probe.candidate.family == OURS else 5)(probe)

    search = Search(SLO, Prices(), 1, Lab(judge).run)
    found = search.search(
        {THEIRS: (Range(1, 3, 64), Range(1, 1, 64)), OURS: (Range(1, 3, 64), Range(1, 1, 64))}
    )

    assert found[0] == Candidate(OURS, 4)


def test_a_family_that_already_costs_more_is_given_up() -> None:
    """Ours holds with 2 workers; theirs would need 60, and the search stops far below."""
    lab = Lab(lambda probe: needs(2 if probe.candidate.family == OURS else 60)(probe))

    found = Search(SLO, Prices(), 1, lab.run).search(
        {OURS: (Range(1, 2, 64), Range(1, 1, 64)), THEIRS: (Range(1, 2, 64), Range(1, 1, 64))}
    )

    assert found == [Candidate(OURS, 2)]
    assert max(probe.candidate.workers for probe in lab.asked) <= 6


def test_of_equal_cost_the_greater_margin_comes_first() -> None:
    def judge(probe: Probe) -> Trial:
        fast = probe.candidate.family == THEIRS
        return trial((1.0 if fast else 2.0) if probe.candidate.workers >= 3 else 9.0)

    found = Search(SLO, Prices(), 1, Lab(judge).run).search(
        {OURS: (Range(1, 2, 64), Range(1, 1, 64)), THEIRS: (Range(1, 2, 64), Range(1, 1, 64))}
    )

    assert [one.family for one in found] == [THEIRS, OURS]


def test_a_fleet_that_one_seed_refuses_gets_another_worker() -> None:
    def judge(probe: Probe) -> Trial:
        return needs(5 if probe.seed_number == 2 else 4)(probe)

    lab = Lab(judge)
    search = Search(SLO, Prices(), 3, lab.run)
    found = search.search({OURS: (Range(1, 4, 64), Range(1, 1, 64))})

    assert found == [Candidate(OURS, 5)]
    assert len(search.trials_of(found[0])) == 3
    assert 0.0 < search.margin(found[0]) < 0.01


def split_needs(prefill: int, decode: int) -> Callable[[Probe], Trial]:
    def judge(probe: Probe) -> Trial:
        fleet = probe.candidate
        return trial(3.99 * prefill / fleet.workers, tpot_p90_s=0.0499 * decode / fleet.decode_workers)

    return judge


@given(prefill=st.integers(1, 20), decode=st.integers(1, 20), guess=st.integers(1, 20))
def test_prefill_and_decode_workers_are_found_one_after_the_other(
    prefill: int, decode: int, guess: int
) -> None:
    lab = Lab(split_needs(prefill, decode))

    found = Search(SLO, Prices(), 2, lab.run).search({SPLIT: (Range(1, 1, 32), Range(1, guess, 32))})

    assert found == [Candidate(SPLIT, prefill, decode)]
    assert len(lab.asked) <= 24


def test_a_seed_that_wants_a_decode_worker_gets_no_prefill_worker() -> None:
    def judge(probe: Probe) -> Trial:
        return split_needs(2, 4 if probe.seed_number else 3)(probe)

    found = Search(SLO, Prices(), 2, Lab(judge).run).search({SPLIT: (Range(1, 1, 32), Range(1, 2, 32))})

    assert found == [Candidate(SPLIT, 2, 4)]


def test_a_split_fleet_loses_to_plain_workers_that_cost_less() -> None:
    def judge(probe: Probe) -> Trial:
        return split_needs(2, 4)(probe) if probe.candidate.family.split else needs(4)(probe)

    found = Search(SLO, Prices(), 1, Lab(judge).run).search(
        {OURS: (Range(1, 2, 32), Range(1, 2, 32)), SPLIT: (Range(1, 2, 32), Range(1, 2, 32))}
    )

    assert found[0] == Candidate(OURS, 4)


def test_no_fleet_is_found_where_none_holds() -> None:
    search = Search(SLO, Prices(), 3, Lab(needs(1_000)).run)

    assert (
        search.search({OURS: (Range(1, 1, 16), Range(1, 1, 16)), SPLIT: (Range(1, 1, 16), Range(1, 1, 16))})
        == []
    )


def test_families_ask_in_one_batch() -> None:
    """Simulations of one batch run side by side."""
    lab = Lab(needs(3))

    Search(SLO, Prices(), 1, lab.run).search(
        {OURS: (Range(1, 2, 8), Range(1, 1, 8)), THEIRS: (Range(1, 2, 8), Range(1, 1, 8))}
    )

    assert lab.batches < len(lab.asked)


def test_more_workers_that_change_nothing_are_not_tried_on_and_on() -> None:
    """An engine too slow for the pace is as slow a thousand times."""
    lab = Lab(lambda _: trial(1.0, tpot_p90_s=0.051))

    assert Search(SLO, Prices(), 1, lab.run).search({OURS: (Range(1, 4, 10_000), Range(1, 1, 64))}) == []
    assert len(lab.asked) == 5


def test_a_small_gain_on_the_way_keeps_the_search_going() -> None:
    """Every worker wins a little: 100 workers are enough, and are found."""
    lab = Lab(lambda probe: trial(8.0 - 0.04 * probe.candidate.workers))

    found = Search(SLO, Prices(), 1, lab.run).search({OURS: (Range(1, 1, 10_000), Range(1, 1, 64))})

    assert found == [Candidate(OURS, 100)]


def test_a_plan_settles_on_a_neighbour_that_costs_no_more_and_holds_better() -> None:
    """6 prefill and 2 decode workers hold; with 5 and 3 of them there is more to spare."""
    best = {Candidate(SPLIT, 6, 2): 3.9, Candidate(SPLIT, 5, 3): 2.0, Candidate(SPLIT, 4, 4): 2.5}
    lab = Lab(lambda probe: trial(best.get(probe.candidate, 9.0)))
    search = Search(SLO, Prices(), 2, lab.run)
    search.try_out([Probe(Candidate(SPLIT, 6, 2), number) for number in range(2)])

    def neighbours(plan: Candidate) -> list[Candidate]:
        return [Candidate(SPLIT, plan.workers + by, plan.decode_workers - by) for by in (-1, 1)]

    settled = search.settle(Candidate(SPLIT, 6, 2), neighbours)

    assert settled == Candidate(SPLIT, 5, 3)
    assert all(len(search.trials_of(one)) == 2 for one in neighbours(settled))
    assert len(search.trials_of(Candidate(SPLIT, 7, 1))) == 1


def test_a_cheaper_neighbour_that_one_seed_refuses_is_left_alone() -> None:
    def judge(probe: Probe) -> Trial:
        return needs(4 if probe.seed_number else 3)(probe)

    search = Search(SLO, Prices(), 2, Lab(judge).run)
    plan = Candidate(OURS, 4)
    search.try_out([Probe(plan, 0), Probe(plan, 1)])

    assert search.settle(plan, lambda one: [Candidate(OURS, one.workers - 1)]) == plan


def test_a_fleet_that_needs_another_worker_gives_way_to_one_that_does_not() -> None:
    """Both hold with 4 workers and the first seed; theirs would need 6 with the second."""

    def judge(probe: Probe) -> Trial:
        return needs(6 if probe.candidate.family == THEIRS and probe.seed_number else 4)(probe)

    lab = Lab(judge)
    ranges = (Range(4, 4, 64), Range(1, 1, 1))
    found = Search(SLO, Prices(), 2, lab.run).search({OURS: ranges, THEIRS: ranges})

    assert found == [Candidate(OURS, 4)]
    assert max(probe.candidate.workers for probe in lab.asked) == 4


def test_what_costs_more_than_a_settled_plan_is_not_looked_for() -> None:
    lab = Lab(lambda probe: needs(2 if probe.candidate.family == OURS else 9)(probe))
    search = Search(SLO, Prices(), 1, lab.run)
    plan = Candidate(OURS, 4)
    search.try_out([Probe(plan, 0)])
    settled = search.settle(plan, lambda _: [])

    assert search.search({THEIRS: (Range(1, 4, 64), Range(1, 1, 1))}) == []
    assert settled == plan
    assert max(probe.candidate.workers for probe in lab.asked) == 4


def test_a_fleet_is_leaner_if_it_costs_less_or_as_much_with_fewer_workers() -> None:
    """If workers cost nothing, memory makes the cost."""
    search, free = (Search(SLO, Prices(price, 1.0), 1, Lab(needs(1)).run) for price in (25.0, 0.0))
    roomy = replace(OURS, host_gib=10.0)

    assert search.is_leaner(Candidate(OURS, 3), Candidate(THEIRS, 4))
    assert not search.is_leaner(Candidate(OURS, 4), Candidate(THEIRS, 4))
    assert free.is_leaner(Candidate(SPLIT, 2, 1), Candidate(OURS, 4))
    assert not free.is_leaner(Candidate(roomy, 1), Candidate(OURS, 4))
