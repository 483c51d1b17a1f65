"""The part of the fleet that a replica may use, and its delay in noticing changes."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from fakes.gateway import FakeShared, VirtualTime, pool_of, registry

from policies import (
    ANY_LENGTH,
    Circuit,
    CircuitSet,
    FleetRules,
    Forget,
    LengthClass,
    Started,
    Worker,
    WorkerPut,
    turn_of,
)
from router.engines import Description
from router.errors import (
    ClientError,
    StreamBroken,
    UpstreamError,
    WorkerRefused,
    WorkerSilent,
    WorkerUnreachable,
)
from router.fleet import Health, LocalWorker, Registry, ServedModel
from router.fleet.registry import NAMES_MAX


class Setup:
    def __init__(self, rules: FleetRules | None = None) -> None:
        self.time = VirtualTime()
        self.shared = FakeShared(rules)
        self.registry = registry(self.shared, self.time)
        self.changes = 0
        self.registry.on_change = self._changed

    def _changed(self) -> None:
        self.changes += 1

    def add(self, *names: str) -> list[LocalWorker]:
        """Add healthy workers."""
        return [self._added(name) for name in names]

    def _added(self, name: str) -> LocalWorker:
        local = self.registry.get(self.registry.add(f"http://{name}"))
        assert local is not None
        self.probe(local)
        return local

    def probe(self, local: LocalWorker, *, ok: bool = True, refused: bool = False) -> bool:
        return self.registry.probed(local, ok=ok, refused=refused, detail="as told")

    def now_us(self) -> int:
        return self.time.clock.now_us()

    def fail(self, local: LocalWorker, error: UpstreamError | None = None) -> None:
        """Let a request fail that was sent just now."""
        now_us = self.now_us()
        error = error or WorkerSilent("silent")
        self.registry.noticed(local, error, now_us)
        self.registry.circuits.failed(local, now_us, now_us, error.code)

    def eligible(self, model: str | None = "m", length: LengthClass = ANY_LENGTH) -> list[str]:
        slots = self.registry.eligible(model, self.now_us(), length)
        return [self.registry.at_slot(slot).worker.worker_id for slot in slots.tolist()]


@pytest.fixture
def setup() -> Setup:
    return Setup()


# Workers that may take a request.


def test_a_worker_serves_from_its_first_good_probe(setup: Setup) -> None:
    local = setup.registry.get(setup.registry.add("http://a"))
    assert local is not None
    assert setup.changes == 1
    assert (local.state, setup.eligible()) == ("starting", [])
    assert setup.probe(local)
    assert (local.state, local.detail, setup.eligible()) == ("healthy", "as told", ["a:80"])


def test_a_worker_leaves_after_failures_in_a_row_and_returns_after_successes_in_a_row(setup: Setup) -> None:
    """Three failures, two successes."""
    (a,) = setup.add("a")
    for outcome in (False, False, True, False, False):
        assert not setup.probe(a, ok=outcome)
    assert setup.eligible() == ["a:80"]
    assert setup.probe(a, ok=False)
    assert (a.health, setup.eligible()) == (Health.UNHEALTHY, [])
    assert not setup.probe(a)
    assert not setup.probe(a, ok=False)
    assert not setup.probe(a)
    assert setup.eligible() == []
    assert setup.probe(a)
    assert setup.eligible() == ["a:80"]


def test_one_refused_connection_is_enough(setup: Setup) -> None:
    (a,) = setup.add("a")
    assert setup.probe(a, ok=False, refused=True)
    assert setup.eligible() == []


def test_a_drained_worker_takes_no_new_requests_until_it_is_back(setup: Setup) -> None:
    a, _ = setup.add("a", "b")
    assert setup.registry.change("a:80", draining=True)
    assert (a.state, setup.eligible()) == ("draining", ["b:80"])
    assert setup.registry.change("a:80", labels={"zone": "1"})
    assert setup.eligible() == ["b:80"]
    assert setup.registry.change("a:80", draining=False)
    assert (a.worker.labels, setup.eligible()) == ({"zone": "1"}, ["a:80", "b:80"])


def test_a_worker_takes_requests_for_the_models_it_lists(setup: Setup) -> None:
    a, _ = setup.add("a", "b")
    assert setup.eligible("x") == ["a:80", "b:80"]
    setup.registry.described(a, (ServedModel("m"),), Description("sglang", 0))
    assert setup.eligible("m") == ["a:80", "b:80"]
    assert setup.eligible("x") == ["b:80"]
    assert setup.eligible(None) == ["a:80", "b:80"]
    setup.registry.described(a, (ServedModel("x"),), Description("", 0))
    assert (setup.eligible("m"), setup.eligible("x")) == (["b:80"], ["a:80", "b:80"])
    assert a.engine == "sglang"


def test_a_workers_rule_of_windows_is_its_labels_or_its_engines(setup: Setup) -> None:
    a, b = setup.add("a", "b")
    assert setup.registry.engine_rule(a.worker.slot) is None
    setup.registry.described(a, None, Description("sglang"))
    setup.registry.described(b, None, Description("another"))
    assert [setup.registry.engine_rule(local.worker.slot) for local in (a, b)] == ["sglang", None]
    for local, told in ((a, "vllm"), (b, "sglang")):
        assert setup.registry.change(local.worker.worker_id, labels={"engine_rule": told})
    assert [setup.registry.engine_rule(local.worker.slot) for local in (a, b)] == ["vllm", "sglang"]


def test_a_model_is_known_if_some_worker_lists_it_well_or_not(setup: Setup) -> None:
    assert setup.registry.knows("m")  # no worker has listed other models
    a, b = setup.add("a", "b")
    setup.registry.described(a, (ServedModel("m"),), Description("", 0))
    assert setup.registry.knows("x")  # b has not listed its models yet
    setup.registry.described(b, (ServedModel("n"),), Description("", 0))
    setup.probe(a, ok=False, refused=True)
    assert setup.registry.knows("m")
    assert not setup.registry.knows("x")


def test_workers_of_an_engine_can_be_left_out(setup: Setup) -> None:
    """Also those whose engine is known only later, or changes: what was kept of the list is dropped."""
    workers = setup.add("a:1", "b:1", "c:1")
    slots = np.array([local.worker.slot for local in workers])
    sglang = frozenset({"sglang"})
    assert setup.registry.without(slots, sglang) is slots
    for engines, left in (
        (("sglang", "vllm", ""), [1, 2]),
        (("", "sglang", "sglang"), []),
        (("vllm", "", ""), [0]),
    ):
        for local, engine in zip(workers, engines, strict=True):
            setup.registry.described(local, None, Description(engine, 0))
        assert setup.registry.without(slots, sglang).tolist() == slots[left].tolist()
    assert setup.registry.without(slots, sglang | {"vllm"}).tolist() == []


def test_a_removed_worker_is_gone_and_its_connections_end_with_their_requests(setup: Setup) -> None:
    a, _ = setup.add("a", "b")
    assert setup.registry.remove("a:80")
    assert setup.eligible() == ["b:80"]
    assert pool_of(a).drained
    assert setup.registry.get("a:80") is None
    assert not setup.registry.remove("a:80")
    assert not setup.registry.change("a:80", draining=True)
    # Requests still under way there end late.
    setup.fail(a)
    setup.registry.circuits.succeeded(a, setup.now_us(), setup.now_us())
    assert setup.eligible() == ["b:80"]


def test_a_removal_that_answers_yes_has_removed_also_what_a_clock_that_is_ahead_changed(setup: Setup) -> None:
    setup.add("a")
    at_us = setup.now_us() + 5000
    setup.shared.fleet.apply(WorkerPut("a:80", at_us, "ahead", "http://a", draining=True))
    assert setup.registry.remove("a:80")
    assert setup.shared.fleet.worker("a:80") is None
    assert setup.registry.get("a:80") is None


def test_a_worker_at_another_url_starts_anew(setup: Setup) -> None:
    (a,) = setup.add("a:443")
    setup.registry.add("https://a:443")
    again = setup.registry.get("a:443")
    assert again is not None
    assert again is not a
    assert (again.health, setup.eligible(), pool_of(a).drained) == (Health.STARTING, [], True)
    assert pool_of(again).url == "https://a:443"


def test_a_change_by_another_replica_is_followed(setup: Setup) -> None:
    setup.add("a")
    setup.shared.fleet.apply(WorkerPut("b:80", setup.time.clock.now_us(), "r2", "http://b:80"))
    assert [local.worker.worker_id for local in setup.registry.all()] == ["a:80", "b:80"]
    setup.shared.fleet.apply(WorkerPut("a:80", setup.time.clock.now_us(), "r2", "http://a:80", draining=True))
    assert setup.eligible() == []


def test_names_of_models_that_clients_invent_do_not_pile_up(setup: Setup) -> None:
    setup.add("a")
    for number in range(3000):
        assert setup.eligible(f"model {number}") == ["a:80"]
        assert setup.registry.knows(f"model {number}")
    for kept in (setup.registry._eligible, setup.registry._known):
        assert len(kept) <= 1001


def test_a_name_as_long_as_a_book_is_not_kept(setup: Setup) -> None:
    setup.add("a")
    name = "model " * 100_000
    assert setup.eligible(name) == ["a:80"]
    assert setup.registry.knows(name)
    assert name not in setup.registry._eligible
    assert name not in setup.registry._known


# The circuit. Five failures open it for ten seconds, two successes close it.


def test_an_open_circuit_takes_no_requests_and_then_exactly_one_at_a_time(setup: Setup) -> None:
    a, b = setup.add("a", "b")
    for _ in range(5):
        assert setup.eligible() == ["a:80", "b:80"]
        setup.fail(a)
    assert setup.eligible() == ["b:80"]
    setup.time.advance(10.001)
    for _ in range(2):
        assert setup.eligible() == ["a:80", "b:80"]
        setup.registry.circuits.dispatched(a, setup.now_us())
        assert setup.eligible() == ["b:80"]
        setup.registry.circuits.dispatched(b, setup.now_us())
        setup.registry.circuits.succeeded(a, setup.now_us(), setup.now_us())
    assert setup.registry.circuits.state(a) is Circuit.CLOSED
    setup.registry.circuits.dispatched(a, setup.now_us())
    assert setup.eligible() == ["a:80", "b:80"]


def test_a_failed_trial_opens_the_circuit_again(setup: Setup) -> None:
    (a,) = setup.add("a")
    for _ in range(5):
        setup.fail(a)
    setup.time.advance(10.001)
    setup.registry.circuits.dispatched(a, setup.now_us())
    setup.fail(a)
    setup.time.advance(9.999)
    assert setup.eligible() == []
    setup.time.advance(0.002)
    assert setup.eligible() == ["a:80"]


def test_circuits_stay_as_they_are_when_workers_come_and_go(setup: Setup) -> None:
    a, _ = setup.add("a", "b")
    for _ in range(5):
        setup.fail(a)
    setup.add("c")
    assert setup.eligible() == ["b:80", "c:80"]
    setup.registry.remove("a:80")
    assert setup.eligible() == ["b:80", "c:80"]
    setup.add("a")
    assert setup.eligible() == ["a:80", "b:80", "c:80"]


# A lost cache.


def test_a_worker_that_refused_and_recovered_has_lost_its_cache(setup: Setup) -> None:
    (a,) = setup.add("a")
    setup.probe(a, ok=False, refused=True)
    setup.probe(a)
    assert not setup.shared.said(Forget)
    setup.probe(a)
    (forget,) = setup.shared.said(Forget)
    assert forget.worker == "a:80"
    setup.probe(a)
    assert len(setup.shared.said(Forget)) == 1


def test_a_request_that_is_refused_asks_for_a_probe_and_costs_the_cache(setup: Setup) -> None:
    (a,) = setup.add("a")
    changes = setup.changes
    setup.fail(a, WorkerRefused("refused"))
    assert setup.changes == changes + 1
    setup.probe(a)
    assert len(setup.shared.said(Forget)) == 1


def test_a_worker_that_was_only_slow_keeps_its_cache(setup: Setup) -> None:
    (a,) = setup.add("a")
    for _ in range(3):
        setup.probe(a, ok=False)
    setup.fail(a)
    for _ in range(2):
        setup.probe(a)
    assert a.health is Health.HEALTHY
    assert not setup.shared.said(Forget)


def test_a_worker_that_is_not_up_yet_has_nothing_to_lose(setup: Setup) -> None:
    local = setup.registry.get(setup.registry.add("http://a"))
    assert local is not None
    setup.probe(local, ok=False, refused=True)
    setup.probe(local)
    setup.probe(local)
    assert local.health is Health.HEALTHY
    assert not setup.shared.said(Forget)


def test_what_a_sibling_said_after_the_refusal_is_not_said_again(setup: Setup) -> None:
    (a,) = setup.add("a")
    setup.probe(a, ok=False, refused=True)
    setup.shared.fleet.apply(Forget("a:80", setup.now_us()))
    for _ in range(2):
        setup.probe(a)
    assert a.health is Health.HEALTHY
    assert not setup.shared.said(Forget)


def test_what_a_sibling_said_before_the_refusal_was_about_another_time(setup: Setup) -> None:
    (a,) = setup.add("a")
    setup.shared.fleet.apply(Forget("a:80", setup.now_us()))
    setup.probe(a, ok=False, refused=True)
    for _ in range(2):
        setup.probe(a)
    assert len(setup.shared.said(Forget)) == 1


# Start times of processes.


def starts(setup: Setup) -> list[tuple[int, bool]]:
    return [(op.started_unix_ms, op.cold) for op in setup.shared.said(Started)]


def test_the_first_start_time_is_remembered_and_forgets_nothing(setup: Setup) -> None:
    (a,) = setup.add("a")
    for _ in range(3):
        setup.registry.started(a, 10_000, setup.now_us())
    assert starts(setup) == [(10_000, False)]


def siblings(setup: Setup) -> list[tuple[Registry, LocalWorker]]:
    """Return two replicas that see the same worker; the first has its turn to report on it."""
    names = sorted(("r1", "r2"), key=lambda name: turn_of("a:80", name, ("r1", "r2")))
    both = [registry(setup.shared, setup.time, replica=name, replicas=lambda: ("r1", "r2")) for name in names]
    for one in both:
        one.probed(one.all()[0], ok=True, refused=False, detail="")
    return [(one, one.all()[0]) for one in both]


@pytest.mark.parametrize("refused", [False, True])
def test_of_several_replicas_that_hear_of_a_restart_one_says_so(setup: Setup, refused: bool) -> None:
    """The replica with the turn reports it; the other notices first, asks again and finds the report."""
    setup.registry.add("http://a")
    first, second = siblings(setup)
    for one, local in (first, second):
        one.started(local, 10_000, setup.now_us())
        if refused:
            one.probed(local, ok=False, refused=True, detail="")
    for one, local in (second, first, second):
        asked_us = setup.now_us()
        one.started(local, 20_000, asked_us)
        for _ in range(2):
            one.probed(local, ok=True, refused=False, detail="", asked_us=asked_us)
    assert starts(setup) == [(10_000, False), (20_000, True)]
    assert not setup.shared.said(Forget)
    assert [(local.suspected_us, local.heard_us, local.refused_us) for _, local in (first, second)] == [
        (0, 0, 0)
    ] * 2


def test_a_restart_that_nobody_else_speaks_of_is_said_by_who_asks_again(setup: Setup) -> None:
    setup.registry.add("http://a")
    _, (second, local) = siblings(setup)
    second.started(local, 10_000, setup.now_us())
    second.started(local, 20_000, setup.now_us())
    assert starts(setup) == [(10_000, False)]
    assert local.suspected_us > 0
    second.started(local, 20_000, setup.now_us())
    assert starts(setup) == [(10_000, False), (20_000, True)]


def test_a_start_time_that_was_asked_for_before_another_was_heard_says_nothing(setup: Setup) -> None:
    """The old process still answered when a sibling had met the new one."""
    (a,) = setup.add("a")
    setup.registry.suspect(a)
    asked_us = setup.now_us()
    setup.shared.publish(Started("a:80", setup.now_us(), "r2", 20_000, cold=True))
    setup.registry.started(a, 10_000, asked_us)
    assert len(starts(setup)) == 1


def test_several_processes_behind_one_address_are_no_restarts(setup: Setup) -> None:
    """Nor is a clock that is derived from whole seconds each time."""
    (a,) = setup.add("a")
    for started_unix_ms in (10_000, 9_000, 11_000, 10_000, 5_000):
        setup.registry.started(a, started_unix_ms, setup.now_us())
    assert starts(setup) == [(10_000, False)]


@pytest.mark.parametrize("started_unix_ms", [10_001, 5_000])
def test_any_other_start_time_is_a_restart_if_something_else_speaks_for_it(
    setup: Setup, started_unix_ms: int
) -> None:
    """The clock of its new machine may be behind."""
    (a,) = setup.add("a")
    setup.registry.started(a, 10_000, setup.now_us())
    setup.registry.suspect(a)
    setup.registry.started(a, started_unix_ms, setup.now_us())
    assert starts(setup)[1:] == [(started_unix_ms, True)]


def test_a_worker_that_refused_but_is_the_same_process_keeps_its_cache(setup: Setup) -> None:
    (a,) = setup.add("a")
    setup.registry.started(a, 10_000, setup.now_us())
    setup.fail(a, WorkerRefused("refused"))
    setup.registry.started(a, 10_000, setup.now_us())
    setup.probe(a)
    assert not setup.shared.said(Forget)
    assert len(starts(setup)) == 1


def test_a_restart_is_forgotten_once_although_it_also_refused(setup: Setup) -> None:
    (a,) = setup.add("a")
    setup.registry.started(a, 10_000, setup.now_us())
    setup.probe(a, ok=False, refused=True)
    setup.registry.started(a, 20_000, setup.now_us())
    for _ in range(3):
        setup.probe(a)
    assert starts(setup)[1:] == [(20_000, True)]
    assert not setup.shared.said(Forget)


@pytest.mark.parametrize(
    ("error", "suspicious"),
    [
        (WorkerRefused("refused"), True),
        (WorkerUnreachable("closed"), True),
        (StreamBroken("reset"), True),
        (StreamBroken("silent", code="upstream_idle_timeout"), False),
        (WorkerUnreachable("no place", code="upstream_pool_full"), False),
        (WorkerUnreachable("500", code="upstream_status_500"), False),
        (WorkerSilent("silent"), False),
    ],
)
def test_a_connection_that_ends_by_itself_smells_of_a_restart(
    setup: Setup, error: UpstreamError, suspicious: bool
) -> None:
    (a,) = setup.add("a")
    changes = setup.changes
    setup.fail(a, error)
    assert (a.suspected_us > 0, setup.changes - changes) == (suspicious, int(suspicious))


def test_an_idle_connection_that_the_worker_closes_smells_of_a_restart(setup: Setup) -> None:
    (a,) = setup.add("a")
    a.pool.on_idle_closed()
    assert a.suspected_us > 0


def test_a_suspicion_lasts_until_a_probe_that_was_sent_after_it(setup: Setup) -> None:
    (a,) = setup.add("a")
    asked_us = setup.now_us()
    setup.registry.suspect(a)
    setup.registry.probed(a, ok=True, refused=False, detail="", asked_us=asked_us)
    assert a.suspected_us > 0
    setup.probe(a)
    assert a.suspected_us == 0


# Slow start.


def ramping(setup: Setup) -> bool:
    """True if some of 200 requests skip a worker in its slow start while another one is there."""
    slots = setup.registry.eligible("m", setup.now_us())
    return any(len(setup.registry.ramped(slots, key, setup.now_us())) < len(slots) for key in range(200))


@pytest.fixture
def slow() -> Setup:
    setup = Setup()
    setup.registry = registry(setup.shared, setup.time, slow_start_s=10.0)
    return setup


def test_workers_that_are_seen_for_the_first_time_start_at_full_speed(slow: Setup) -> None:
    a, _ = slow.add("a", "b")
    slow.registry.started(a, 10_000, slow.now_us())
    slots = slow.registry.eligible("m", slow.now_us())
    assert slow.registry.ramped(slots, 1, slow.now_us()) is slots
    assert slow.registry.share(a, slow.now_us()) == 1.0


def _unhealthy(setup: Setup, a: LocalWorker) -> None:
    setup.probe(a, ok=False, refused=True)
    setup.probe(a)
    setup.probe(a)


def _restarted_elsewhere(setup: Setup, a: LocalWorker) -> None:
    setup.shared.publish(Started("a:80", setup.now_us(), "r2", 20_000, cold=True))


def _restored(setup: Setup, a: LocalWorker) -> None:
    setup.shared.publish(CircuitSet("a:80", setup.now_us(), "r2", Circuit.CLOSED))


@pytest.mark.parametrize("returns", [_unhealthy, _restarted_elsewhere, _restored])
def test_a_worker_that_returns_takes_a_growing_share(
    slow: Setup, returns: Callable[[Setup, LocalWorker], None]
) -> None:
    a, _ = slow.add("a", "b")
    returns(slow, a)
    assert ramping(slow)
    assert slow.registry.share(a, slow.now_us()) == 0.1
    slow.time.advance(5)
    assert slow.registry.share(a, slow.now_us()) == pytest.approx(0.5, abs=0.01)
    slow.time.advance(5)
    assert not ramping(slow)


def test_if_all_have_just_returned_somebody_takes_each_request(slow: Setup) -> None:
    for a in slow.add("a", "b"):
        _unhealthy(slow, a)
    slots = slow.registry.eligible("m", slow.now_us())
    assert {len(slow.registry.ramped(slots, key, slow.now_us())) for key in range(300)} == {1, 2}


def test_slow_start_can_be_turned_off(setup: Setup) -> None:
    a, _ = setup.add("a", "b")
    _unhealthy(setup, a)
    assert not ramping(setup)
    assert setup.registry.share(a, setup.now_us()) == 1.0


# Descriptions of workers.


def told(ranks: int, capacity_tokens: int = 1000) -> Description:
    return Description("sglang", capacity_tokens, ranks=ranks)


def test_the_ranks_that_an_engine_tells_are_places_and_another_process_may_have_others(
    setup: Setup,
) -> None:
    a, b = setup.add("a", "b")
    for local in (a, b):
        setup.probe(local)
    setup.registry.described(a, None, told(2))
    assert [place.worker_id for place in a.places] == ["a:80@0", "a:80@1"]
    assert sorted(setup.eligible(None)) == ["a:80", "a:80", "b:80"]
    setup.registry.described(a, None, Description())  # not asked
    assert len(a.places) == 2
    setup.registry.described(a, None, told(4, 3000))
    assert [place.capacity_tokens for place in a.places] == [750] * 4
    assert all(setup.registry.at_slot(place.slot) is a for place in a.places)
    setup.registry.described(a, None, told(1))
    assert a.places == (a.worker,)
    assert setup.eligible(None) == ["a:80", "b:80"]


@pytest.mark.parametrize(("label", "ranks"), [("4", 4), ("", 2), ("0", 2), ("many", 2), ("513", 2)])
def test_a_label_counts_before_the_engines_number(setup: Setup, label: str, ranks: int) -> None:
    (a,) = setup.add("a")
    setup.registry.change("a:80", labels={"dp_size": label})
    setup.registry.described(a, None, told(2))
    assert len(a.places) == ranks


@pytest.mark.parametrize("ranks", [0, 513, 4096])
def test_an_engine_that_cannot_be_told_a_rank_or_tells_too_many_is_one_place(
    setup: Setup, ranks: int
) -> None:
    (a,) = setup.add("a")
    setup.registry.change("a:80", labels={"dp_size": "4"} if not ranks else {})
    setup.registry.described(a, None, told(ranks))
    assert a.places == (a.worker,)


def test_an_operator_may_name_a_worker_by_one_of_its_ranks(setup: Setup) -> None:
    (a,) = setup.add("a")
    setup.registry.described(a, None, told(2))
    assert setup.registry.get("a:80@1") is a
    assert setup.registry.change("a:80@1", draining=True)
    assert a.worker.draining
    assert all(place.draining for place in a.places)
    assert setup.registry.remove("a:80@0")
    assert setup.registry.all() == []


def test_a_reported_capacity_counts_unless_one_was_given(setup: Setup) -> None:
    (a,) = setup.add("a")
    setup.registry.described(a, None, Description("vllm", 5000))
    assert a.worker.capacity_tokens == 5000
    setup.registry.described(a, None, Description("vllm", 6000))
    assert a.worker.capacity_tokens == 5000
    assert setup.registry.change("a:80", capacity_tokens=7000)
    assert a.worker.capacity_tokens == 7000


def test_a_url_that_is_none_changes_nothing(setup: Setup) -> None:
    with pytest.raises(ClientError):
        setup.registry.add("not a url")
    assert setup.shared.ops == []


def test_what_was_said_of_a_static_worker_wins_over_the_settings_of_a_restart(setup: Setup) -> None:
    setup.registry.add("http://a", static=True)
    setup.registry.add("http://b", static=True)
    setup.registry.change("a:80", draining=True, capacity_tokens=9)
    setup.registry.remove("b:80")
    restarted = _restarted(setup)
    restarted.add("http://a", static=True)
    restarted.add("http://b", static=True)
    (a,) = restarted.all()
    assert (a.worker.draining, a.worker.capacity_tokens) == (True, 9)


def test_what_was_said_of_a_static_worker_lasts(setup: Setup) -> None:
    """Also after the removed worker's row was freed."""
    setup.registry.add("http://a", static=True)
    setup.registry.add("http://b", static=True)
    setup.registry.change("a:80", draining=True)
    setup.registry.remove("b:80")
    setup.time.advance(61)
    setup.shared.fleet.collect(setup.time.clock.now_us())
    restarted = _restarted(setup)
    restarted.add("http://a", static=True)
    restarted.add("http://b", static=True)
    assert [(local.worker.worker_id, local.state) for local in restarted.all()] == [("a:80", "draining")]


