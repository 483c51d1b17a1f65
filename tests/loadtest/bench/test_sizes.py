"""Tests of `loadtest.bench.sizes`."""

from loadtest.bench.sizes import container_sizes
from policies import Finished, FleetState, Placed, Trim

PATH = bytes(range(32))


def fleet(requests: int) -> FleetState:
    state = FleetState()
    for number in range(requests):
        state.apply(Placed(f"r{number}", 1, f"w{number % 2}", "me", 1, 1, 1, (PATH,)))
    return state


def test_maps_of_all_parts_are_found_without_being_named() -> None:
    sizes = container_sizes(fleet(6))
    assert sizes["FleetState._workers"] == 2
    assert sizes["FleetState.loads.requests"] == 6
    assert sizes["FleetState.loads._prefilling[]"] == 6


def test_what_equal_objects_hold_is_summed() -> None:
    """Both workers hold the one node, and one of them lost something."""
    state = fleet(2)
    state.apply(Trim("w0", PATH[:16], 1))
    sizes = container_sizes(state)
    assert sizes["FleetState.tree.holdings[].used"] == 2
    assert sizes["FleetState.tree.holdings[].trimmed"] == 1


def test_what_was_released_is_gone_and_what_is_remembered_shows() -> None:
    state = fleet(3)
    state.apply(Finished("r0", 2))
    sizes = container_sizes(state)
    assert sizes["FleetState.loads.requests"] == 2
    assert sizes["FleetState.loads._traces"] == 1


def test_the_nodes_of_the_tree_are_not_walked() -> None:
    assert not [path for path in container_sizes(fleet(1)) if "children" in path or "root" in path]
