"""End of the processes below another one, once it has ended.

A program that is told to end may forget a child that it has just started. File descriptors (pidfd_open(2))
hold its descendants from before, so that a reused process id harms no other process.
"""

import contextlib
import os
import signal
from collections.abc import Iterator

from loadtest.bench.process_tree import tree_of


@contextlib.contextmanager
def descendants_ended(pid: int) -> Iterator[None]:
    """Kill, behind the block, the processes that were below ``pid`` before it.

    ``pid`` must not be reaped yet.
    """
    with contextlib.ExitStack() as stack:
        for descendant in tree_of(pid)[1:]:
            with contextlib.suppress(ProcessLookupError):
                held = os.pidfd_open(descendant)
                stack.callback(os.close, held)
                stack.callback(_kill, held)
        yield


def _kill(held: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(held, signal.SIGKILL)