def _restarted(setup: Setup) -> Registry:
    return registry(setup.shared, setup.time)


def test_closing_closes_all_connections(setup: Setup) -> None:
    workers = setup.add("a", "b")
    setup.registry.close()
    assert all(pool_of(local).closed for local in workers)


# Length buckets.


def labelled(setup: Setup, **labels: str) -> dict[str, LocalWorker]:
    """Healthy workers with the label of their bucket."""
    found = {}
    for name, label in labels.items():
        (local,) = setup.add(name)
        assert setup.registry.change(local.worker.worker_id, labels={"bucket": label})
        found[name] = local
    return found


def test_workers_of_all_buckets_may_take_a_length_and_those_that_are_unwell_none(setup: Setup) -> None:
    workers = labelled(setup, a="0-64K", b="64K-256K", c="256K-1M")
    assert setup.eligible(length=LengthClass(1)) == ["a:80", "b:80", "c:80"]
    setup.probe(workers["b"], ok=False, refused=True)
    assert setup.eligible(length=LengthClass(1)) == ["a:80", "c:80"]
    setup.registry.change("a:80", draining=True)
    assert setup.eligible(length=LengthClass(1)) == ["c:80"]


def test_a_worker_that_cannot_hold_what_a_bucket_takes_is_not_visited(setup: Setup) -> None:
    """It reports 65,536 tokens for its model, the others 200,000; for another model it reports none."""
    workers = labelled(setup, a="0-64K", b="64K-256K", c="256K-1M")
    for name, length in (("a", 65_536), ("b", 200_000), ("c", 200_000)):
        models = (ServedModel("m", length), ServedModel("x"))
        setup.registry.described(workers[name], models, Description("", 0))
    assert setup.eligible(length=LengthClass(0)) == ["a:80", "b:80", "c:80"]
    assert setup.eligible(length=LengthClass(1)) == ["b:80", "c:80"]
    assert setup.eligible("x", length=LengthClass(1)) == ["a:80", "b:80", "c:80"]
    setup.registry.change("a:80", capacity_tokens=100_000)
    assert setup.eligible("x", length=LengthClass(1)) == ["b:80", "c:80"]


