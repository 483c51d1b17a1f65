"""Child process that ends when its owner ends, even if the owner is killed.

    owner --pipe--> watcher (shell) --signal--> child
      |                                           ^
      `---------------- starts, ends -------------'

The owner alone holds the pipe's other end, which the kernel closes when the owner dies. The child runs in a
session of its own, so that Ctrl-C reaches the owner first.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from typing import BinaryIO, Self

# The watcher reads the pipe that comes as standard input: a line means a clean end, the end of the pipe
# means that the owner is dead. exec keeps the process id, so "$$" is the child's.
_LAUNCH = 'exec 3<&0; { read -r _ <&3 || kill -%d "$$"; } >/dev/null 2>&1 & exec "$@" 3<&- </dev/null'


class ChildProcess:
    """A running child; make it with `start`."""

    def __init__(self, process: asyncio.subprocess.Process, pipe: int) -> None:
        self._process = process
        self._pipe = pipe

    @classmethod
    async def start(
        cls,
        *command: str,
        log: BinaryIO,
        environment: Mapping[str, str] | None = None,
        orphan_signal: signal.Signals = signal.SIGTERM,
    ) -> Self:
        """Start a command, with its output in ``log``; raise OSError if that fails.

        ``environment`` defaults to ours. The child gets ``orphan_signal`` when its owner dies.
        """
        watched, pipe = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *("/bin/sh", "-c", _LAUNCH % orphan_signal, "cacheway-child", *command),
                stdin=watched,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        except BaseException:
            os.close(pipe)
            raise
        finally:
            os.close(watched)
        return cls(process, pipe)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit status; None while it runs, paused or not."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait until it has ended, and return its exit status."""
        return await self._process.wait()

    async def end(self, timeout_s: float, number: signal.Signals = signal.SIGTERM) -> None:
        """End the child by a signal, and its watcher; kill it after ``timeout_s``. May be called again.

        A paused child is woken for the signal.
        """
        process = self._process
        if process.returncode is None:
            # By its id: `send_signal` looks first whether it has ended, and then its exit status is lost.
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)
                os.kill(process.pid, signal.SIGCONT)
            try:
                async with asyncio.timeout(timeout_s):
                    await process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
                await process.wait()
        if self._pipe >= 0:
            # A line, and not only the end of the pipe: the process id may be another's by now.
            with contextlib.suppress(OSError):
                os.write(self._pipe, b"\n")
            os.close(self._pipe)
            self._pipe = -1
