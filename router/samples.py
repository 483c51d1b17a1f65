"""What a scrape of the metrics reads of workers, links and the plan, as this process knows them then.

Metrics count events as they happen; these are states, asked for only when somebody looks. Nothing is kept.
"""

from math import inf

from policies import DECODE, NEVER_TOKENS, PREFILL
from router.fleet import LocalWorker
from router.gateway import Gateway
from router.metrics import WorkerSample
from router.pair_metrics import LinkSample, PlanSample


class Samples:
    """Reads the states.

    Args:
        gateway: Of the process.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._fleet = gateway.fleet

    def workers(self) -> list[WorkerSample]:
        """Of every worker."""
        now_us = self._gateway.log.now_us()
        return [self._worker(local, now_us) for local in self._gateway.registry.all()]

    def link_state(self, link: str, now_us: int) -> str:
        """The state of a link for a request that would not wait."""
        return self._gateway.placing.decider.offloading.offload.states.state(link, 0.0, now_us).value

    def links(self) -> list[LinkSample]:
        """Of every link that has rules, by name."""
        links, now_us = self._fleet.links, self._gateway.log.now_us()
        samples = []
        for link in sorted(links.rules):
            known = links.measurement(link)
            samples.append(
                LinkSample(
                    link=link,
                    capacity_bytes_per_s=links.capacity_bytes_per_s(link, now_us),
                    cap_bytes_per_s=links.cap_bytes_per_s(link, now_us),
                    reserved_bytes_per_s=links.reserved_bytes_per_s(link, now_us),
                    state=self.link_state(link, now_us),
                    goodput_bytes_per_s=known.bytes_per_s if known is not None else None,
                    rtt_s=links.rtt_s(link),
                    loss_ratio=links.loss_ratio(link),
                )
            )
        return samples

    def plan(self) -> PlanSample | None:
        """From how many uncached tokens on a prompt leaves its site; None if nobody knows."""
        plan, threshold_tokens = (
            self._fleet.offload_plan,
            self._gateway.placing.decider.offloading.threshold_tokens,
        )
        if plan is None:
            return None if threshold_tokens is None else PlanSample(threshold_tokens, {}, 0.0)
        return PlanSample(
            threshold_tokens if threshold_tokens != NEVER_TOKENS else inf,
            {PREFILL: plan.prefill, DECODE: plan.decode} if plan.prefill or plan.decode else {},
            plan.gain_ratio,
        )

    def _worker(self, local: LocalWorker, now_us: int) -> WorkerSample:
        fleet, admission, slot = self._fleet, self._gateway.placing.admission, local.worker.slot
        running_max, kv_tokens_max = admission.running_max(slot), admission.kv_tokens_max(slot)
        reported = fleet.reports.get(local.worker.worker_id)
        return WorkerSample(
            worker_id=local.worker.worker_id,
            state=local.state,
            circuit=self._gateway.registry.circuits.state(local).value,
            backlog_s=fleet.loads.backlog_at_s(slot, now_us),
            inflight_requests=fleet.loads.inflight_requests.item(slot),
            inflight_tokens=fleet.loads.inflight_tokens.item(slot),
            prefill_tokens=fleet.loads.prefill_tokens.item(slot),
            held_tokens=fleet.tree.held_blocks(slot) * fleet.rules.block_tokens,
            target_s=admission.target_s(slot),
            has_room=admission.has_room(slot, now_us),
            running_max=running_max if running_max < inf else None,
            kv_tokens_max=kv_tokens_max if kv_tokens_max < inf else None,
            report_age_s=(now_us - reported.at_us) / 1e6 if reported is not None else None,
            reported_running=reported.running if reported is not None else -1,
            reported_waiting=reported.waiting if reported is not None else -1,
            reported_kv_tokens=reported.kv_tokens if reported is not None else -1,
            role=local.worker.role,
            site=local.worker.site,
        )
