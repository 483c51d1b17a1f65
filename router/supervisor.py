"""Supervisor of several processes on one port.

    start --> running --ended--> started again after a pause
                |  `--status 3 (it cannot start)--> the others end, too; status 3
                `--told to stop--> ended, not started again

Each process listens with a socket of its own. The supervisor's socket only holds the port while a process is
started again, and never listens: a connection to it would hang.

The supervisor passes the first SIGTERM or SIGINT on to all and lets the port go. A second one, or SIGQUIT, is
passed on as SIGQUIT: the processes end at once, and the status is 128 + signal. uvicorn's supervisor knows
neither, and cannot run a server of ours.

A process is started with the signals blocked and unblocks them when it has handlers, so that none is lost or
shows as a traceback during imports.
"""

import asyncio
import contextlib
import logging
import os
import pickle
import signal
import socket
from collections.abc import Callable
from multiprocessing import get_context, resource_tracker
from multiprocessing.context import SpawnProcess
from typing import Any

from uvicorn.config import STARTUP_FAILURE

from router.lean_imports import call_lean
from router.server import SIGNALS, signals_to

logger = logging.getLogger(__name__)

RESTART_PAUSE_S = 0.5
"""Pause before a restart, so that processes that die at once do not take the machine with them."""


class Supervisor:
    """Keeps processes running until told to stop. Use it in the main thread's event loop.

    ``port`` is a socket bound to their port; ``target`` is importable by name, and its arguments are pickled.
    """

    def __init__(
        self, port: socket.socket, target: Callable[..., None], arguments: tuple[Any, ...], *, count: int
    ) -> None:
        self._port = port
        self._target = target
        self._arguments = arguments
        self._count = count
        self._status = 0
        self._stopping = asyncio.Event()
        self._running: set[SpawnProcess] = set()

    async def run(self) -> int:
        """Keep the processes running; return 0 after a clean stop, 3 if one could not start, 128 + signal."""
        with signals_to(self.told):
            async with asyncio.TaskGroup() as group:
                for _ in range(self._count):
                    group.create_task(self._keep_one(), name="supervisor")
        return self._status

    def told(self, number: int) -> None:
        """A signal came: pass it on."""
        if number == signal.SIGQUIT or self._stopping.is_set():
            self._status = 128 + number
            self._stop(signal.SIGQUIT)
        else:
            self._stop(number)

    def _stop(self, number: int) -> None:
        self._stopping.set()
        self._port.close()
        for process in self._running:
            # The exit code is asked of the system, so the number is not another process's yet.
            if process.exitcode is None and process.pid is not None:
                os.kill(process.pid, number)

    async def _keep_one(self) -> None:
        while not self._stopping.is_set():
            process = self._start()
            self._running.add(process)
            await _ended(process)
            self._running.discard(process)
            if process.exitcode == STARTUP_FAILURE:
                # It would fail again.
                logger.error(
                    "a process could not start", extra={"event": "process.failed", "pid": process.pid}
                )
                self._status = STARTUP_FAILURE
                self._stop(signal.SIGTERM)
            elif not self._stopping.is_set():
                logger.error(
                    "a process ended, starting another",
                    extra={"event": "process.ended", "pid": process.pid, "status": process.exitcode},
                )
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), RESTART_PAUSE_S)

    def _start(self) -> SpawnProcess:
        call = pickle.dumps((self._target, self._arguments))
        process = get_context("spawn").Process(target=call_lean, args=(call,))
        resource_tracker.ensure_running()  # which would unblock the signals
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        return process


async def _ended(process: SpawnProcess) -> None:
    """Wait for a process by its sentinel."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(process.sentinel, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(process.sentinel)
    process.join()
