"""The processes below another one, which end when it has.

A program that is told to end may forget what it has just started. Its descendants are held by file
descriptors (pidfd_open(2)) from before it is told, so that an id which another process gets meanwhile
is nobody's mistake.
"""

import contextlib
import os
import signal
from collections.abc import Iterator

from loadtest.bench.process_tree import tree_of


@contextlib.contextmanager
def descendants_ended(pid: int) -> Iterator[None]:
    """Kill, behind the block, what was below a process before the block and is still there.

    Args:
        pid: A process that has not been waited for.
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
