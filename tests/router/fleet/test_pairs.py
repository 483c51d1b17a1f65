"""Workers that may begin a request, and their partners, in a fleet of prefill, decode and plain workers."""

import pytest
from fakes.gateway import FakeShared, VirtualTime, registry

from policies import ALONE, ANY_LENGTH, Circuit, CircuitSet
from router.engines import Description
from router.fleet import LocalWorker, ServedModel
from router.settings import FleetSettings


class Setup:
    """Healthy workers by name, role and hand-over protocol."""

    def __init__(self) -> None:
        self.time = VirtualTime()
        self.shared = FakeShared()
        self.registry = registry(self.shared, self.time)

    def add(self, name: str, role: str, protocol: str = "", **labels: str) -> LocalWorker:
        labels = {**({"handover": protocol} if protocol else {}), **labels}
        local = self.registry.get(self.registry.add(f"http://{name}", role=role, labels=labels))
        assert local is not None
        self.registry.probed(local, ok=True, refused=False, detail="")
        return local

    @property
    def now_us(self) -> int:
        return self.time.clock.now_us()

    def beginners(self, model: str | None = None) -> list[str]:
        """Return the names of workers that may begin."""
        return self.names(self.registry.eligible(model, self.now_us).tolist())

    def partners(self, model: str | None = None) -> dict[str, list[str]]:
        """Return the possible partners of each beginner that needs one, by name."""
        slots = self.registry.eligible(model, self.now_us)
        pairing = self.registry.pairing(slots, model, self.now_us)
        if pairing is None:
            return {}
        assert pairing.slots is slots
        found = {}
        for slot, group in zip(slots.tolist(), pairing.groups.tolist(), strict=True):
            if group != ALONE:
                partners = pairing.partners[group]
                local = self.registry.at_slot(slot)
                assert local.protocol == partners.protocol
                found[local.worker.worker_id.removesuffix(":80")] = self.names(partners.slots.tolist())
        return found

    def names(self, slots: list[int]) -> list[str]:
        return [self.registry.at_slot(slot).worker.worker_id.removesuffix(":80") for slot in slots]

    def trip(self, local: LocalWorker, state: Circuit) -> None:
        """Move a worker's circuit."""
        until_us = self.now_us + 60_000_000
        self.shared.publish(CircuitSet(local.worker.worker_id, self.now_us, "r2", state, until_us))


@pytest.fixture
def setup() -> Setup:
    return Setup()


def test_a_fleet_of_plain_workers_has_no_pairs(setup: Setup) -> None:
    setup.add("a", "plain")
    setup.add("b", "plain", "sglang")
    assert not setup.registry.pairs.active
    assert (setup.beginners(), setup.partners()) == (["a", "b"], {})


def test_a_prefill_worker_begins_once_a_decode_worker_of_its_protocol_is_well(setup: Setup) -> None:
    setup.add("p", "prefill", "sglang")
    assert setup.beginners() == []
    setup.add("n", "decode", "mooncake")
    assert setup.partners() == {}
    first = setup.add("d1", "decode", "sglang")
    setup.add("d2", "decode", "sglang")
    assert setup.partners() == {"p": ["d1", "d2"]}
    setup.registry.probed(first, ok=False, refused=True, detail="")
    assert setup.partners() == {"p": ["d2"]}
    setup.registry.change("d2:80", draining=True)
    assert setup.partners() == {}
    assert "p" not in setup.beginners()


def test_decode_workers_take_whole_requests_where_their_engine_can_prefill(setup: Setup) -> None:
    for protocol in ("sglang", "nixl", "mooncake"):
        setup.add(protocol, "decode", protocol)
    assert (setup.beginners(), setup.partners()) == (["nixl", "mooncake"], {})


def test_encode_workers_never_take_requests(setup: Setup) -> None:
    setup.add("e", "encode")
    assert setup.beginners() == []
    setup.add("a", "plain")
    assert setup.beginners() == ["a"]


def test_workers_of_two_protocols_and_plain_ones_stand_side_by_side(setup: Setup) -> None:
    setup.add("a", "plain")
    setup.add("p1", "prefill", "sglang")
    setup.add("p2", "prefill", "nixl")
    setup.add("d1", "decode", "sglang")
    setup.add("d2", "decode", "nixl")
    assert setup.beginners() == ["a", "p1", "p2", "d2"]
    assert setup.partners() == {"p1": ["d1"], "p2": ["d2"]}


def test_what_the_engine_says_decides_the_protocol_of_a_worker_without_a_label(setup: Setup) -> None:
    p, d = setup.add("p", "prefill"), setup.add("d", "decode")
    assert setup.beginners() == []
    for engine, beginners in (("vllm", ["p", "d"]), ("sglang", ["p"])):
        for local in (p, d):
            setup.registry.described(local, None, Description(engine, 0))
        assert setup.beginners() == beginners
        assert setup.partners() == {"p": ["d"]}


