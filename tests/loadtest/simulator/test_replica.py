"""Operations of a simulated replica, and the time at which the others apply them."""

import numpy as np
import pytest
from fakes.workloads import request

from loadtest.simulator.clock import VirtualClock
from loadtest.simulator.records import Outcome
from loadtest.simulator.replica import START_NS, Dispatch, Replica, ReplicaRules
from loadtest.simulator.shared_log import SharedLog
from loadtest.simulator.workload import SimRequest
from policies import FULL_ATTENTION, FleetRules, LengthBuckets, Usage, WorkerPut, make_policy

PROMPT = request(np.random.default_rng(1).bytes(5000), tokens=4200, output_tokens=300)


class Caller:
    """Notes the outcome of its request."""

    def __init__(self) -> None:
        self.got: Dispatch | Outcome | None = None

    def dispatched(self, dispatch: Dispatch) -> None:
        self.got = dispatch

    def refused(self, outcome: Outcome) -> None:
        self.got = outcome


class Setup:
    """Two replicas 10 ms apart, with so many workers of each role."""

    def __init__(
        self,
        plain: int = 2,
        decode: int = 0,
        buckets: LengthBuckets | None = None,
        labels: tuple[str, ...] = (),
    ) -> None:
        self.clock = VirtualClock()
        log = SharedLog(self.clock, delay_s=0.010, pause_s=0.0)
        rules = ReplicaRules(
            policy=make_policy("expected_cost"),
            decode_policy=make_policy("least_load"),
            profile=FULL_ATTENTION,
            fleet=FleetRules(buckets=buckets),
        )
        self.here, self.there = (Replica(name, self.clock, rules, log) for name in ("r0", "r1"))
        roles = ["prefill" if decode else "plain"] * plain + ["decode"] * decode
        puts = [
            WorkerPut(
                f"w{slot}",
                START_NS // 1000,
                "",
                f"http://w{slot}",
                role,
                labels={"bucket": labels[slot]} if slot < len(labels) else {},
            )
            for slot, role in enumerate(roles)
        ]
        for replica in (self.here, self.there):
            replica.know(puts)

    def take(self, prompt: SimRequest = PROMPT, flow: str = "normal/") -> Caller:
        caller = Caller()
        self.here.take(prompt.blocks, prompt.tokens, caller, flow)
        return caller

    def dispatch(self, prompt: SimRequest = PROMPT) -> Dispatch:
        dispatch = self.take(prompt).got
        assert isinstance(dispatch, Dispatch)
        return dispatch

    def inflight(self, replica: Replica) -> list[float]:
        slots = len(replica.fleet.workers())
        return replica.fleet.loads.inflight_requests[:slots].tolist()

    def after(self, delay_s: float) -> None:
        self.clock.call_later(delay_s, lambda: None)
        self.clock.run()


def test_a_reservation_counts_here_at_once_and_there_later() -> None:
    setup = Setup(plain=1)
    seen: list[list[float]] = []
    setup.dispatch()
    setup.clock.call_at(0.009, lambda: seen.append(setup.inflight(setup.there)))

    assert setup.inflight(setup.here) == [1]
    setup.clock.run()

    assert seen == [[0]]
    assert setup.inflight(setup.there) == [1]


def test_the_gateway_sees_every_fourth_block_of_the_engine() -> None:
    """4,200 tokens are 16 blocks of 256; each is known by the hash of its last block of 64."""
    path = Setup().dispatch().parsed.paths[0]

    engine = np.frombuffer(PROMPT.blocks, "<u8")
    assert len(engine) == 65
    assert np.frombuffer(path, "<u8").tolist() == engine[[4 * block + 3 for block in range(16)]].tolist()


def test_a_prompt_goes_where_it_was_and_is_predicted_to_be_reused() -> None:
    setup = Setup()
    first = setup.dispatch()
    setup.here.first_token(first)
    setup.here.completed(first, Usage(4200, 0, 300), 0.3, 0.0, told=True)

    again = setup.dispatch()

    assert again.attempt.worker_id == first.attempt.worker_id
    assert again.attempt.chosen.safe_tokens == 4096