def test_limits_are_what_some_workers_of_a_model_hold_and_others_exceed(setup: Setup) -> None:
    a, b, c = setup.add("a", "b", "c")
    assert setup.registry.limits("m") == ()
    for local, length in ((a, 4096), (b, 4096), (c, 4096)):
        setup.registry.described(local, (ServedModel("m", length), ServedModel("x")), Description("", 0))
    assert setup.registry.limits("m") == setup.registry.limits("x") == ()
    assert setup.registry.may_limit, "the models differ, if not the workers"
    setup.registry.described(a, (ServedModel("m", 1024), ServedModel("x")), Description("", 0))
    assert setup.registry.limits("m") == (1024,)
    assert setup.registry.limits("x") == ()
    assert setup.eligible("m", length=LengthClass(exceeds_tokens=1024)) == ["b:80", "c:80"]
    assert setup.eligible("m") == ["a:80", "b:80", "c:80"]
    setup.registry.described(
        c, (ServedModel("m"),), Description("", 0)
    )  # the worker does not report its limit, and may hold more than all
    assert setup.registry.limits("m") == (1024, 4096)
    assert setup.eligible("m", length=LengthClass(exceeds_tokens=4096)) == ["c:80"]


def test_while_all_workers_take_the_same_length_no_limit_is_asked_for(setup: Setup) -> None:
    a, b = setup.add("a", "b")
    for length, differ in ((0, False), (4096, False), (1024, True)):
        setup.registry.described(a, (ServedModel("m", length),), Description("", 0))
        setup.registry.described(b, (ServedModel("m", min(length, 1) * 4096),), Description("", 0))
        assert setup.registry.may_limit
        assert bool(setup.registry.limits("m")) is setup.registry.may_limit is differ


