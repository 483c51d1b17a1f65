"""Placements reach the fold whole, and questions and answers reach the log."""

from policies import Finished, Left, Op, Placed
from router.shared.clock import LogClock
from router.shared.completing_fold import CompletingFold
from router.shared.placed_forms import Onward, PathTold, PlacedForms, decode_entry

PATH = b"".join(block.to_bytes(8, "little") for block in range(1, 21))


class Listed:
    def __init__(self) -> None:
        self.ops: list[Op] = []

    def apply(self, op: Op) -> None:
        self.ops.append(op)


def placed(path: bytes) -> Placed:
    return Placed("r", 1, "w", "other", 1, 1, 1, (path,))


def test_what_waits_for_a_prompt_is_completed_by_the_answer_to_the_question_that_was_sent() -> None:
    listed, sent, clock = Listed(), list[bytes](), LogClock()
    now_us = clock.now_us()
    fold = CompletingFold(listed, PlacedForms("me"), clock, sent.append)  # type: ignore[arg-type]
    fold.apply(Onward(PATH[-8:], 20, placed(b"12345678")), now_us)
    fold.apply(Finished("r", 2), now_us)
    fold.apply(Left("x", 1), now_us)
    assert listed.ops == [Placed("r", 1, "w", "other", 1, 1, 1, ()), Finished("r", 2), Left("x", 1)]
    fold.look()
    fold.look()
    (question,) = sent
    answers = PlacedForms("other")
    answers.known.tell(PATH)
    assert list(answers.incoming(*decode_entry(b"\x91" + question).ops, now_us=1)) == []
    assert decode_entry(b"\x91" + answers.outbox[0]).ops == [PathTold(PATH)]
    fold.apply(PathTold(PATH), now_us)
    assert listed.ops[3:] == [placed(PATH + b"12345678")]
