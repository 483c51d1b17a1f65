"""Price of sharing: CPU of a request at one real replica alone, and beside others that serve as many each.

    python -m loadtest.bench.sharing [--replicas 8] [--rate-per-s 500] [--rounds 4]

One ``cacheway serve`` (`loadtest.bench.stage`) gets 1 KB chat requests in an open loop. For half of the time
it is alone; for the other half synthetic replicas with heartbeats (`loadtest.bench.log_crowd`) publish
placements and load vectors of the same rate each at the same workers, through real publishers. CPU is that of
the one gateway process, user and system, and in brackets the range over the rounds. A request of another
replica costs the difference by their number. Other work of the machine makes both halves more expensive.
"""

import argparse
import statistics
import sys

import uvloop

from loadtest.bench.child import started
from loadtest.bench.http_load import LoadPlan
from loadtest.bench.log_crowd import TTL_S, CrowdPlan, speak
from loadtest.bench.serving import DISTINCT, WARM_UP_S, Window, look
from loadtest.bench.stage import Stage, staged
from loadtest.processes import ChildFailed
from router.shared import SharingRules

CONNECTIONS = 64
BLOCKS = 1
"""In a prompt of 1 KB."""

ANSWER_S = 0.002
"""Time in flight of the others' requests, as of this one's."""

JOIN_S = 3.0
"""Until heartbeats have met, and the workers' books are made."""

LEAVE_S = TTL_S + 2.0


def main() -> int:
    """Measure and print; the status is 1 if a request broke."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.sharing", description="Price of a request that other replicas serve."
    )
    parser.add_argument("--replicas", type=int, default=8, help="in all [%(default)s]")
    parser.add_argument("--rate-per-s", type=float, default=500.0, help="of each replica [%(default)s]")
    parser.add_argument("--rounds", type=int, default=4, help="[%(default)s]")
    parser.add_argument("--window-s", type=float, default=8.0, help="of each half of a round [%(default)s]")
    options = parser.parse_args()
    try:
        print(uvloop.run(_measured(options)))
    except ChildFailed as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    return 0


async def _measured(options: argparse.Namespace) -> str:
    alone: list[Window] = []
    beside: list[Window] = []
    async with staged(1, gap_s=1.0) as stage:
        plan = LoadPlan(stage.port, CONNECTIONS, rate_per_s=options.rate_per_s, distinct=DISTINCT)
        others = _others(stage, options.replicas - 1, options.rate_per_s)
        async with stage.load(plan) as running:

            async def window() -> Window:
                return Window(*await look(stage, running), *await look(stage, running, options.window_s))

            await look(stage, running, WARM_UP_S)
            for _ in range(options.rounds):
                alone.append(await window())
                async with started(speak, others):
                    await look(stage, running, JOIN_S)
                    beside.append(await window())
                await look(stage, running, LEAVE_S)
                print(f"alone {alone[-1].cpu_us:.1f} us, beside {beside[-1].cpu_us:.1f} us", flush=True)
    return summary(alone, beside, options.replicas)


def _others(stage: Stage, replicas: int, rate_per_s: float) -> CrowdPlan:
    return CrowdPlan(
        stage.redis_url,
        SharingRules().namespace,
        replicas,
        replicas * rate_per_s,
        BLOCKS,
        prefill_s=ANSWER_S,
        answer_s=ANSWER_S,
        workers=stage.workers,
        beats=True,
    )


def summary(alone: list[Window], beside: list[Window], replicas: int) -> str:
    """Return medians with their ranges, and the price of one request of another replica."""

    def row(name: str, windows: list[Window]) -> tuple[str, float]:
        figures = [window.cpu_us for window in windows]
        median = statistics.median(figures)
        valkey_us = statistics.median(window.valkey_us for window in windows)
        return (
            f"{name:22} {median:6.1f} us a request ({min(figures):.1f} to {max(figures):.1f}), "
            f"Valkey {valkey_us:.1f} us"
        ), median

    (first, alone_us), (second, beside_us) = row("alone", alone), row(f"one of {replicas} replicas", beside)
    others_us = (beside_us - alone_us) / (replicas - 1)
    return f"{first}\n{second}\na request that another replica serves: {others_us:.1f} us"


if __name__ == "__main__":
    sys.exit(main())