@pytest.mark.parametrize("decode", [0, 2])
def test_whatever_becomes_of_a_request_its_reservations_end(decode: int) -> None:
    setup = Setup(decode=decode)
    both = 1 + (decode > 0)
    done, failed_late, failed_early, short = (setup.dispatch() for _ in range(4))
    assert sum(setup.inflight(setup.here)) == 4 * both

    for dispatch in (done, failed_late, *((short,) if decode else ())):
        setup.here.first_token(dispatch)
    setup.here.completed(done, Usage(4200, 0, 300), 0.3, 0.0, told=True)
    setup.here.aborted(failed_late, told=True)
    setup.here.aborted(failed_early, told=False)
    setup.here.completed(short, Usage(4200, 0, 1), 0.3, 0.0, told=decode > 0)
    setup.after(1.0)

    for replica in (setup.here, setup.there):
        assert not any(setup.inflight(replica))
        assert not replica.fleet.loads.prefill_us.any()
        assert not replica.fleet.loads.inflight_tokens.any()


def test_a_prefill_worker_is_free_once_the_blocks_are_handed_over() -> None:
    setup = Setup(plain=1, decode=2)
    dispatch = setup.dispatch()
    assert setup.inflight(setup.here) == [1, 1, 0] or setup.inflight(setup.here) == [1, 0, 1]
    assert setup.here.fleet.loads.prefill_us[1:3].tolist() == [0, 0]

    setup.here.first_token(dispatch)

    assert setup.inflight(setup.here)[0] == 0
    assert sum(setup.inflight(setup.here)) == 1


def test_what_was_inserted_on_trust_is_taken_out_after_a_failure() -> None:
    setup = Setup(plain=1)
    setup.here.aborted(setup.dispatch(), told=False)

    assert setup.here.fleet.tree.held_blocks(0) == 0


def test_what_the_worker_did_not_have_is_trimmed_everywhere() -> None:
    """Two prompts share 8 blocks; the worker reuses nothing of the second, so the first is gone, too."""
    setup = Setup(plain=1)
    start = np.random.default_rng(1).bytes(2048)
    first, second = (
        request(start + np.random.default_rng(seed).bytes(3000), tokens=4200, output_tokens=1)
        for seed in (2, 3)
    )
    for prompt in (first, second):
        dispatch = setup.dispatch(prompt)
        setup.here.completed(dispatch, Usage(4200, 0 if prompt is second else None, 1), 0.3, 0.0, told=False)
        setup.after(1.0)

    for replica in (setup.here, setup.there):
        assert replica.fleet.tree.held_blocks(0) == 16


def test_nobody_to_ask_is_an_answer() -> None:
    setup = Setup(plain=0, decode=1)
    assert setup.take().got is Outcome.REJECTED
    assert setup.inflight(setup.here) == [0]


@pytest.mark.parametrize("decode", [0, 1])
def test_a_request_goes_to_its_bucket_by_prompt_plus_expected_output(decode: int) -> None:
    """4,200 tokens and 256 expected ones are 4,456: the bound that they just meet, and one below."""
    for bound, home, spilled in ((4_456, {"w0", "w2"}, "spilled_up"), (4_455, {"w1"}, "spilled_down")):
        buckets = LengthBuckets((bound, 10_000))
        short, long = buckets.names
        setup = Setup(plain=3, decode=decode, buckets=buckets, labels=(short, long, short))

        dispatches = [setup.dispatch() for _ in range(6)]

        attempts = [dispatch.attempt for dispatch in dispatches]
        assert attempts[0].worker_id in home
        assert all((one.worker_id in home) == (one.chosen.reason != spilled) for one in attempts)
        assert all((dispatch.decode_attempt is not None) == bool(decode) for dispatch in dispatches)


def test_what_exceeds_the_last_bucket_finds_nobody() -> None:
    buckets = LengthBuckets((4_455,))
    setup = Setup(plain=2, buckets=buckets, labels=buckets.names * 2)

    assert setup.take().got is Outcome.REJECTED
    assert setup.inflight(setup.here) == [0, 0]
