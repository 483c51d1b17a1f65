"""Batches that are believed, with publishers that die, drop and forget, and answers that break off."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.fleet.kv_events.sequence import HELD_MAX, Loss, Sequence


class Heard:
    """The batches that are believed now."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.losses: list[Loss] = []

    def batch(self, payload: bytes) -> None:
        self.batches.append(payload)

    def lost(self, loss: Loss) -> None:
        self.losses.append(loss)
        self.batches.clear()


@dataclass
class Publisher:
    """An engine's publisher, process after process.

    Attributes:
        buffer: Number of batches that it can send again.
        drops: It drops every n-th reply; 0 for none.
        silent: True if it answers no questions.
    """

    buffer: int = 10_000
    drops: int = 0
    silent: bool = False
    process: int = 0
    sent: list[bytes] = field(default_factory=list)
    replies: int = 0

    def publish(self) -> tuple[int, bytes]:
        number = len(self.sent)
        self.sent.append(f"{self.process}:{number}".encode())
        return number, self.sent[-1]

    def restart(self) -> None:
        self.process += 1
        self.sent = []

    def answer(self, sequence: Sequence) -> None:
        """Answer the questions of a sequence until it has none."""
        for _ in range(100):
            if sequence.asked is None:
                return
            if self.silent:
                sequence.ended(answered=False)
                continue
            first = max(sequence.asked, len(self.sent) - self.buffer)
            for number in range(first, len(self.sent)):
                self.replies += 1
                if not self.drops or self.replies % self.drops:
                    sequence.replayed(number, self.sent[number])
            sequence.ended(answered=True)
        pytest.fail("it never stops asking")


class Followed:
    """A publisher and its follower."""

    def __init__(self, publisher: Publisher | None = None) -> None:
        self.publisher = publisher or Publisher()
        self.heard = Heard()
        self.sequence = Sequence(self.heard)

    def join(self) -> "Followed":
        self.sequence.connected()
        self.publisher.answer(self.sequence)
        return self

    def publish(self, count: int = 1, *, come: bool = True) -> None:
        for _ in range(count):
            number, payload = self.publisher.publish()
            if come:
                self.sequence.came(number, payload)


def test_who_is_there_from_the_beginning_knows_everything() -> None:
    followed = Followed().join()
    assert followed.sequence.live
    followed.publish(3)
    assert followed.heard.batches == followed.publisher.sent
    assert followed.sequence.live
    assert not followed.heard.losses


def test_who_joins_late_asks_for_the_beginning() -> None:
    followed = Followed()
    followed.publish(5, come=False)
    followed.sequence.connected()
    followed.publish(2)
    assert not followed.heard.batches
    followed.publisher.answer(followed.sequence)
    assert followed.heard.batches == followed.publisher.sent
    assert followed.sequence.live


def test_who_joins_too_late_knows_what_came_since_and_that_it_is_not_all() -> None:
    followed = Followed(Publisher(buffer=2))
    followed.publish(5, come=False)
    followed.join()
    followed.publish()
    assert followed.heard.batches == followed.publisher.sent[3:]
    assert not followed.sequence.complete


def test_without_old_batches_only_the_very_first_is_a_beginning() -> None:
    first = Followed(Publisher(silent=True)).join()
    assert not first.sequence.complete
    first.publish()
    assert first.sequence.live
    late = Followed(Publisher(silent=True))
    late.publish(come=False)
    late.join()
    late.publish()
    assert late.heard.batches == [b"0:1"]
    assert not late.sequence.complete


def test_what_is_missing_is_asked_for_and_takes_its_place() -> None:
    followed = Followed().join()
    followed.publish(3)
    followed.publish(4, come=False)
    followed.publish(2)
    assert followed.sequence.asked == 2
    followed.publisher.answer(followed.sequence)
    assert followed.heard.batches == followed.publisher.sent
    assert followed.sequence.live
    assert followed.sequence.gaps == 1


@pytest.mark.parametrize(
    "publisher",
    [Publisher(buffer=1), Publisher(silent=True)],
    ids=["they are gone already", "nobody answers"],
)
def test_what_nobody_can_send_again_is_lost_with_all_that_was_known(publisher: Publisher) -> None:
    followed = Followed(publisher).join()
    followed.publish(3)
    followed.publish(4, come=False)
    followed.publish()
    publisher.answer(followed.sequence)
    assert followed.heard.losses == [Loss.GAP]
    assert followed.heard.batches == [b"0:7"]
    assert not followed.sequence.complete
    assert followed.sequence.asked is None
    followed.publish()
    assert followed.heard.batches == [b"0:7", b"0:8"]


def test_what_was_missing_of_another_process_is_missed_no_more() -> None:
    followed = Followed().join()
    followed.publish(come=False)
    followed.publish()
    assert followed.sequence.asked == 0
    followed.publisher.restart()
    followed.join()
    assert followed.sequence.live
    followed.publish()
    assert followed.heard.batches == [b"1:0"]


