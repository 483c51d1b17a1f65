"""The supervisor with processes that are a few lines of script each.

A script marks its steps with files in a folder of the test; it starts with the signals blocked.
"""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fakes.running import until

from router.supervisor import Supervisor

READY = """
import os, pathlib, signal, sys, time
folder = pathlib.Path(sys_folder)
def mark(name): (folder / f"{name}-{os.getpid()}").touch()
def on(number, status):
    def handle(*_):
        mark(signal.Signals(number).name)
        if status is not None:
            sys.exit(status)
    signal.signal(number, handle)
def let_signals_in():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT))
def wait():
    mark("ready")
    let_signals_in()
    while True: signal.pause()
"""
OBEDIENT = "on(signal.SIGTERM, 0); on(signal.SIGINT, 0); wait()"
STUBBORN = "on(signal.SIGTERM, None); on(signal.SIGQUIT, 131); wait()"
BROKEN = "sys.exit(3)"
BROKEN_SIBLING = """
try: os.mkdir(folder / "first")
except FileExistsError: on(signal.SIGTERM, 0); wait()
while not list(folder.glob("ready-*")): time.sleep(0.01)
sys.exit(3)
"""
SLOW_TO_START = """
mark("started")
while not (folder / "go").exists(): time.sleep(0.01)
on(signal.SIGTERM, 0)
wait()
"""


def pids(folder: Path, mark: str) -> set[int]:
    return {int(path.name.rpartition("-")[2]) for path in folder.glob(f"{mark}-*")}


async def ended(task: asyncio.Task[int]) -> int:
    """Return the exit status; a supervisor that does not end goes on, so that its processes can be ended."""
    async with asyncio.timeout(60):
        return await asyncio.shield(task)


@contextlib.asynccontextmanager
async def supervised(
    script: str, folder: Path, count: int = 2
) -> AsyncIterator[tuple[Supervisor, asyncio.Task[int], socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        code = READY.replace("sys_folder", repr(str(folder))) + script
        supervisor = Supervisor(listener, exec, (code, {}), count=count)
        task = asyncio.create_task(supervisor.run())
        try:
            yield supervisor, task, listener
        finally:
            if not task.done():
                supervisor.told(signal.SIGTERM)
                # No process outlives the test, even a failed one.
                for process in multiprocessing.active_children():
                    process.kill()
                await task


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_is_passed_on_and_all_processes_waited_for(
    tmp_path: Path, number: signal.Signals
) -> None:
    async with supervised(OBEDIENT, tmp_path) as (supervisor, task, listener):
        await until(lambda: len(pids(tmp_path, "ready")) == 2)
        supervisor.told(number)
        assert listener.fileno() == -1, "the port is free when the last process has closed it"
        assert await ended(task) == 0
    assert pids(tmp_path, number.name) == pids(tmp_path, "ready")


async def test_a_second_signal_ends_all_at_once(tmp_path: Path) -> None:
    async with supervised(STUBBORN, tmp_path) as (supervisor, task, _):
        await until(lambda: len(pids(tmp_path, "ready")) == 2)
        supervisor.told(signal.SIGTERM)
        await until(lambda: len(pids(tmp_path, "SIGTERM")) == 2)
        assert not task.done()
        supervisor.told(signal.SIGTERM)
        assert await ended(task) == 143
    assert pids(tmp_path, "SIGQUIT") == pids(tmp_path, "ready")


async def test_a_process_that_dies_is_replaced(tmp_path: Path) -> None:
    async with supervised(OBEDIENT, tmp_path) as (_, task, _):
        await until(lambda: len(pids(tmp_path, "ready")) == 2)
        first = pids(tmp_path, "ready")
        os.kill(min(first), signal.SIGKILL)
        await until(lambda: len(pids(tmp_path, "ready")) == 3)
        assert not task.done()


async def test_a_process_that_cannot_start_ends_all_with_status_3(tmp_path: Path) -> None:
    async with supervised(BROKEN_SIBLING, tmp_path) as (_, task, _):
        assert await ended(task) == 3
    assert len(pids(tmp_path, "SIGTERM")) == 1
    async with supervised(BROKEN, tmp_path) as (_, task, _):
        assert await ended(task) == 3


async def test_a_signal_is_not_lost_on_a_process_that_has_just_begun(tmp_path: Path) -> None:
    async with supervised(SLOW_TO_START, tmp_path) as (supervisor, task, _):
        await until(lambda: len(pids(tmp_path, "started")) == 2)
        supervisor.told(signal.SIGTERM)
        (tmp_path / "go").touch()
        assert await ended(task) == 0
    assert len(pids(tmp_path, "SIGTERM")) == 2


async def test_the_supervisor_hears_signals_of_the_system(tmp_path: Path) -> None:
    async with supervised(OBEDIENT, tmp_path) as (_, task, _):
        await until(lambda: len(pids(tmp_path, "ready")) == 2)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await ended(task) == 0
