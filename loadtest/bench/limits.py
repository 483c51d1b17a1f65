"""Accuracy of a limit that replicas share by leases, and its cost.

    python -m loadtest.bench.limits [--replicas 8] [--limits 100 1000] [--minutes 2] [--demand 4]

Real processes, leases without the gateway, share one account on a Valkey of their own. Together they get
``demand`` times as many requests as the limit allows, at random replicas. Per limit:

    burst     all of a minute's demand within 5 s: granted / limit, which should be 1
    steady    for some minutes: granted / limit in the busiest 60 s, never more than 1, and over all whole
              minutes, counted from the first grant, at least 0.98
    skewed    as steady, but all at one replica

Then, with a limit out of reach, the CPU of a request that finds its lease: in a tight loop, and at 500
requests per second at each of two replicas, less that of the driver (a *dry* replica). ``wait`` is the time
of requests that asked Redis; ``alone`` counts those without an answer within 10 ms, which the replica's fair
share decided. A request is settled as soon as it is granted, by its estimate.
"""

import argparse
import asyncio
import statistics
import time
from dataclasses import dataclass
from random import Random

import msgspec
import uvloop
from rich.console import Console
from rich.table import Table

from loadtest.bench.child import say, started
from loadtest.processes import ChildFailed
from router.shared import Charge, EmbeddedValkey, Keys, Leases, LogClock
from router.tenant import Tenant, TenantLimits
from router.tenants import Limiter

ACCOUNT = "tenant"
TTL_S = 3.0
STEP_S = 0.002
"""Requests that are due within it are made together."""

WINDOW_US = 60_000_000
START_S = 2.0
"""For the processes to start in."""

BURST_S = 5.0
COST_PER_S = 500.0
COST_S = 10.0
PLENTY = 10**12
TIGHT_ROUNDS = 1000
TIGHT_REQUESTS = 20


class LimitPlan(msgspec.Struct, frozen=True):
    """Work of one replica.

    Attributes:
        tokens_per_minute: 0 for no limit, like ``concurrent_tokens``.
        tokens: Per request.
        per_s: Requests per second.
        dry: Ask no limiter, to measure the driver alone.
    """

    url: str
    namespace: str
    replica: int
    replicas: int
    requests_per_minute: int
    tokens_per_minute: int
    concurrent_tokens: int
    tokens: int
    per_s: float
    start_unix_s: float
    duration_s: float
    seed: int
    dry: bool = False


class LimitReport(msgspec.Struct, frozen=True):
    """Result of one replica.

    Attributes:
        granted_us: Log times of grants.
        waits_us: Durations of the requests that waited for an answer.
        rounds: Round trips to Redis.
        alone: Requests that were decided without Redis.
    """

    asked: int
    granted_us: list[int]
    waits_us: list[int]
    rounds: int
    alone: int
    cpu_s: float


class _Replica:
    def __init__(self, plan: LimitPlan) -> None:
        self._plan = plan
        self._clock = LogClock()
        self._leases = Leases(
            plan.url,
            Keys(plan.namespace),
            f"r{plan.replica}",
            now_us=self._clock.now_us,
            replicas=lambda: [f"r{number}" for number in range(plan.replicas)],
            ttl_s=TTL_S,
            loop=asyncio.get_running_loop(),
        )
        self._asked = 0
        self._granted_us: list[int] = []
        self._waits_us: list[int] = []

    async def run(self) -> LimitReport:
        plan, pick = self._plan, Random(self._plan.seed)
        task = asyncio.create_task(self._leases.run())
        # The first answer takes a connection, which a gateway that serves has.
        self._leases.charge(self._leases.account("warm-up", plan), 1, lambda charge: None)
        await asyncio.sleep(max(0.0, plan.start_unix_s - time.time()))
        began_s, cpu_s = time.monotonic(), time.process_time()
        due_s, end_s = began_s + pick.expovariate(plan.per_s), began_s + plan.duration_s
        while (now_s := time.monotonic()) < end_s:
            while due_s <= now_s:
                due_s += pick.expovariate(plan.per_s)
                self._request()
            await asyncio.sleep(max(STEP_S, min(due_s, end_s) - now_s))
        await asyncio.sleep(0.1)
        cpu_s = time.process_time() - cpu_s
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return LimitReport(
            self._asked, self._granted_us, self._waits_us, self._leases.rounds, self._leases.alone, cpu_s
        )

    def _request(self) -> None:
        self._asked += 1
        if self._plan.dry:
            return
        asked_us = self._clock.now_us()

        def decided(charge: Charge) -> None:
            self._waits_us.append(self._clock.now_us() - asked_us)
            if charge.granted:
                self._served(charge)

        charge = self._leases.charge(self._leases.account(ACCOUNT, self._plan), self._plan.tokens, decided)
        if charge.granted:
            self._served(charge)

    def _served(self, charge: Charge) -> None:
        self._granted_us.append(self._clock.now_us())
        self._leases.settle(charge, charge.tokens)


