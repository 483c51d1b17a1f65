"""The matrix, and its plan."""

from collections import Counter

from loadtest.bench.fleet.__main__ import visits
from loadtest.bench.fleet.cells import CELLS, PEERS, Part, Router


def test_the_matrix_has_all_cells_once() -> None:
    """Nine cells of agents, three with replicas, two of conversations; peers are in all of them."""
    assert Counter(cell.part for cell in CELLS) == {Part.AGENTS: 9, Part.REPLICAS: 3, Part.CONVERSATION: 2}
    assert len({cell.key for cell in CELLS}) == len(CELLS)
    assert all(set(PEERS) < set(cell.routers) for cell in CELLS)


def test_every_router_begins_a_repetition_in_its_turn() -> None:
    """Four routers in four repetitions of one cell: each is the first one once, and all run in each."""
    (cell,) = [cell for cell in CELLS if cell.key == "agents-48-1500k-1r"]
    plan = visits(list(Part), [cell.key], list(Router), 4)

    assert {router for _, _, router in plan[::4]} == set(Router)
    assert Counter(repetition for repetition, _, _ in plan) == dict.fromkeys(range(4), 4)
