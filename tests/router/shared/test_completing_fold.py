"""Placements reach the fold whole, and questions and answers reach the log."""

from policies import Finished, Left, Onward, Op, PathTold, Placed, PlacedForms, decode_entry
from router.shared.clock import LogClock
from router.shared.completing_fold import CompletingFold

PATH = b"".join(block.to_bytes(8, "little") for block in range(1, 21))


class Listed:
    def __init__(self) -> None:
        self.ops: list[Op] = []

    def apply(self, op: Op) -> None:
        self.ops.append(op)


def placed(path: bytes) -> Placed:
    return Placed("r", 1, "w", "other", 1, 1, 1, (path,))


def test_what_waits_for_a_prompt_is_completed_by_the_answer_to_the_question_that_was_sent() -> None:
    listed, sent = Listed(), list[bytes]()
    fold = CompletingFold(listed, PlacedForms("me"), LogClock(), sent.append)  # type: ignore[arg-type]
    fold.apply(Onward(PATH[-8:], 20, placed(b"12345678")))
    fold.apply(Finished("r", 2))
    fold.apply(Left("x", 1))
    assert listed.ops == [Placed("r", 1, "w", "other", 1, 1, 1, ()), Finished("r", 2), Left("x", 1)]
    fold.look()
    fold.look()
    (question,) = sent
    answers = PlacedForms("other")
    answers.known.tell(PATH)
    assert list(answers.incoming(*decode_entry(b"\x91" + question).ops, now_us=1)) == []
    assert decode_entry(b"\x91" + answers.outbox[0]).ops == [PathTold(PATH)]
    fold.apply(PathTold(PATH))
    assert listed.ops[3:] == [placed(PATH + b"12345678")]
