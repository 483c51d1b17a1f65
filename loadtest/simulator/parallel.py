"""Several simulations at once, each in a process of its own.

    this process ──fork──> one child per simulation, at most ``jobs`` at a time
         ^                    │ progress, then the result
         └────── a pipe ──────┘

A child inherits the workload: a fork copies none of its hundred megabytes. With one job everything happens in
this process, for debuggers and profilers. Only the order of the results depends on the machine.
"""

import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from loadtest.simulator.records import Result
from loadtest.simulator.simulation import SimulationConfig, simulate
from loadtest.simulator.utilisation import NoSuchLoad
from loadtest.simulator.workload import Workload

PROGRESS_S = 0.1
"""Shortest pause between two words about the progress of one simulation."""

Told = Callable[[int, int, int], None]
"""Hears a simulation's number, its finished requests and all its requests."""


class SimulationFailed(Exception):
    """A simulation ended without a result; the message says why."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One simulation to run."""

    workload: Workload
    config: SimulationConfig


def simulate_all(cells: Sequence[Cell], jobs: int, told: Told) -> Iterator[tuple[int, Result]]:
    """Run simulations, at most ``jobs`` >= 1 at a time; yield the number of a cell and its result.

    Raises:
        SimulationFailed: One ended without a result; the others are ended.
    """
    if jobs == 1:
        for number, cell in enumerate(cells):
            yield number, _run(cell, _paced(partial(told, number)))
        return
    waiting = list(enumerate(cells))[::-1]
    running: dict[Connection, tuple[int, BaseProcess]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                number, cell = waiting.pop()
                connection, process = _start(cell)
                running[connection] = number, process
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                number, process = running[ready]
                match _received(ready):
                    case (int(done), int(total)):
                        told(number, done, total)
                    case Result() as result:
                        _forget(running, ready)
                        yield number, result
                    case str(why):
                        raise SimulationFailed(why)
                    case None:
                        process.join()
                        raise SimulationFailed(f"a simulation's process ended with status {process.exitcode}")
    finally:
        for _, process in running.values():
            process.terminate()
        for connection in list(running):
            _forget(running, connection)


def _start(cell: Cell) -> tuple[Connection, BaseProcess]:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_child, args=(cell, theirs))
    process.start()
    theirs.close()
    return ours, process


def _child(cell: Cell, connection: Connection) -> None:
    # Ctrl-C reaches the whole group; the parent answers it for all.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    message: object
    try:
        message = _run(cell, _paced(lambda *done: connection.send(done)))
    except BrokenPipeError:
        return  # the parent is gone
    except SimulationFailed as error:
        message = str(error)
    except Exception:  # noqa: BLE001 - the top of this process: what happened is told by the parent
        message = traceback.format_exc()
    connection.send(message)


def _run(cell: Cell, told: Callable[[int, int], None]) -> Result:
    try:
        return simulate(cell.workload, cell.config, progress=told)
    except NoSuchLoad as error:
        raise SimulationFailed(str(error)) from error


def _paced(told: Callable[[int, int], None]) -> Callable[[int, int], None]:
    """Tell of progress at most every `PROGRESS_S`, but always of the end."""
    next_s = time.monotonic() + PROGRESS_S

    def tell(done: int, total: int) -> None:
        nonlocal next_s
        if done == total or time.monotonic() >= next_s:
            told(done, total)
            next_s = time.monotonic() + PROGRESS_S

    return tell


def _received(connection: Connection) -> object:
    """Message of a child; None if it is gone without one."""
    try:
        return connection.recv()
    except EOFError:
        return None


def _forget(running: dict[Connection, tuple[int, BaseProcess]], connection: Connection) -> None:
    _, process = running.pop(connection)
    connection.close()
    process.join()