def test_a_process_that_counts_anew_has_an_empty_cache() -> None:
    followed = Followed().join()
    followed.publish(3)
    followed.publisher.restart()
    followed.publish()
    followed.publisher.answer(followed.sequence)
    assert followed.heard.losses == [Loss.RESTART]
    assert followed.heard.batches == [b"1:0"]
    assert followed.sequence.live
    assert followed.sequence.restarts == 1


def test_a_process_that_has_counted_as_far_as_the_one_before_is_told_apart_by_its_last_batch() -> None:
    """Number 3 is the awaited one, but of another process."""
    followed = Followed().join()
    followed.publish(3)
    followed.publisher.restart()
    followed.publish(3, come=False)
    followed.join()
    assert followed.heard.batches == [b"1:0", b"1:1", b"1:2"]
    assert followed.heard.losses == [Loss.RESTART]
    followed.publish()
    assert followed.sequence.live


def test_a_new_process_that_has_said_nothing_is_noticed_when_it_is_there() -> None:
    followed = Followed().join()
    followed.publish(3)
    followed.publisher.restart()
    followed.join()
    assert followed.heard.losses == [Loss.RESTART]
    assert followed.sequence.live
    assert followed.sequence.next == 0


def test_the_same_process_that_connects_again_has_lost_nothing() -> None:
    followed = Followed().join()
    followed.publish(3)
    followed.publish(2, come=False)
    followed.join()
    assert followed.heard.batches == followed.publisher.sent
    assert followed.sequence.live
    assert not followed.heard.losses
    assert not followed.sequence.gaps


def test_who_cannot_prove_to_be_the_same_process_is_believed_if_its_numbers_go_on() -> None:
    followed = Followed(Publisher(silent=True)).join()
    followed.publish(3)
    followed.join()
    assert followed.sequence.live
    followed.publish()
    assert followed.heard.batches == followed.publisher.sent


def test_the_last_batch_that_comes_twice_is_one() -> None:
    followed = Followed().join()
    followed.publish(2)
    followed.sequence.came(1, followed.publisher.sent[1])
    assert followed.heard.batches == followed.publisher.sent
    assert followed.sequence.live


def test_somebody_elses_word_that_the_process_is_new_makes_it_join_again() -> None:
    followed = Followed().join()
    followed.publish(2)
    followed.publisher.restart()
    followed.publish(come=False)
    followed.sequence.doubted()
    followed.publisher.answer(followed.sequence)
    assert followed.heard.batches == [b"1:0"]
    assert followed.sequence.live


def test_what_waits_for_an_answer_is_bounded_and_asked_for_again() -> None:
    followed = Followed()
    followed.sequence.connected()
    followed.publish(HELD_MAX + 10)
    assert len(followed.sequence._held) < HELD_MAX
    followed.publisher.buffer = 2 * HELD_MAX
    followed.publisher.answer(followed.sequence)
    assert followed.heard.batches == followed.publisher.sent
    assert followed.sequence.live


steps = st.lists(
    st.sampled_from(
        [
            *["come"] * 6,
            *["drop"] * 2,
            "restart",
            "connect",
            "answer",
            "answer",
            "break off",
            "again",
            "older",
        ]
    ),
    max_size=40,
)


@given(steps, st.sampled_from([1, 2, 5, 100]), st.sampled_from([0, 0, 2, 3]))
def test_nothing_is_believed_but_one_process_in_order_and_all_of_it_where_that_is_claimed(
    drawn: list[str], buffer: int, drops: int
) -> None:
    """A process that ends takes its connection along, so the next one connects."""
    followed = Followed(Publisher(buffer, drops))
    publisher, sequence, heard = followed.publisher, followed.sequence, followed.heard
    for step in drawn:
        match step:
            case "come":
                followed.publish()
            case "drop":
                followed.publish(come=False)
            case "restart":
                publisher.restart()
                sequence.connected()
            case "connect":
                sequence.connected()
            case "answer":
                publisher.answer(sequence)
            case "break off":
                if sequence.asked is not None and sequence.asked < len(publisher.sent):
                    sequence.replayed(sequence.asked, publisher.sent[sequence.asked])
                    sequence.ended(answered=False)
            case "again":
                if publisher.sent:
                    sequence.came(len(publisher.sent) - 1, publisher.sent[-1])
            case "older":
                if len(publisher.sent) > 1:
                    sequence.came(len(publisher.sent) - 2, publisher.sent[-2])
        numbers = [tuple(map(int, payload.split(b":"))) for payload in heard.batches]
        assert [number for _, number in numbers] == list(
            range(numbers[0][1], numbers[0][1] + len(numbers)) if numbers else ()
        )
        assert len({process for process, _ in numbers}) <= 1
        if sequence.complete and numbers:
            assert numbers[0][1] == 0
    sequence.connected()
    publisher.drops = 0
    publisher.answer(sequence)
    if sequence.live:
        assert heard.batches == publisher.sent
    else:
        assert heard.batches == publisher.sent[len(publisher.sent) - len(heard.batches) :]
        assert buffer < len(publisher.sent)
