"""Repetitions, kept as JSON lines behind one line about the run.

    {"run": {...}}                                    `Run`
    {"peer": "nginx", "workload": "W1", ...}          `Repetition`, one for each round, peer and workload

A repetition with a failed request gives no figure, since a failure may be cheap.
"""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec

from loadtest.bench.peers.field import DIRECT, Figure, Workload
from loadtest.bench.peers.machine import Machine


@dataclass(frozen=True, slots=True)
class Run:
    """Conditions of a run; ``seconds`` is the length of one repetition of W1 to W4."""

    date: str
    machine: Machine
    versions: dict[str, str]
    rounds: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Repetition:
    """One workload against one peer, once. CPU is of its whole process tree, user and system.

    Attributes:
        completed: Requests answered with 200, streams to their end.
        failed: All others.
        cpu_us_per_chunk: Per streamed chunk; None without streams.
        per_s: Completed requests per second.
        p50_ms: Latency of a whole request.
        chunk_p50_ms: From the engine's send to the client's receive of a chunk; None without streams.
        rss_mib: Memory of the process tree at the end, MiB.
    """

    peer: str
    workload: str
    round_number: int
    completed: int
    failed: int
    cpu_us_per_request: float
    cpu_us_per_chunk: float | None
    per_s: float
    p50_ms: float | None
    p99_ms: float | None
    chunk_p50_ms: float | None
    chunk_p99_ms: float | None
    rss_mib: float


@dataclass(frozen=True, slots=True)
class Spread:
    """Repeated measurements of one thing."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Self | None:
        """Summarise what is there; None if nothing is."""
        present = [value for value in values if value is not None]
        return cls(statistics.median(present), min(present), max(present)) if present else None


@dataclass(frozen=True, slots=True)
class _FirstLine:
    run: Run


class Results:
    """Repetitions of one run, in any order."""

    def __init__(self, run: Run, repetitions: Iterable[Repetition]) -> None:
        self.run = run
        self._all: dict[tuple[str, str], dict[int, Repetition]] = {}
        for repetition in repetitions:
            self._all.setdefault((repetition.peer, repetition.workload), {})[repetition.round_number] = (
                repetition
            )

    def measured(self, workload: str) -> bool:
        """True if any peer has a figure for it."""
        return any(key == workload and self._sound(peer, key) for peer, key in self._all)

    def took_part(self, peer: str, workload: str) -> bool:
        """True if the peer came up for it."""
        return (peer, workload) in self._all

    def failed(self, peer: str, workload: str) -> int:
        """Requests that failed, in all rounds."""
        return sum(repetition.failed for repetition in self._all.get((peer, workload), {}).values())

    def spread(self, peer: str, workload: str, value: Callable[[Repetition], float | None]) -> Spread | None:
        """Summarise one value of a peer's repetitions without failures."""
        return Spread.of(value(repetition) for repetition in self._sound(peer, workload).values())

    def added(self, peer: str, workload: str, value: Callable[[Repetition], float | None]) -> Spread | None:
        """Summarise what a peer adds to a value of `DIRECT`, round by round."""
        direct = self._sound(DIRECT, workload)
        pairs = [
            (value(repetition), value(direct[number]))
            for number, repetition in self._sound(peer, workload).items()
            if number in direct
        ]
        return Spread.of(one - base for one, base in pairs if one is not None and base is not None)

    def figure(self, peer: str, workload: Workload) -> Spread | None:
        """Summarise what the workload is about; of latencies the median one."""
        match workload.figure:
            case Figure.CPU_PER_REQUEST:
                return self.spread(peer, workload.key, lambda repetition: repetition.cpu_us_per_request)
            case Figure.CPU_PER_CHUNK:
                return self.spread(peer, workload.key, lambda repetition: repetition.cpu_us_per_chunk)
            case Figure.ADDED_LATENCY:
                return self.added(peer, workload.key, lambda repetition: repetition.p50_ms)
            case Figure.MEMORY:
                return self.spread(peer, workload.fill, lambda repetition: repetition.rss_mib)

    def _sound(self, peer: str, workload: str) -> dict[int, Repetition]:
        rounds = self._all.get((peer, workload), {})
        return {number: repetition for number, repetition in rounds.items() if not repetition.failed}


def begin(path: Path, run: Run) -> None:
    """Write the first line of a new file; `OSError` if that fails."""
    path.write_bytes(msgspec.json.encode(_FirstLine(run)) + b"\n")


def append(path: Path, repetition: Repetition) -> None:
    """Add one repetition; `OSError` if that fails."""
    with path.open("ab") as file:
        file.write(msgspec.json.encode(repetition) + b"\n")


def read(path: Path) -> Results:
    """Read a file again; `OSError`, or `msgspec.DecodeError` for another kind of file."""
    first, *rest = path.read_bytes().splitlines() or [b""]
    run = msgspec.json.decode(first, type=_FirstLine).run
    return Results(run, (msgspec.json.decode(line, type=Repetition) for line in rest))
