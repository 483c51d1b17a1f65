"""The turns of replicas at workers."""

from fakes.gateway import FakeShared, VirtualTime, log_port, registry

from policies import turn_of
from router.fleet import Core


def test_turns_follow_the_replicas_that_are_alive() -> None:
    """Alone, a replica is first at every worker; beside another one, at some of them."""
    shared, time, alive = FakeShared(), VirtualTime(), ("r1",)
    log = log_port(shared, time, "r1", lambda: alive)
    core = Core(shared.fleet, registry(shared, time), log)
    workers = [f"w{number}:80" for number in range(20)]

    assert {core.turn(worker) for worker in workers} == {0}
    alive = ("r1", "r2")
    turns = [core.turn(worker) for worker in workers]
    assert turns == [turn_of(worker, "r1", alive) for worker in workers]
    assert set(turns) == {0, 1}
