"""Which digests differ for how long, and who publishes registers again. On a clock that the test moves."""

import msgspec
import pytest

from policies import BytesPerToken, Fitted
from policies.state.ops import tag_of
from router.shared.agreement import AGAIN_S, ALERT_S, DIFFER_S, LAG_S_MAX, RECENT_S, Agreement

BEAT_S = 0.4
BYTES, FIT = tag_of(BytesPerToken), tag_of(Fitted)


class Replica:
    """One replica's registers are a number of each kind."""

    def __init__(self, name: str, fleet: "Fleet") -> None:
        self.name, self.fleet = name, fleet
        self.values = {BYTES: [1], FIT: [1]}
        self.shown = b""
        self.agreement = Agreement(name, self.digests, lambda: fleet.now_s)

    def digests(self) -> dict[int, list[int]]:
        found = {tag: list(values) for tag, values in self.values.items()}
        self.values = {tag: values[-1:] for tag, values in self.values.items()}
        return found

    def learn(self, tag: int, value: int) -> None:
        self.values[tag].append(value)


class Fleet:
    def __init__(self, *names: str) -> None:
        self.now_s = 100.0
        self.replicas = [Replica(name, self) for name in names]

    def beat(self, lag_s: float = 0.0, *, ready: bool = True) -> list[tuple[str, int]]:
        """Everybody shows its digests and compares; who publishes what again."""
        self.now_s += BEAT_S
        again = []
        for replica in self.replicas:
            replica.shown = replica.agreement.shown(ready=ready)
            shown = {each.name: each.shown for each in self.replicas if each.shown}
            again += [(replica.name, tag) for tag in replica.agreement.compare(shown, lag_s)]
        return again

    def beats(self, seconds: float) -> list[tuple[str, int]]:
        return [found for _ in range(round(seconds / BEAT_S)) for found in self.beat()]


def test_replicas_that_know_the_same_publish_nothing_again() -> None:
    fleet = Fleet("a", "b", "c")
    assert not fleet.beats(20)
    assert all(replica.agreement.reason is None for replica in fleet.replicas)


def test_what_one_alone_knows_is_published_by_one_replica_of_each_side() -> None:
    fleet = Fleet("a", "b", "c", "d")
    fleet.replicas[3].learn(FIT, 2)
    assert not fleet.beats(DIFFER_S - BEAT_S)
    assert fleet.beats(RECENT_S + 3 * BEAT_S) == [("a", FIT), ("d", FIT)]
    for replica in fleet.replicas[:3]:
        replica.learn(FIT, 2)
    assert not fleet.beats(30)


def test_what_does_not_help_is_tried_by_the_next_replica_after_longer_pauses_and_told() -> None:
    fleet = Fleet("a", "b", "c")
    fleet.replicas[2].learn(FIT, 2)
    fleet.replicas[2].learn(BYTES, 2)
    again = fleet.beats(ALERT_S - 1)
    assert again.count(("c", FIT)) == 2
    assert {("a", FIT), ("b", FIT)} <= set(again)
    assert fleet.replicas[0].agreement.reason is None
    fleet.beats(2 + RECENT_S)
    a, c = fleet.replicas[0].agreement, fleet.replicas[2].agreement
    assert a.reason == "registers differ from those of c: BytesPerToken, Fitted"
    assert c.reason == "registers differ from those of a, b: BytesPerToken, Fitted"
    assert c.differing == {"BytesPerToken": ("a", "b"), "Fitted": ("a", "b")}
    assert c.published_again["Fitted"] >= 2
    assert len([found for found in fleet.beats(600) if found == ("c", FIT)]) < 600 / AGAIN_S / 5
    for replica in fleet.replicas[:2]:
        replica.learn(FIT, 2)
        replica.learn(BYTES, 2)
    fleet.beat()
    fleet.beat()
    assert a.reason is None
    assert c.differing == {}


def test_what_differed_before_the_log_was_lost_is_not_told_while_it_is() -> None:
    fleet = Fleet("a", "b")
    fleet.replicas[0].learn(FIT, 2)
    fleet.beats(RECENT_S + 4)
    agreement = fleet.replicas[0].agreement
    agreement.interrupted()
    fleet.now_s += 2 * ALERT_S
    assert agreement.reason is None
    assert agreement.differing == {}


def test_words_that_are_said_all_the_time_are_no_difference() -> None:
    """Each replica hears every word a little after the heartbeat that shows its digest."""
    fleet = Fleet("a", "b")
    one, two = fleet.replicas
    for number in range(2, 100):
        one.learn(FIT, number)
        fleet.now_s += BEAT_S
        shown = {each.name: each.agreement.shown(ready=True) for each in fleet.replicas}
        two.learn(FIT, number)
        assert not one.agreement.compare(shown, 0.0)
        assert not two.agreement.compare(shown, 0.0)


def test_a_difference_is_found_beside_words_that_are_said_all_the_time() -> None:
    fleet = Fleet("a", "b")
    one, two = fleet.replicas
    again = []
    for number in range(2, 30):
        one.learn(FIT, 1000 + number)
        two.learn(FIT, 2000 + number)
        again += fleet.beat()
    assert {("a", FIT), ("b", FIT)} <= set(again)


def test_what_a_sibling_knew_long_ago_is_a_difference() -> None:
    fleet = Fleet("a", "b")
    fleet.replicas[0].learn(FIT, 2)
    assert set(fleet.beats(RECENT_S + DIFFER_S + 1)) == {("a", FIT), ("b", FIT)}


@pytest.mark.parametrize(
    "shown",
    [b"", b"junk", msgspec.msgpack.encode({}), msgspec.msgpack.encode({99: 5}), msgspec.msgpack.encode([1])],
)
def test_what_another_version_shows_or_does_not_show_is_not_compared(shown: bytes) -> None:
    fleet = Fleet("a")
    agreement = fleet.replicas[0].agreement
    for _ in range(50):
        fleet.now_s += BEAT_S
        agreement.shown(ready=True)
        assert agreement.compare({"old": shown}, 0.0) == []
    assert agreement.reason is None


def test_a_replica_that_is_behind_compares_nothing_and_one_that_is_not_ready_shows_nothing() -> None:
    fleet = Fleet("a", "b")
    fleet.replicas[1].learn(FIT, 2)
    assert not [found for _ in range(50) for found in fleet.beat(LAG_S_MAX + 0.1)]
    assert not [found for _ in range(50) for found in fleet.beat(ready=False)]
