"""Rounds of cases beside a bystander; after each the replicas settle, and are judged.

    warm-up ──> round ──> settled? ──> judged ──> the next round
                  │                      │
                  cases in lanes         nothing left, replicas equal, a snapshot written, memory flat

A wrong answer is a finding of its case. Later symptoms (in the log, of a bystander, or when all is quiet)
name the cases under way at first sight, then all others of the round.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from loadtest.fuzz.actions import Script
from loadtest.fuzz.bystander import Bystander
from loadtest.fuzz.cases import GENERATORS, Case, case
from loadtest.fuzz.judge import differences, judge_line
from loadtest.fuzz.player import Player
from loadtest.fuzz.stage import Gateway, Stage, ViewFailed

ROUND_CASES = 48
SLOW = frozenset(("answers", "pods", "floods"))
"""Kinds that have a lane of their own, since each of their cases takes a while."""

LANES = 2
SETTLE_S = 60.0
SNAPSHOT_S = 30.0
POLL_S = 0.1
GROWTH_BYTES_MAX = 96 << 20
"""Allowed growth of a replica after the warm-up: bounds of intended caches are below it."""

GROWTH_FILES_MAX = 64
RECENT_S = 1.0
"""A case that ended so lately may be what something comes from."""

VIEWS = (
    *(
        "/workers",
        "/queue",
        "/tree",
        "/tree/workers",
        "/settings",
        "/audit",
        "/replicas",
        "/decisions",
        "/links",
    ),
    *(
        "/offload",
        "/buckets",
        "/discovery",
        "/tenants",
        "/policies",
        "/shadow",
        "/kv_events",
        "/roles",
        "/readiness",
    ),
)
"""All of them can be asked in any order."""

_OF_WORKER = (
    *("url", "role", "site", "bucket", "circuit", "labels", "capacity_tokens", "held_tokens", "draining"),
    *("leaving", "inflight_requests", "inflight_tokens", "models", "started_unix_s"),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """An error in words, and the cases that it may come from, the likeliest first."""

    what: str
    suspects: tuple[Case, ...]


@dataclass(slots=True)
class Report:
    """Results of a run.

    Attributes:
        seconds: Without the start.
        served: Requests of the bystander that were served.
        gap_s: Its longest time without a good answer.
        grown_bytes: Largest growth of a replica, after the warm-up.
    """

    seed: int
    findings: list[Finding] = field(default_factory=list)
    cases: int = 0
    rounds: int = 0
    seconds: float = 0.0
    served: int = 0
    gap_s: float = 0.0
    grown_bytes: int = 0

    def matching(self, pattern: str) -> list[Finding]:
        """The findings whose words match a regular expression."""
        return [finding for finding in self.findings if re.search(pattern, finding.what)]


@dataclass(frozen=True, slots=True)
class Plan:
    """Cases to play.

    Attributes:
        seconds: No round begins later.
        cases: Most of them.
        only: These alone; empty for all.
        without: A mend that the replicas go without.
        until: The round with the first finding that matches is the last one; None for no such end.
    """

    seed: int
    seconds: float = 60.0
    cases: int = 1 << 30
    only: tuple[int, ...] = ()
    kinds: tuple[str, ...] = tuple(GENERATORS)
    without: str = ""
    until: str | None = ""

    def rounds(self) -> Iterator[list[Case]]:
        """The cases, round by round."""
        numbers: Sequence[int] = self.only or range(self.cases)
        for begin in range(0, len(numbers), ROUND_CASES):
            yield [case(self.seed, number, self.kinds) for number in numbers[begin : begin + ROUND_CASES]]


Told = Callable[[Report], None]


async def run(plan: Plan, folder: Path, told: Told = lambda _: None) -> Report:
    """Start everything, play, and end everything."""
    async with Stage(folder, plan.without) as stage:
        return await _Campaign(plan, stage).run(told)


class _Campaign:
    def __init__(self, plan: Plan, stage: Stage) -> None:
        self._plan = plan
        self._stage = stage
        self._player = Player(stage)
        self._bystander = Bystander(stage.gateways)
        self._bystander.excused = self._is_excused
        self._under_way: dict[int, Case] = {}
        self._ended: list[tuple[float, Case]] = []
        self._round: list[Case] = []
        self._resident: dict[str, int] = {}
        self._files: dict[str, int] = {}
        self.report = Report(plan.seed)

    async def run(self, told: Told) -> Report:
        report, began_s = self.report, time.monotonic()
        for number, cases in enumerate(self._plan.rounds()):
            if time.monotonic() - began_s > self._plan.seconds:
                break
            await self._one(cases)
            report.rounds = number + 1
            report.seconds = time.monotonic() - began_s
            report.served, report.gap_s = self._bystander.served, self._bystander.gap_s
            told(report)
            if self._plan.until is not None and report.matching(self._plan.until):
                break
        return report

    async def _one(self, cases: list[Case]) -> None:
        self._round = cases
        self._ended.clear()
        lanes = [[each for each in cases if each.kind in SLOW]]
        fast = [each for each in cases if each.kind not in SLOW]
        lanes += [fast[lane::LANES] for lane in range(LANES)]
        async with self._bystander.asking(), asyncio.TaskGroup() as group:
            looking = group.create_task(self._look())
            playing = [group.create_task(self._lane(lane)) for lane in lanes]
            await asyncio.wait(playing)
            looking.cancel()
        self._notice()
        with self._failures():
            await self._judge_rest()
        with self._failures():
            await self._judge_snapshots()
        self._notice()

    async def _lane(self, cases: list[Case]) -> None:
        for each in cases:
            self._under_way[each.number] = each
            for wrong in await self._player.play(each):
                self._found(wrong, (each,))
            del self._under_way[each.number]
            self._ended.append((time.monotonic(), each))
            self.report.cases += 1

    async def _look(self) -> None:
        """Look at logs and the bystander while cases are played."""
        while True:
            await asyncio.sleep(POLL_S)
            self._notice()

    def _notice(self) -> None:
        """Judge the log lines, and the bystander's answers."""
        for wrong in self._bystander.wrong:
            self._found(wrong, self._suspects())
        self._bystander.wrong.clear()
        for gateway in self._stage.gateways:
            for line in gateway.new_lines():
                if wrong := judge_line(line):
                    self._found(f"{gateway.name}: {wrong}", self._suspects())
            if not gateway.alive:
                self._found(f"{gateway.name} has ended", self._suspects())

    def _suspects(self) -> tuple[Case, ...]:
        now_s = time.monotonic()
        recent = [each for ended_s, each in reversed(self._ended) if now_s - ended_s < RECENT_S]
        return (*self._under_way.values(), *recent) or tuple(self._round)

    def _found(self, what: str, suspects: tuple[Case, ...]) -> None:
        """Note a finding; the same again is noted once in a round."""
        if len(self.report.findings) < 100 and all(what != each.what for each in self.report.findings):
            self.report.findings.append(Finding(what, suspects))

    def _is_excused(self) -> bool:
        return any(isinstance(each.action, Script) for each in self._suspects())

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except (ViewFailed, httpx.HTTPError) as failure:
            self._found(f"{type(failure).__name__}: {failure}", tuple(self._round))

    async def _judge_rest(self) -> None:
        await self._tidy()
        left: list[str] = []
        for _ in self._polls(SETTLE_S):
            left = [line for gateway in self._stage.gateways for line in await self._left(gateway)]
            if not left:
                left = differences([await self._seen(gateway) for gateway in self._stage.gateways])
            if not left:
                break
            await asyncio.sleep(POLL_S)
        for line in left:
            self._found(f"when all is quiet: {line}", tuple(self._round))
        for gateway in self._stage.gateways:
            for path in VIEWS:
                await gateway.view(path)
            self._judge_memory(gateway)

    def _polls(self, within_s: float) -> Iterator[None]:
        until_s = time.monotonic() + within_s
        while time.monotonic() < until_s:
            yield

    async def _tidy(self) -> None:
        """Remove workers that cases have added, as an operator would."""
        gateway = self._stage.gateways[0]
        for worker in (await gateway.view("/workers"))["workers"]:
            if worker["id"] not in self._stage.engine_ids:
                await gateway.admin.delete(f"/workers/{quote(worker['id'], safe='')}")

    async def _left(self, gateway: Gateway) -> list[str]:
        workers, queue = (await gateway.view("/workers"))["workers"], await gateway.view("/queue")
        readiness = await gateway.view("/readiness")
        counts: dict[str, Any] = {
            "requests": await gateway.metric("cacheway_inflight_requests"),
            "in flight": sum(worker["inflight_requests"] for worker in workers),
            "tokens in flight": sum(abs(worker["inflight_tokens"]) for worker in workers),
            "backlog": sum(worker["backlog_s"] for worker in workers),
            "waiting": queue["waiting"]["requests"],
            "buffered": readiness["shared"]["buffered_ops"],
            "degraded": readiness["degraded"] or readiness["shared"]["degraded"],
            "foreign workers": [each["id"] for each in workers if each["id"] not in self._stage.engine_ids],
            "unhealthy": [each["id"] for each in workers if not each["is_healthy"]],
        }
        return [f"{gateway.name}: {name} {count}" for name, count in counts.items() if count]

    async def _seen(self, gateway: Gateway) -> dict[str, Any]:
        workers = (await gateway.view("/workers"))["workers"]
        tree, settings = await gateway.view("/tree"), await gateway.view("/settings")
        return {
            **{worker["id"]: {name: worker[name] for name in _OF_WORKER} for worker in workers},
            "tree": {name: tree[name] for name in ("blocks", "runs", "tokens", "copies_mean")},
            "held": {
                each["worker"]: each["held_tokens"]
                for each in (await gateway.view("/tree/workers"))["workers"]
            },
            "settings": settings.get("revision"),
        }

    def _judge_memory(self, gateway: Gateway) -> None:
        """Compare memory and files with those after the first round, when all is warm."""
        resident, files = gateway.resident_bytes, gateway.files
        grown = resident - self._resident.setdefault(gateway.name, resident)
        self.report.grown_bytes = max(self.report.grown_bytes, grown)
        if grown > GROWTH_BYTES_MAX:
            self._found(f"{gateway.name} grew by {grown >> 20} MiB since the first round", tuple(self._round))
        more = files - self._files.setdefault(gateway.name, files)
        if more > GROWTH_FILES_MAX:
            self._found(
                f"{gateway.name} has {more} more files open than after the first round", tuple(self._round)
            )

    async def _judge_snapshots(self) -> None:
        """See that a snapshot is written that begins now or later."""
        began_s, ages = time.monotonic(), dict[str, float | None]()
        async with self._bystander.asking():
            for _ in self._polls(SNAPSHOT_S):
                for gateway in self._stage.gateways:
                    ages[gateway.name] = (await gateway.view("/readiness"))["shared"]["snapshot_age_s"]
                now_s = time.monotonic()
                if all(age is not None and age < now_s - began_s for age in ages.values()):
                    return
                await asyncio.sleep(POLL_S)
        self._found(f"no snapshot was written in {SNAPSHOT_S:g} s: ages are {ages}", tuple(self._round))
