"""The processes below another one, which end when it has.

A program that is told to end may forget what it has just started. Its descendants are held by file
descriptors (pidfd_open(2)) from before it is told, so that an id which another process gets meanwhile
is nobody's mistake.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def descendants_ended(pid: int) -> Iterator[None]:
    """Kill, behind the block, what was below a process before the block and is still there.

    Args:
        pid: A process that has not been waited for.
    """
    with contextlib.ExitStack() as stack:
        for descendant in _below(pid):
            with contextlib.suppress(ProcessLookupError):
                held = os.pidfd_open(descendant)
                stack.callback(os.close, held)
                stack.callback(_kill, held)
        yield


def _kill(held: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(held, signal.SIGKILL)


def _below(pid: int) -> list[int]:
    """Children, then their children; the parent is the second field behind the name, proc(5)."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it may end while we look
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found[1:]
