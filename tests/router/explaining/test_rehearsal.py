"""A rehearsal decides like the real placement, by any policy, and leaves no trace."""

from fakes.gateway import Bench
from fakes.rehearsals import Real, digest, parsed_text, said
from msgspec.structs import replace

from policies import Decision, Placed, Queued, Waiting, make_policy
from router.errors import NoWorker
from router.explaining.rehearsal import rehearse
from router.tenant import ANONYMOUS


def load(bench: Bench, worker: str, service_us: int, request_id: str = "load") -> None:
    now_us = bench.time.clock.now_us()
    bench.shared.publish(Placed(request_id, now_us, worker, "r2", service_us, 500, 2000))


def test_nothing_counts_it_and_the_next_real_one_goes_where_it_said() -> None:
    bench, parsed = Bench(workers=3), parsed_text((1, 2, 3))
    before = digest(bench)

    rehearsed = [rehearse(bench.gateway, parsed, ANONYMOUS) for _ in range(3)]

    assert digest(bench) == before
    assert {said(each.outcome) for each in rehearsed} == {said(Real(bench, parsed).outcome())}


def test_turns_are_not_taken() -> None:
    bench, parsed = Bench(workers=3), parsed_text((1,))
    decider = bench.gateway.placing.decider
    decider.use(replace(decider.rules, policy=make_policy("round_robin")))
    outcomes = [rehearse(bench.gateway, parsed, ANONYMOUS).outcome for _ in range(3)]
    assert {said(outcome) for outcome in outcomes} == {("place", "w0:80", "", "cold")}


def test_another_policy_can_be_asked() -> None:
    """One has the prompt and a request in flight, the other is idle."""
    bench, parsed = Bench(workers=2), parsed_text(tuple(range(40)))
    now_us = bench.time.clock.now_us()
    bench.shared.publish(Placed("load", now_us, "w0:80", "r2", 1000, 5, 20, parsed.paths))

    own = rehearse(bench.gateway, parsed, ANONYMOUS).outcome
    other = rehearse(bench.gateway, parsed, ANONYMOUS, make_policy("least_load")).outcome

    assert (said(own)[1], said(other)[1]) == ("w0:80", "w1:80")
    assert bench.gateway.placing.decider.policy.name == "expected_cost"


def test_one_that_would_wait_gets_no_ticket() -> None:
    bench = Bench(workers=1)
    for number in range(3):
        load(bench, "w0:80", 400_000, f"load-{number}")
    rehearsed = rehearse(bench.gateway, parsed_text((1,)), ANONYMOUS)
    assert isinstance(rehearsed.outcome, Queued)
    assert not bench.shared.said(Waiting)
    assert bench.shared.fleet.tickets.count == 0


def test_without_anybody_it_ends_in_what_a_client_would_be_told() -> None:
    rehearsed = rehearse(Bench(workers=0).gateway, parsed_text((1,)), ANONYMOUS)
    assert isinstance(rehearsed.outcome, NoWorker)
    assert rehearsed.scored is None


def test_what_has_no_prompt_is_placed_like_any_other() -> None:
    rehearsed = rehearse(Bench(workers=1).gateway, parsed_text((), paths=(), prompt_bytes=0), ANONYMOUS)
    assert isinstance(rehearsed.outcome, Decision)
    assert rehearsed.scored is not None
