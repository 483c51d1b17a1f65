"""The benchmark of decisions and of the queue measures its figures, on a small scale."""

from loadtest.bench import decision as bench
from policies import Finished, FirstToken, Placed


def test_shared_prompts_find_their_prefix_and_cold_ones_share_nothing() -> None:
    paths = bench._prompts(3 * bench.PREFIXES, shared=True)
    fleet = bench.fleet_of(4)
    bench.decided(fleet, paths, 1250.0)

    assert len({path[:32] for path in paths}) == bench.PREFIXES
    assert len(set(bench._prompts(100, shared=False))) == 100
    assert fleet.tree.match(paths[0]).matched.max() == 5


def test_the_ends_of_short_requests_tell_of_their_first_tokens() -> None:
    ops = bench.decided(bench.fleet_of(2), bench._prompts(60, shared=False), 300.0)
    short = bench.shortened(ops)

    assert [type(op) for op in ops[-3:]] == [Placed, FirstToken, Finished]
    assert not [op for op in short if isinstance(op, FirstToken)]
    assert all(op.prefilled_us < op.at_us for op in short if isinstance(op, Finished))


def test_all_three_figures_are_microseconds_of_cpu() -> None:
    decide_us, fold_us, short_us = bench.costs_us(3, 50, shared=True)

    assert decide_us < 10_000
    assert 0 < fold_us < 10_000
    assert 0 < short_us < 10_000


def test_a_round_leaves_as_many_waiting_as_it_found() -> None:
    queue = bench.Queue(60, 6)
    figures = queue.round_us(6)

    assert figures.keys() == set(bench.COLUMNS)
    assert all(0 <= us < 100_000 for us in figures.values())
    assert queue.fleet.tickets.count == 60
    assert queue.fleet.fairness.service_us("high", bench.START_US) > 0


def test_some_wait_for_one_worker_and_the_flows_have_three_classes() -> None:
    queue = bench.Queue(300, 6)
    tickets = list(queue.fleet.tickets)

    assert 50 < sum(ticket.slot >= 0 for ticket in tickets) < 150
    assert {ticket.flow.partition("/")[0] for ticket in tickets} == {"high", "normal", "low"}
    assert sum(ticket.replica == bench.OWN for ticket in tickets) == 150