def test_limits_of_models_that_clients_invent_do_not_pile_up(setup: Setup) -> None:
    setup.add("a")
    for number in range(3 * NAMES_MAX):
        setup.registry.limits(f"invented {number}")
    setup.registry.limits("m" * 10_000)
    assert len(setup.registry._limits) <= NAMES_MAX + 1


def test_what_exceeds_all_buckets_fits_only_who_takes_any_length(setup: Setup) -> None:
    labelled(setup, a="0-64K", b="256K-1M")
    longest = LengthClass(3)
    assert (setup.eligible(length=longest), setup.registry.fits("m", longest)) == ([], False)
    (any_length,) = setup.add("c")
    assert (setup.eligible(length=longest), setup.registry.fits("m", longest)) == (
        ["c:80"],
        True,
    )
    setup.probe(any_length, ok=False, refused=True)
    assert (setup.eligible(length=longest), setup.registry.fits("m", longest)) == ([], True)


def test_since_when_a_worker_drains_is_said_once(setup: Setup) -> None:
    """The worker keeps its time through other changes, and is asked to leave only while it drains."""
    setup.add("a")
    setup.registry.change("a:80", leaving=True)
    assert (worker(setup).drain_us, worker(setup).leaving) == (0, False)
    before_us = setup.now_us()
    setup.registry.change("a:80", draining=True, leaving=True)
    since_us = worker(setup).drain_us
    assert before_us < since_us < setup.now_us()
    setup.time.advance(5)
    setup.registry.change("a:80", labels={"zone": "b"}, draining=True)
    assert (worker(setup).drain_us, worker(setup).leaving) == (since_us, True)
    setup.registry.change("a:80", draining=False)
    assert (worker(setup).drain_us, worker(setup).leaving) == (0, False)