def test_engines_that_say_nothing_hand_over_as_pd_disaggregation_means_it(setup: Setup) -> None:
    """Engines with a key do not describe themselves; a label or an engine's description is stronger."""
    pairs = {"prefill": ("http://x",), "decode": ("http://y",)}
    setup.registry.rules = FleetSettings(pd_disaggregation=True, **pairs)
    p, d = setup.add("p", "prefill"), setup.add("d", "decode")
    assert (p.protocol, d.protocol) == ("sglang", "sglang")
    assert setup.registry.can_serve
    assert setup.partners() == {"p": ["d"]}
    setup.registry.described(p, None, Description("vllm", 0))
    assert p.protocol == "nixl"
    assert not setup.registry.can_serve
    setup.add("d2", "decode", "nixl")
    assert setup.registry.can_serve
    assert FleetSettings(vllm_pd_disaggregation=True, **pairs).assumed_handover == ""


def test_partners_serve_the_same_model(setup: Setup) -> None:
    setup.add("p", "prefill", "sglang")
    d1, d2 = setup.add("d1", "decode", "sglang"), setup.add("d2", "decode", "sglang")
    setup.registry.described(d1, (ServedModel("m"),), Description("", 0))
    setup.registry.described(d2, (ServedModel("n"),), Description("", 0))
    assert setup.partners("m") == {"p": ["d1"]}
    assert setup.partners("n") == {"p": ["d2"]}
    assert setup.partners("x") == {}
    assert setup.partners() == {"p": ["d1", "d2"]}


def test_open_circuits_part_pairs_until_they_close(setup: Setup) -> None:
    setup.add("a", "plain")
    setup.add("p", "prefill", "sglang")
    d1, d2 = setup.add("d1", "decode", "sglang"), setup.add("d2", "decode", "sglang")
    setup.trip(d1, Circuit.OPEN)
    assert setup.partners() == {"p": ["d2"]}
    setup.trip(d2, Circuit.OPEN)
    assert (setup.beginners(), setup.partners()) == (["a"], {})
    setup.time.advance(0.001)
    setup.trip(d1, Circuit.CLOSED)
    assert setup.partners() == {"p": ["d1"]}


def test_a_worker_whose_role_changes_is_paired_anew(setup: Setup) -> None:
    setup.add("p", "prefill", "sglang")
    setup.add("d", "decode", "sglang")
    assert setup.partners() == {"p": ["d"]}
    setup.registry.add("http://d", role="prefill", labels={"handover": "sglang"})
    assert setup.beginners() == []
    setup.registry.add("http://p", role="decode", labels={"handover": "sglang"})
    assert setup.partners() == {"d": ["p"]}


def test_lists_stay_the_same_until_somebody_changes(setup: Setup) -> None:
    """Waiting requests compare lists by identity (`policies.Lanes`), which is also a key of columns."""
    setup.add("p", "prefill", "sglang")
    d1, _ = setup.add("d1", "decode", "sglang"), setup.add("d2", "decode", "sglang")
    other = setup.add("p2", "prefill", "nixl")
    for _ in range(2):
        slots = setup.registry.eligible(None, setup.now_us)
        assert setup.registry.eligible(None, setup.now_us) is slots
        pairing = setup.registry.pairing(slots, None, setup.now_us)
        assert setup.registry.pairing(slots, None, setup.now_us) is pairing
        setup.trip(d1, Circuit.OPEN)
        assert setup.registry.pairing(slots, None, setup.now_us) is not pairing
    setup.registry.probed(other, ok=False, refused=True, detail="")


def test_what_is_kept_of_lists_is_bounded(setup: Setup) -> None:
    setup.add("p", "prefill", "sglang")
    setup.add("d", "decode", "sglang")
    for number in range(2500):
        assert setup.partners(f"model {number}") == {"p": ["d"]}
    assert len(setup.registry.pairs._cached) <= 1000
    assert len(setup.registry.pairs._decode) <= 1000


@pytest.mark.parametrize(
    ("workers", "said"),
    [
        ([], ""),
        ([("a", "plain", "")], ""),
        ([("p", "prefill", "sglang"), ("d", "decode", "sglang")], ""),
        ([("p", "prefill", "sglang")], "Prefill workers (sglang) have no decode worker"),
        ([("p", "prefill", "sglang"), ("d", "decode", "nixl")], "Prefill workers (sglang) have no decode"),
        ([("d", "decode", "sglang")], "Decode workers (sglang) have no prefill worker"),
        ([("p", "prefill", ""), ("d", "decode", "nixl")], "Label prefill and decode workers"),
    ],
)
def test_what_is_missing_is_said(setup: Setup, workers: list[tuple[str, str, str]], said: str) -> None:
    for worker in workers:
        setup.add(*worker)
    missing = setup.registry.pairs.missing((None, ANY_LENGTH))
    assert missing.startswith(said)
    assert bool(missing) == bool(said)
