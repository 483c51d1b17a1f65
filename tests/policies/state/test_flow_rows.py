"""Columns answer as `Fairness.may_go` does for names."""

from fakes.bytecodes import bytecodes
from hypothesis import given
from hypothesis import strategies as st

from policies import Fairness
from policies.state.flow_rows import FEW, FlowHeads

SECOND = 1_000_000
flows = st.lists(
    st.tuples(st.integers(0, 30), st.sampled_from([0, 1, 10, 10**7]), st.sampled_from([0.1, 0.3, 1.0, 7.0])),
    min_size=2,
    max_size=40,
    unique_by=lambda each: each[0],
)


@given(flows, st.booleans())
def test_the_same_flows_may_go_as_by_name(drawn: list[tuple[int, int, float]], joins: bool) -> None:
    """Weights like 0.1 have no exact sum in floats: here it is rounded once."""
    weights = {f"low/{number}": weight for number, _, weight in drawn}
    fairness = Fairness(lambda name: weights.get(name, 1.0))
    for number, us, _ in drawn:
        fairness.charge(f"low/{number}", SECOND, us)
    names = list(weights)
    newcomer = names.pop() if joins else ""
    heads = FlowHeads(fairness.rows)
    for name in names:
        heads.put(name, 0)
    expected = fairness.may_go({"low": [*names, newcomer] if joins else names}, SECOND)["low"]
    allowed, goes = fairness.to_go(heads.rows, newcomer)
    found = {name for name, each in zip(names, allowed.tolist(), strict=True) if each}
    assert found | ({newcomer} if joins and goes else set()) == set(expected)


def test_rows_follow_service_weights_and_flows_that_end() -> None:
    weights = {"low/0": 1.0}
    fairness = Fairness(lambda name: weights.get(name, 1.0))
    heads = FlowHeads(fairness.rows)
    for number in range(3 * FEW):
        heads.put(f"low/{number}", number)
        fairness.charge(f"low/{number}", 4 * SECOND, SECOND)
    fairness.charge("low/0", 4 * SECOND, 59 * SECOND)
    allowed, _ = fairness.to_go(heads.rows)
    assert [heads.at[f"low/{number}"] for number in range(3 * FEW)] == list(range(3 * FEW))
    assert not allowed[0]
    assert allowed[1:].all()
    weights["low/0"] = 60.0
    fairness.classes_to_go(["low"], 8 * SECOND)
    assert fairness.to_go(heads.rows)[0].all()
    weights["low/0"] = 1.0
    fairness.classes_to_go(["low"], 12 * SECOND)
    assert not fairness.to_go(heads.rows)[0][0]
    fairness.classes_to_go(["low"], 80 * SECOND)
    assert fairness.to_go(heads.rows)[0].all()
    for number in range(3 * FEW):
        heads.drop(f"low/{number}")
    other = FlowHeads(fairness.rows)
    other.put("low/new", 1)
    assert fairness.rows.name_of(other.rows.item(0)) == "low/new"
    assert other.rows.item(0) < 3 * FEW


def test_a_question_takes_the_same_steps_for_any_number_of_flows() -> None:
    def cost(count: int) -> int:
        fairness = Fairness()
        heads = FlowHeads(fairness.rows)
        for number in range(count):
            heads.put(f"low/{number}", number)
        return bytecodes(lambda: fairness.to_go(heads.rows))

    assert cost(1000) == cost(30)
