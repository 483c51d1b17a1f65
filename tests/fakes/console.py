"""A fleet that is made up, for the console: every figure follows from a seed and a count of looks."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from router.console import Conditions, Counters, Decisions, ReplicaView, WorkerFacts, WorkerLoad

BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BUCKETS = ("0-64K", "64K-256K", "256K-1M")
REASONS = ("affinity", "balanced", "cold", "spilled_up")


class MadeUpFleet:
    """`router.console.FleetView` of as many workers as the test wants.

    Attributes:
        workers: Facts that the test may change.
        moving: Number of workers whose loads change at each look; the others stay.
        trouble: Problems that it reports.
        made: Decisions so far.
    """

    replica = "gateway-1"
    version = "1.2.3"

    def __init__(self, workers: int, *, seed: int = 1, moving: int | None = None, sites: int = 1) -> None:
        self.random = Random(seed)
        self.workers = [self._made(number, workers, sites) for number in range(workers)]
        self.moving = workers if moving is None else moving
        self.trouble = Conditions()
        self.policy = "expected_cost"
        self.made = 0
        self.pace = 9
        self.asked = 0
        self.slow_asked = 0
        self._loads: dict[int, WorkerLoad] = {}
        self._counters = Counters(
            ttft_counts=(0,) * 9, ttft_bounds_s=BOUNDS_S, tpot_counts=(0,) * 9, tpot_bounds_s=BOUNDS_S
        )

    def _made(self, number: int, of: int, sites: int) -> WorkerFacts:
        return WorkerFacts(
            key=number,
            id=f"10.0.{number // 200}.{number % 200 + 1}:30000",
            role="plain",
            site=("here", "there", "far")[number % sites] if sites > 1 else "",
            bucket=BUCKETS[min(number * 4 // max(of, 1) - 1, 2)] if number * 4 >= of else BUCKETS[0],
            state="healthy",
            circuit="closed",
            engine="sglang" if number % 3 else "vllm",
            models=("qwen3-coder-480b",),
            capacity_tokens=1_600_000,
        )

    def change(self, number: int, **fields: Any) -> None:
        """Change a worker."""
        self.workers[number] = self.workers[number]._replace(**fields)

    def facts(self) -> Sequence[WorkerFacts]:
        return list(self.workers)

    def loads(self, facts: Sequence[WorkerFacts]) -> Sequence[WorkerLoad]:
        self.asked += 1
        for number, each in enumerate(facts):
            if each.key in self._loads and number >= self.moving:
                continue
            busy = each.state == "healthy"
            backlog_s = round(self.random.expovariate(1 / 1.5), 2) if busy else 0.0
            self._loads[each.key] = WorkerLoad(
                each.key,
                backlog_s,
                self.random.randrange(24) if busy else 0,
                self.random.randrange(55, 100) if busy else 12,
            )
        return [self._loads[each.key] for each in facts]

    def waiting(self) -> int:
        return self.random.randrange(20) if self.workers else 0

    def conditions(self) -> Conditions:
        return self.trouble

    async def replicas(self) -> Sequence[ReplicaView]:
        random, was = self.random, self._counters
        requests = random.randrange(380, 460) if self.workers else 0
        spread = (2, 4, 10, 8, 5, 3, 1, 0, 0)
        self._counters = Counters(
            was.requests + requests,
            was.failed,
            was.rejected,
            was.prompt_tokens + requests * 9000,
            was.cached_tokens + requests * random.randrange(5600, 6600),
            tuple(
                count + requests * weight // 33 for count, weight in zip(was.ttft_counts, spread, strict=True)
            ),
            BOUNDS_S,
            tpot_counts=(was.tpot_counts[0] + 30, *was.tpot_counts[1:]),
            tpot_bounds_s=BOUNDS_S,
            output_tokens=was.output_tokens + requests * 200,
        )
        shown = {
            "known": True,
            "version": self.version,
            "started_unix_s": 1_767_000_000.0,
            "lag_s": 0.002,
            "inflight": 40,
            "waiting": 2,
            "cpu_ratio": 0.31,
            "rss_bytes": 212_000_000,
            "degraded": [],
        }
        return [
            ReplicaView("gateway-1", self._counters, {**shown, "writes_snapshots": True}),
            ReplicaView("gateway-2", Counters(), shown),
            ReplicaView("gateway-3", None, {"known": False}),
        ]

    async def sections(self, *, slow: bool) -> Mapping[str, Any]:
        self.slow_asked += slow
        said: dict[str, Any] = {
            "queue": {
                "requests": self.waiting(),
                "oldest_wait_s": 1.2,
                "service_s": 3.4,
                "classes": [{"class": "interactive", "requests": 3, "oldest_wait_s": 1.2}],
            },
            "policy": {"policy": self.policy},
        }
        if slow and self.workers:
            said["buckets"] = [
                {"name": name, "workers": 3, "requests": 120, "load": 0.4, "backlog_s": 3.5, "spilled": 4}
                for name in BUCKETS
            ]
            said["links"] = [
                {
                    "link": "here>there",
                    "state": "scarce",
                    "cap_bytes_per_s": 1.0e10,
                    "reserved_bytes_per_s": 8.1e9,
                    "utilisation": 0.81,
                    "loss_ratio": 0.0,
                    "transfers": 12,
                }
            ]
        return said

    def decisions(self, cursor: int | None, most: int) -> Decisions:
        if cursor is not None and self.workers:
            self.made += self.pace
        fresh = range(0 if cursor is None else cursor, self.made)
        told = [self._decision(number) for number in fresh[-most:]] if most else []
        return Decisions(told, len(fresh) - len(told), self.made)

    def _decision(self, number: int) -> Mapping[str, Any]:
        worker = self.workers[number % len(self.workers)]
        return {
            "request_id": f"req-{number}",
            "ended_unix_s": 1_767_225_600.0 + number / 10,
            "worker": worker.id,
            "model": worker.models[0],
            "prefix": "91f3c05a7be2d844",
            "outcome": "completed",
            "reason": REASONS[number % 4],
            "why": f"{worker.id} is the policy's choice, and has the longest start of the prompt cached",
            "prompt_tokens": 512 * (number % 40) + 300,
            "predicted_cached_tokens": 512 * (number % 40),
            "predicted_ttft_s": 0.12,
        }