async def replica(plan: LimitPlan) -> None:
    """Be one replica."""
    say(await _Replica(plan).run())


@dataclass(frozen=True)
class Row:
    """Figures of one run."""

    name: str
    limit: int
    minutes: float
    reports: list[LimitReport]

    @property
    def granted_us(self) -> list[int]:
        """Times of grants by all replicas, in order."""
        return sorted(at_us for report in self.reports for at_us in report.granted_us)

    @property
    def busiest(self) -> float:
        """Most requests granted in any 60 s, of the limit."""
        granted_us, first, most = self.granted_us, 0, 0
        for last, at_us in enumerate(granted_us):
            while granted_us[first] <= at_us - WINDOW_US:
                first += 1
            most = max(most, last + 1 - first)
        return most / self.limit

    @property
    def used(self) -> float:
        """Requests granted in the whole minutes from the first one on, of the limit."""
        granted_us = self.granted_us
        minutes = max(1, int(self.minutes))
        end_us = granted_us[0] + minutes * WINDOW_US if granted_us else 0
        return sum(at_us < end_us for at_us in granted_us) / (self.limit * minutes)

    @property
    def rounds_per_request(self) -> float:
        """Round trips to Redis per request that was granted."""
        return sum(report.rounds for report in self.reports) / max(1, len(self.granted_us))

    def wait_ms(self, part: float) -> float:
        """A quantile of the waits, milliseconds."""
        waits_us = sorted(wait for report in self.reports for wait in report.waits_us)
        return waits_us[min(len(waits_us) - 1, int(part * len(waits_us)))] / 1000 if waits_us else 0.0


async def run(url: str, plans: list[LimitPlan]) -> list[LimitReport]:
    """Run one process per plan, and gather their reports."""

    async def child(plan: LimitPlan) -> LimitReport:
        async with started(replica, plan) as running:
            report = await running.next(LimitReport)
        if report is None:
            raise ChildFailed(f"replica {plan.replica} ended early")
        return report

    return await asyncio.gather(*map(child, plans))


def plans_of(
    url: str, name: str, limit: int, per_s: list[float], duration_s: float, *, seed: int, dry: bool = False
) -> list[LimitPlan]:
    """Plans of replicas that are asked for ``per_s`` requests per second."""
    start_unix_s = time.time() + START_S
    return [
        LimitPlan(
            url,
            name,
            number,
            len(per_s),
            requests_per_minute=limit,
            tokens_per_minute=0,
            concurrent_tokens=0,
            tokens=100,
            per_s=rate,
            start_unix_s=start_unix_s,
            duration_s=duration_s,
            seed=seed * 1000 + number,
            dry=dry,
        )
        for number, rate in enumerate(per_s)
    ]


async def limited(
    url: str, replicas: int, limit: int, minutes: float, demand: float, *, seed: int = 1
) -> list[Row]:
    """Ask for more than a limit allows, in three ways."""
    rows = []
    asked_per_s = demand * limit / 60
    few = 0.01
    for name, duration_s, per_s in (
        ("burst", BURST_S, [demand * limit / BURST_S / replicas] * replicas),
        ("steady", minutes * 60, [asked_per_s / replicas] * replicas),
        ("skewed", minutes * 60, [asked_per_s] + [few] * (replicas - 1)),
    ):
        plans = plans_of(url, f"{name}-{limit}", limit, per_s, duration_s, seed=seed)
        rows.append(Row(name, limit, duration_s / 60, await run(url, plans)))
    return rows


