"""Runs automatic length buckets: asks `policies.bucket_plan` now and then, and says its answer in the log.

`BucketPlanner.run` is started by `router.app` and looks every `INTERVAL_S`. One replica decides, the one
whose turn it is (`policies.turn_of`); if it dies, the next round is another's. If two ever decide at once,
the later plan counts, everywhere. Nothing depends on a plan: without one any worker takes any length.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from policies import (
    ANY_BUCKET,
    BucketMember,
    BucketVerdict,
    FleetState,
    LengthDemand,
    Op,
    plan_buckets,
    turn_of,
)
from router.fleet.local_worker import Health
from router.fleet.registry import Registry

logger = logging.getLogger(__name__)

INTERVAL_S = 10.0
"""Between two looks; a change of the division needs minutes of evidence anyway."""

TURN = "length buckets"
"""What the replicas take turns for."""


@dataclass(frozen=True, slots=True)
class BucketPlanner:
    """Decides how workers are divided into length buckets.

    Attributes:
        fleet: The shared state.
        registry: Says who is well.
        publish: Changes the shared state, for all replicas.
        now_us: Log time.
        replica: Id of this replica.
        replicas: Ids of the replicas that are alive.
    """

    fleet: FleetState
    registry: Registry
    publish: Callable[[Op], None]
    now_us: Callable[[], int]
    replica: str
    replicas: Callable[[], tuple[str, ...]]

    async def run(self) -> None:
        """Look now and then, for ever."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            self.look()

    def look(self) -> None:
        """Decide, if it is this replica's turn."""
        if turn_of(TURN, self.replica, self.replicas()):
            return
        verdict = self.verdict()
        if verdict is None or verdict.plan is None:
            return
        self.publish(verdict.plan)
        logger.info(
            "length buckets planned",
            extra={
                "event": "buckets.planned",
                "reason": verdict.reason,
                "tokens_max": list(verdict.plan.tokens_max),
                "moved": len(verdict.plan.moved),
                "ttft_s": verdict.best_cost_s,
                "ttft_before_s": verdict.cost_s,
            },
        )

    def demand(self) -> LengthDemand:
        """What came lately, by length."""
        fleet = self.fleet
        requests, service_s, window_s = fleet.lengths.totals(self.now_us())
        worker_class = next((local.worker.worker_class for local in self.registry.all()), "default")
        return LengthDemand(requests, service_s, window_s, fleet.service_model(worker_class))

    def verdict(self) -> BucketVerdict | None:
        """What this replica would decide now; None if buckets are not automatic."""
        fleet, buckets = self.fleet, self.fleet.buckets
        bounds = buckets.bounds
        if not buckets.automatic or bounds is None:
            return None
        members: list[BucketMember] = []
        absent: dict[str, int] = {}
        for local in self.registry.all():
            worker, number = local.worker, buckets.of(local.worker.slot)
            if local.health is Health.HEALTHY and not worker.draining:
                held_tokens = fleet.tree.held_blocks(worker.slot) * fleet.rules.block_tokens
                pinned = buckets.pinned(worker.slot)
                members.append(BucketMember(worker.worker_id, number, pinned, held_tokens))
            elif number != ANY_BUCKET:
                absent[worker.worker_id] = number
        return plan_buckets(
            self.demand(),
            bounds,
            members,
            buckets.plans,
            replica=self.replica,
            now_us=self.now_us(),
            absent=absent,
        )
