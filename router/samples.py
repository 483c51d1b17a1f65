"""States of workers, links and the plan, read at each scrape; nothing is kept."""

from collections.abc import Iterator
from enum import StrEnum
from math import inf

from policies import DECODE, PREFILL, Worker
from policies.disaggregation import NEVER_TOKENS, LinkState, Offloading
from router import metric_families as families
from router.fleet import LocalWorker
from router.gateway import Gateway
from router.metrics import Sample

_CIRCUIT = {"closed": 0, "half_open": 1, "open": 2}


class WorkerState(StrEnum):
    """States of a worker in the metrics."""

    STARTING = "starting"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    DRAINING = "draining"


def link_state(offloading: Offloading, link: str, now_us: int) -> str:
    """Return the state of a link for a request that would not wait."""
    return offloading.offload.states.signals(link, 0.0, now_us).state.value


class Samples:
    """Reader of the states of one gateway."""

    def __init__(self, gateway: Gateway, offloading: Offloading) -> None:
        self._gateway, self._offloading = gateway, offloading
        self._fleet = gateway.fleet

    def workers(self) -> Iterator[Sample]:
        """Yield the samples of every worker."""
        now_us = self._gateway.log.now_us()
        for local in self._gateway.registry.all():
            yield from self._worker(local, now_us)

    def links(self) -> Iterator[Sample]:
        """Yield the samples of every link that has rules, by name."""
        links, now_us = self._fleet.links, self._gateway.log.now_us()
        for link in sorted(links.rules):
            now = link_state(self._offloading, link, now_us)
            for state in LinkState:
                yield families.LINK_STATE, (link, state.value), float(now == state.value)
            measured, cap = links.measurement(link), links.cap_bytes_per_s(link, now_us)
            reserved = links.reserved_bytes_per_s(link, now_us)
            yield families.LINK_CAPACITY, (link,), links.capacity_bytes_per_s(link, now_us)
            yield families.LINK_RESERVED, (link,), reserved
            if cap:
                yield families.LINK_UTILISATION, (link,), reserved / cap
            if measured is not None:
                yield families.LINK_GOODPUT, (link,), measured.bytes_per_s
            yield families.LINK_RTT, (link,), links.rtt_s(link)
            yield families.LINK_LOSS, (link,), links.loss_ratio(link)

    def plan(self) -> Iterator[Sample]:
        """Yield the uncached tokens from which a prompt leaves its site, if planned."""
        plan = self._fleet.offload_plan
        tokens = self._offloading.threshold_tokens
        if tokens is not None:
            never = plan is not None and tokens == NEVER_TOKENS
            yield families.OFFLOAD_THRESHOLD, (), inf if never else tokens
        if plan is not None and (plan.prefill or plan.decode):
            yield families.ROLE_WORKERS_BEST, (PREFILL,), plan.prefill
            yield families.ROLE_WORKERS_BEST, (DECODE,), plan.decode
        if plan is not None or tokens is not None:
            yield families.ROLE_GAIN, (), 0.0 if plan is None else plan.gain_ratio

    def _worker(self, local: LocalWorker, now_us: int) -> Iterator[Sample]:
        name = (local.worker.worker_id,)
        for state in WorkerState:
            yield families.WORKER_STATE, (*name, state.value), float(local.state == state.value)
        yield families.WORKER_ROLE, (*name, local.worker.role, local.worker.site), 1.0
        yield families.CIRCUIT_STATE, name, _CIRCUIT[self._gateway.registry.circuits.state(local).value]
        for place in local.places:
            yield from self._load(place, now_us)

    def _load(self, place: Worker, now_us: int) -> Iterator[Sample]:
        """Yield the samples of a worker, or of a data-parallel rank, by its id."""
        fleet, admission, slot = self._fleet, self._gateway.placing.admission, place.slot
        name = (place.worker_id,)
        yield families.WORKER_BACKLOG, name, fleet.loads.backlog_at_s(slot, now_us)
        yield families.WORKER_SLOWDOWN, name, fleet.columns.slowdown(slot)
        yield families.WORKER_REQUESTS, name, fleet.loads.inflight_requests.item(slot)
        yield families.WORKER_TOKENS, name, fleet.loads.inflight_tokens.item(slot)
        yield families.WORKER_PREFILL, name, fleet.loads.prefill_tokens.item(slot)
        yield families.WORKER_HELD, name, fleet.tree.held_blocks(slot) * fleet.rules.block_tokens
        yield families.WORKER_TARGET, name, admission.target_s(slot)
        yield families.WORKER_ROOM, name, admission.has_room(slot, now_us)
        for family, bound in (
            (families.WORKER_RUNNING_MAX, admission.running_max(slot)),
            (families.WORKER_KV_MAX, admission.kv_tokens_max(slot)),
        ):
            if bound < inf:
                yield family, name, bound
        reported = fleet.reports.get(place.worker_id)
        if reported is None:
            return
        yield families.REPORT_AGE, name, (now_us - reported.at_us) / 1e6
        for family, figure in (
            (families.REPORTED_RUNNING, reported.running),
            (families.REPORTED_WAITING, reported.waiting),
            (families.REPORTED_KV, reported.kv_tokens),
        ):
            if figure >= 0:
                yield family, name, figure
