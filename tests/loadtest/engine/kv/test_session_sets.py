"""Nodes that hold a session."""

from hypothesis import given
from hypothesis import strategies as st

from loadtest.engine.kv.ring import HashRing
from loadtest.engine.kv.session_sets import CHAINS_MAX, SessionSet, SessionSets


def sets(nodes: int) -> SessionSets:
    return SessionSets(nodes, HashRing(nodes))


def test_a_session_stays_where_it_is_and_no_node_has_more_than_its_share() -> None:
    table = sets(8)
    names = [f"s{number}".encode() for number in range(400)]
    nodes = [table.of(name, ()) for name in names]

    assert [table.of(name, ()) for name in names] == nodes
    counts = [sum(one is not None and one.node == node for one in nodes) for node in range(8)]
    assert max(counts) <= 54, "1.05 times 50, in whole sets"


@given(st.lists(st.tuples(st.integers(0, 30), st.sets(st.integers(0, 4), max_size=5)), max_size=60))
def test_a_session_is_never_on_a_node_that_is_away(events: list[tuple[int, set[int]]]) -> None:
    table = sets(5)
    for number, absent in events:
        found = table.of(f"s{number}".encode(), absent)
        assert (found is None) == (len(absent) == 5)
        assert found is None or found.node not in absent
    assert sum(table._counts) == len(table._sets)


def test_a_set_moves_away_from_a_node_and_belongs_to_it_still() -> None:
    table = sets(3)
    for number in range(30):
        table.of(f"s{number}".encode(), ())
    moves = list(table.leaving(1, {1}))
    for moved, taker in moves:
        assert taker != 1
        table.put(moved, taker)

    assert len(moves) >= 8
    assert list(table.returning(1)) == [moved for moved, _ in moves]


def test_a_set_remembers_the_longest_form_of_its_newest_prompts() -> None:
    one = SessionSet(0, 0)
    one.wrote(b"", b"aaaabbbb")
    one.wrote(b"", b"aaaa")
    one.wrote(b"", b"aaaabbbbcccc")
    one.wrote(b"tp", b"aaaa")
    assert one.chains == [(b"", b"aaaabbbbcccc"), (b"tp", b"aaaa")]

    for agent in range(9):
        one.wrote(b"", b"agent%d" % agent)
    assert len(one.chains) == CHAINS_MAX
    assert one.chains[-1] == (b"", b"agent8")