async def cost_us(url: str) -> tuple[float, Row]:
    """CPU microseconds per request that the leases add where the limit is never reached."""
    rates = [COST_PER_S, COST_PER_S]
    wet = await run(url, plans_of(url, "cost", PLENTY, rates, COST_S, seed=1))
    dry = await run(url, plans_of(url, "dry", PLENTY, rates, COST_S, seed=1, dry=True))
    cpu_s = sum(report.cpu_s for report in wet) - sum(report.cpu_s for report in dry)
    return cpu_s * 1e6 / sum(report.asked for report in wet), Row("plenty", PLENTY, COST_S / 60, wet)


async def tight_us(url: str) -> float:
    """CPU microseconds to admit and settle a request that finds its lease, and the lines of its answer."""
    tenant = Tenant("tight", limits=TenantLimits(PLENTY, PLENTY, PLENTY), configured=True)
    leases = Leases(
        url,
        Keys("tight"),
        "r0",
        now_us=LogClock().now_us,
        replicas=lambda: ("r0",),
        ttl_s=TTL_S,
        loop=asyncio.get_running_loop(),
    )
    limiter = Limiter(leases, lambda name, limit: None)
    task = asyncio.create_task(leases.run())
    spent_us = []
    for _ in range(TIGHT_ROUNDS):
        began_s, alone = time.process_time(), leases.alone
        charges = [limiter.admit(tenant, 1000, lambda charge: None) for _ in range(TIGHT_REQUESTS)]
        for charge in charges:
            limiter.settle(charge, 900)
            limiter.lines(charge)
        if all(charge.granted for charge in charges) and leases.alone == alone:
            spent_us.append((time.process_time() - began_s) * 1e6 / TIGHT_REQUESTS)
        await asyncio.sleep(STEP_S)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return statistics.median(spent_us)


def table_of(rows: list[Row]) -> Table:
    """Table to print."""
    table = Table(
        *("", "limit", "asked", "granted", "busiest 60 s / limit", "granted / limit"),
        *("rounds per grant", "wait P50 ms", "P99 ms", "alone"),
    )
    for row in rows:
        table.add_row(
            row.name,
            f"{row.limit:,}",
            f"{sum(report.asked for report in row.reports):,}",
            f"{len(row.granted_us):,}",
            f"{row.busiest:.3f}",
            f"{row.used:.3f}",
            f"{row.rounds_per_request:.2f}",
            f"{row.wait_ms(0.5):.2f}",
            f"{row.wait_ms(0.99):.2f}",
            f"{sum(report.alone for report in row.reports)}",
        )
    return table


async def measure(replicas: int, limits: list[int], minutes: float, demand: float) -> None:
    """Print the table."""
    console = Console(width=140)
    async with EmbeddedValkey() as valkey:
        rows = []
        for limit in limits:
            rows += await limited(valkey.url, replicas, limit, minutes, demand)
        added_us, row = await cost_us(valkey.url)
        hot_us = await tight_us(valkey.url)
        console.print(table_of([*rows, row]))
        console.print(f"CPU to admit, settle and tell of a request that finds its lease: {hot_us:.1f} us")
        console.print(f"CPU per request at 500 per second, rounds included: {added_us:.1f} us")


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Limits over replicas: how exact, and what they cost.")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--limits", type=int, nargs="+", default=[100, 1000], help="requests per minute")
    parser.add_argument("--minutes", type=float, default=2.0, help="of each steady run")
    parser.add_argument("--demand", type=float, default=4.0, help="asked for, as a multiple of the limit")
    arguments = parser.parse_args()
    uvloop.run(measure(arguments.replicas, arguments.limits, arguments.minutes, arguments.demand))


if __name__ == "__main__":
    main()
