"""One replica of the limits' benchmark: leases without the gateway, asked at a steady rate.

A child process of `loadtest.bench.limits`. It reads one line of JSON from standard input (`LimitPlan`),
asks for requests of one account through a real `Leases` on a real connection, and writes one line
(`LimitReport`).

A request lasts no time: it is settled as soon as it is granted, by its estimate. CPU is the process's, from
the first request to the last; a *dry* replica asks nobody, which tells what the driver alone costs.
"""

import asyncio
import sys
import time
from random import Random

import msgspec
import uvloop

from router.shared import Charge, Leases, LogClock
from router.shared.keys import Keys

ACCOUNT = "tenant"
TTL_S = 3.0
STEP_S = 0.002
"""Requests that are due within it are made together."""


class LimitPlan(msgspec.Struct, frozen=True):
    """What one replica does.

    Attributes:
        url: Where Redis is.
        namespace: With whom it shares.
        replica: Its number.
        replicas: How many there are.
        requests_per_minute: Limit of the account.
        tokens_per_minute: As above; 0 for none.
        concurrent_tokens: As above.
        tokens: Of each request.
        per_s: Requests it is asked for, per second.
        start_unix_s: When all begin.
        duration_s: For how long.
        seed: Of the moments at which requests come.
        dry: Ask nobody.
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
    """What it saw.

    Attributes:
        asked: Requests it was asked for.
        granted_us: Log times at which requests were granted.
        waits_us: How long those took that had to wait for an answer.
        rounds: Round trips to Redis.
        alone: Requests that were decided without Redis.
        cpu_s: CPU of the process.
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
        """Ask from the start to the end."""
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


async def _run(plan: LimitPlan) -> LimitReport:
    return await _Replica(plan).run()


def main() -> None:
    """Run one replica."""
    plan = msgspec.json.decode(sys.stdin.buffer.readline(), type=LimitPlan)
    report = uvloop.run(_run(plan))
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")


if __name__ == "__main__":
    main()
