"""One request, followed through plain and split fleets."""

from dataclasses import replace

import pytest
from fakes.workloads import request

from loadtest.engine.kv.rules import CacheRules
from loadtest.engine.profiles import PROFILES
from loadtest.engine.timing import LinkTiming
from loadtest.simulator.clock import VirtualClock
from loadtest.simulator.fleet import Fleet, WorkerGroup
from loadtest.simulator.flight import Flight
from loadtest.simulator.records import Outcome
from loadtest.simulator.replica import START_NS, Replica, ReplicaRules
from loadtest.simulator.shared_log import SharedLog
from loadtest.simulator.site_links import LinkPlan, Weather
from policies import FULL_ATTENTION, FleetRules, make_policy

ENGINE = replace(
    PROFILES["dense-70b"],
    rules=CacheRules(full_tokens=20_000),
    chunk_tokens=0,
    handover=LinkTiming(bytes_per_s=1e9),
)
PROMPT = request(bytes(i % 251 for i in range(9000)), tokens=6400, output_tokens=50)


class Setup:
    """A fleet, one replica, and a watcher that notes its calls."""

    def __init__(self, decode: int = 0, link: LinkPlan | None = None) -> None:
        self.clock = VirtualClock()
        self.fleet = Fleet(ENGINE, self.clock, 1, decode)
        if link is not None:
            groups = (
                WorkerGroup(name="far", profile=ENGINE, count=1, role="prefill", site="far"),
                WorkerGroup(name="near", profile=ENGINE, count=1, role="decode", site="near"),
            )
            self.fleet = Fleet(ENGINE, self.clock, 0, 0, groups=groups, links={"far>near": link})
        rules = ReplicaRules(
            policy=make_policy("expected_cost"),
            decode_policy=make_policy("least_load"),
            profile=FULL_ATTENTION,
            fleet=FleetRules(),
        )
        self.replica = Replica("r0", self.clock, rules, SharedLog(self.clock, delay_s=0.0, pause_s=0.0))
        self.replica.know(self.fleet.puts(START_NS // 1000))
        self.told: list[tuple[str, float]] = []

    def placed(self, flight: Flight) -> None:
        self.told.append(("placed", self.clock.time()))

    def began(self, flight: Flight) -> None:
        self.told.append(("began", self.clock.time()))

    def ended(self, flight: Flight) -> None:
        self.told.append(("ended", self.clock.time()))

    def begin(self, asked: object = PROMPT) -> Flight:
        flight = Flight(asked, self.fleet, self.replica, self)  # type: ignore[arg-type]
        flight.begin()
        return flight

    @property
    def idle(self) -> bool:
        """True if no request holds anything any more, in the engines and in the log."""
        engines = [*self.fleet.workers, *self.fleet.decode_workers]
        used = sum(engine.used_tokens + engine.running + engine.waiting for engine in engines)
        return used == 0 and not self.replica.fleet.loads.requests


def test_a_plain_request_is_answered_by_its_worker() -> None:
    setup = Setup()
    flight = setup.begin()
    setup.clock.run()

    assert [name for name, _ in setup.told] == ["placed", "began", "ended"]
    assert flight.outcome is Outcome.COMPLETED
    assert flight.first_s == pytest.approx(ENGINE.prefill.prompt_s(6400, 0))
    assert flight.finished_s > flight.first_s
    assert (flight.worker, flight.decode_worker) == (0, -1)
    assert setup.idle


def test_a_split_answer_begins_when_the_rest_of_its_kv_has_crossed_the_link() -> None:
    """2.1 GB at 1 GB/s, of which 0.3 s of prefill hid 0.3 GB."""
    setup = Setup(decode=1)
    flight = setup.begin()
    setup.clock.run()

    prefill_s = ENGINE.prefill.prompt_s(6400, 0)
    rest_s = ENGINE.shape.kv_bytes(6400) / 1e9 - prefill_s
    assert rest_s > 1.0
    assert flight.first_s == pytest.approx(prefill_s + rest_s)
    assert [name for name, _ in setup.told] == ["placed", "began", "ended"]
    assert flight.outcome is Outcome.COMPLETED
    assert flight.decode_worker == 0
    assert setup.idle


def test_kv_crosses_a_wide_link_while_it_is_computed() -> None:
    setup = Setup(link=LinkPlan(bytes_per_s=1e12, rtt_s=0.05))
    flight = setup.begin()
    setup.clock.run()

    assert flight.first_s == pytest.approx(ENGINE.prefill.prompt_s(6400, 0) + 0.05)
    assert setup.fleet.links["far>near"].egress()[1][-1] == pytest.approx(ENGINE.shape.kv_bytes(6400))
    assert flight.outcome is Outcome.COMPLETED
    assert setup.idle


def test_an_answer_waits_for_a_link_that_is_slow_or_dead() -> None:
    setup = Setup(
        link=LinkPlan(bytes_per_s=1e9, weather=(Weather(at_s=1, capacity_ratio=0), Weather(at_s=5)))
    )
    flight = setup.begin()
    setup.clock.run()

    assert flight.first_s == pytest.approx(ENGINE.shape.kv_bytes(6400) / 1e9 + 4.0)
    assert flight.outcome is Outcome.COMPLETED
    assert setup.idle


def test_a_transfer_waits_for_room_on_the_decode_worker() -> None:
    """Three requests of 6,450 tokens fit in 20,000; the fourth is sent when the first has ended."""
    setup = Setup(decode=1)
    flights = [setup.begin() for _ in range(4)]
    setup.clock.run()

    first_s = sorted(flight.first_s for flight in flights)
    ended_s = sorted(flight.finished_s for flight in flights)
    rest_s = ENGINE.shape.kv_bytes(6400) / 1e9 - ENGINE.prefill.prompt_s(6400, 0)
    assert first_s[3] > ended_s[0] + 0.99 * rest_s
    assert all(flight.outcome is Outcome.COMPLETED for flight in flights)
    assert setup.idle


@pytest.mark.parametrize(("decode", "tokens"), [(0, 25_000), (1, 25_000), (1, 19_900)])
def test_what_can_never_fit_is_rejected_and_forgotten(decode: int, tokens: int) -> None:
    """19,900 tokens fit in the prefill worker's 20,000, but not with 500 more in the decode worker's."""
    setup = Setup(decode)
    flight = setup.begin(request(bytes(i % 251 for i in range(30_000)), tokens=tokens, output_tokens=500))
    other = setup.begin()
    setup.clock.run()

    assert flight.outcome is Outcome.REJECTED
    assert other.outcome is Outcome.COMPLETED
    assert [name for name, _ in setup.told].count("ended") == 2
    assert setup.idle


@pytest.mark.parametrize(("decode", "at_s"), [(0, 0.1), (0, 0.6), (1, 0.1), (1, 1.0), (1, 2.5)])
def test_a_worker_that_drops_a_request_fails_it_once(decode: int, at_s: float) -> None:
    """While it prefills, decodes, or (split) while its KV is on the link and when it is decoded."""
    setup = Setup(decode)
    flight = setup.begin()
    setup.clock.call_at(at_s, lambda: [worker.abort_id("") for worker in setup.fleet.workers])
    setup.clock.call_at(at_s, lambda: [worker.abort_id("") for worker in setup.fleet.decode_workers])
    setup.clock.run()

    assert flight.outcome is Outcome.FAILED
    assert [name for name, _ in setup.told].count("ended") == 1
    assert setup.idle
