"""The benchmark of the shared queue measures what it says, on a small scale."""

from loadtest.bench import waiting as bench


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
