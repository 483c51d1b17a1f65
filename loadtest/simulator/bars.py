"""The progress of several simulations: a bar each on a terminal, an occasional line elsewhere."""

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

LINE_S = 15.0


class Bars:
    """Progress bars of simulations; a context manager.

    Updates refresh the display, without a thread, because processes are forked while it is shown.
    """

    def __init__(
        self, console: Console, labels: Sequence[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console
        self._labels = labels
        self._clock = clock
        self._next_line_s = clock() + LINE_S
        self._done: dict[int, tuple[int, int]] = {}
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=console, auto_refresh=False, transient=True)
        self._tasks = [self._progress.add_task(label, total=None, start=False) for label in labels]

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the bars: their results are shown instead."""
        if self._console.is_terminal:
            self._progress.stop()

    def told(self, number: int, done: int, total: int) -> None:
        """Show the progress of the simulation with this number among the labels: ended requests of all."""
        self._done[number] = done, total
        if self._console.is_terminal:
            if not self._progress.tasks[number].started:
                self._progress.start_task(self._tasks[number])
            self._progress.update(self._tasks[number], completed=done, total=total, refresh=True)
        elif self._clock() >= self._next_line_s:
            self._next_line_s = self._clock() + LINE_S
            texts = (f"{self._labels[one]} {100 * done // total} %" for one, (done, total) in self._open())
            self._console.print(", ".join(texts), highlight=False, markup=False)

    def _open(self) -> list[tuple[int, tuple[int, int]]]:
        return [(number, state) for number, state in sorted(self._done.items()) if state[0] < state[1]]