def test_a_change_survives_one_by_another_replica_that_did_not_know_of_it(setup: Setup) -> None:
    setup.add("a")
    known = worker(setup)
    setup.registry.change("a:80", draining=True, labels={"zone": "b"})
    at_us = setup.now_us() + 1
    setup.shared.publish(known.changed(at_us, "r2", role="decode"))
    changed = worker(setup)
    assert (changed.role, changed.draining, changed.labels) == ("decode", True, {"zone": "b"})


def worker(setup: Setup) -> Worker:
    local = setup.registry.get("a:80")
    assert local is not None
    return local.worker


def test_engines_names_of_a_model_follow_what_they_list(setup: Setup) -> None:
    """A name that no worker lists stands for the fleet's only model, or else for itself."""
    (a,) = setup.add("a")
    assert setup.registry.cached_as("alias") == "alias"
    models = (ServedModel("m", root="/m"), ServedModel("alias", root="/m"))
    setup.registry.described(a, models, Description("vllm", 0))
    names = ("alias", "m", "x", "alias:ad", "")
    assert [setup.registry.cached_as(name) for name in names] == ["m", "m", "m", "ad", "m"]
    setup.registry.rules = replace(setup.registry.rules, unlisted_models="refuse")
    assert [setup.registry.listed_as(name) for name in names] == ["alias", "m", "x", "alias", ""]
    assert [setup.registry.cached_as(name) for name in names] == ["m", "m", "x", "ad", ""]
    for number in range(3000):
        setup.registry.cached_as(f"{number}")
    assert len(setup.registry._cached_as) <= 1001
    assert len(setup.registry._listed_as) <= 1001
