"""The next request after some declined: as if those did not wait, and only while they are named."""

from hypothesis import given
from hypothesis import strategies as st

from policies import FleetState, Waiting, WorkerPut

NOW_US = 1_000_000

tickets = st.lists(
    st.tuples(
        st.integers(0, 20),
        st.sampled_from(["", "w0", "w1"]),
        st.sampled_from(["a/", "a/x", "b/"]),
        st.sampled_from(["r1", "r2"]),
    ),
    max_size=12,
)


@given(tickets, st.sets(st.integers(0, 11)))
def test_who_declined_is_passed_over_and_keeps_its_place(
    script: list[tuple[int, str, str, str]], declined: set[int]
) -> None:
    fleet, others = FleetState(), FleetState()
    for state in (fleet, others):
        for worker in ("w0", "w1"):
            state.apply(WorkerPut(worker, 1, "r", f"http://{worker}"))
    for number, (key_us, worker, flow, replica) in enumerate(script):
        op = Waiting(str(number), 1, replica, number, key_us, "m|", worker, flow, 1, 1, 1)
        fleet.apply(op)
        if number not in declined:
            others.apply(op)
    skip = {str(number) for number in declined}
    for replica in (None, "r1", "r2"):
        before = fleet.tickets.best(0, ["m|"], NOW_US, replica=replica)
        passed = fleet.tickets.best(0, ["m|"], NOW_US, replica=replica, skip=skip)
        assert passed == others.tickets.best(0, ["m|"], NOW_US, replica=replica)
        assert fleet.tickets.best(0, ["m|"], NOW_US, replica=replica) == before
    mine = fleet.tickets.best_of_lanes(["m|"], NOW_US, replica="r1", skip=skip)
    assert mine == others.tickets.best_of_lanes(["m|"], NOW_US, replica="r1")
