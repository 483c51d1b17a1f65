"""The fold as the reader of the log sees it: placements that tell a new part of a prompt are completed first.

An operation of the log may be no operation of the fold: a question about a prompt, or an answer. And one may
give the fold several: an answer brings the placements that waited for it (`router.shared.placed_forms`).
"""

import contextlib
from collections.abc import Callable, Generator, Sequence

from router.shared.clock import LogClock
from router.shared.placed_forms import LogOp, PlacedForms
from router.shared.ports import Fold


class CompletingFold:
    """Completes placements on their way from the log into the fold.

    Args:
        fold: Fold that operations are applied to.
        forms: Completes placements, asks for prompts and answers.
        clock: Log time.
        send: Takes an encoded operation that goes into the log.
    """

    def __init__(
        self, fold: Fold, forms: PlacedForms, clock: LogClock, send: Callable[[bytes], None]
    ) -> None:
        self._fold, self._forms, self._clock, self._send = fold, forms, clock, send

    def apply(self, op: LogOp, now_us: int) -> None:
        """Apply an operation of another replica, completed, at a log time."""
        for whole in self._forms.incoming(op, now_us):
            self._fold.apply(whole)

    def look(self) -> None:
        """Give up placements that waited too long, send questions and answers; call it after each read."""
        for op in self._forms.due(self._clock.now_us()):
            with contextlib.suppress(ValueError):
                self._fold.apply(op)
        if self._forms.outbox:
            for body in self._forms.outbox:
                self._send(body)
            self._forms.outbox.clear()

    def restore_steps(
        self, pieces: Sequence[bytes], own: str, /, *, missed: bool
    ) -> Generator[float, None, int]:
        """Merge a snapshot (`Fold.restore_steps`)."""
        return self._fold.restore_steps(pieces, own, missed=missed)
