"""One fleet on one traffic: its simulation and figures."""

from dataclasses import asdict, dataclass, replace
from math import inf, nan

import numpy as np

from loadtest.plan.prfaas.engines import H20_MODEL, H200
from loadtest.plan.prfaas.fleets import LINK, REMOTE, Contender
from loadtest.plan.prfaas.paper import LINK_GBPS, OUTPUT_TOKENS
from loadtest.simulator.queueing import PATIENT, QueueRules
from loadtest.simulator.records import Floats, Outcome, Result
from loadtest.simulator.simulation import SimulationConfig
from loadtest.simulator.site_links import LinkPlan, Weather, busiest_window_bytes
from router.settings import Settings

LINK_BYTES_PER_S = LINK_GBPS * 1e9 / 8

RTT_S = 0.02
"""[guess] datacentres of one region."""

CAP_RATIO = 0.9
"""Usable share of the link (``links``, ``cap_ratio``)."""

QUEUE_TIMEOUT_S = Settings().queue.timeout_s
"""The gateway's default: who waits for longer is rejected."""

LOOK_S = 0.1
"""Between two looks at the waiting requests: a fifth of the backlog that a worker is given."""

WINDOW_S = 1.0
"""Egress is looked at within stretches of this length, wherever they begin."""


def config_of(
    contender: Contender,
    *,
    seed: int,
    warmup_s: float,
    weather: tuple[Weather, ...] = (),
    link_bytes_per_s: float = LINK_BYTES_PER_S,
) -> SimulationConfig:
    """The simulation of a contender; requests in the first ``warmup_s`` are in no figure."""
    room = replace(PATIENT, timeout_s=QUEUE_TIMEOUT_S)
    return SimulationConfig(
        engine=H200,
        groups=contender.groups,
        tells_links=contender.knows_link,
        offload=contender.offload,
        links={
            LINK: LinkPlan(bytes_per_s=link_bytes_per_s, rtt_s=RTT_S, cap_ratio=CAP_RATIO, weather=weather)
        },
        rules={"default_model": H20_MODEL},
        queue=QueueRules(room=room),
        expected_output_tokens=OUTPUT_TOKENS,
        seed=seed,
        warmup_s=warmup_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Results of a trial, of the requests behind the warm-up.

    Attributes:
        completed_per_s: From the warm-up to the last arrival.
        rejected: Not let in, or waited for too long.
        lost: Let in and never answered, without an error.
        ttft_mean_s: Infinite if no request was answered, like the percentiles.
        wait_mean_s: In the gateway, of dispatched requests; NaN for none.
        remote_share: Share of the answered ones that were prefilled in the other site.
        egress_mean_bytes_per_s: From the first arrival to the last one.
        egress_max_bytes_per_s: Within the busiest second.
    """

    requests: int
    completed_share: float
    completed_per_s: float
    rejected: int
    lost: int
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    wait_mean_s: float
    remote_share: float
    egress_mean_bytes_per_s: float
    egress_max_bytes_per_s: float

    @classmethod
    def of(cls, result: Result) -> "Figures":
        """Take the figures of a simulation."""
        records = result.records.since(result.config.warmup_s)
        done = records.outcome == Outcome.COMPLETED
        ttft_s, wait_s = records.ttft_s[done], records.wait_s[~np.isnan(records.wait_s)]
        p50_s, p90_s, p99_s = np.quantile(ttft_s, (0.5, 0.9, 0.99)).tolist() if len(ttft_s) else (inf,) * 3
        remote = sum(group.count for group in result.config.groups if group.site == REMOTE)
        times_s, sent_bytes = result.egress[LINK]
        busiest_bytes, _ = busiest_window_bytes(times_s, sent_bytes, WINDOW_S)
        last_s = max(float(result.records.arrival_s[-1]), WINDOW_S)
        return cls(
            requests=len(records),
            completed_share=float(done.mean()),
            completed_per_s=float((records.first_s < last_s).sum() / (last_s - result.config.warmup_s)),
            rejected=int(np.isin(records.outcome, (Outcome.REJECTED, Outcome.EXPIRED)).sum()),
            lost=int((records.outcome == Outcome.FAILED).sum()),
            ttft_mean_s=float(ttft_s.mean()) if len(ttft_s) else inf,
            ttft_p50_s=p50_s,
            ttft_p90_s=p90_s,
            ttft_p99_s=p99_s,
            wait_mean_s=float(wait_s.mean()) if len(wait_s) else nan,
            remote_share=float((records.worker[done] < remote).mean()) if done.any() else 0.0,
            egress_mean_bytes_per_s=float(np.interp(last_s, times_s, sent_bytes)) / last_s,
            egress_max_bytes_per_s=busiest_bytes / WINDOW_S,
        )

    def document(self) -> dict[str, float]:
        """The same for JSON."""
        return asdict(self)


def rates(times_s: Floats, total: Floats, step_s: float) -> tuple[Floats, Floats]:
    """A total that grows, as its rate within each of equal stretches of time: their ends and the rates."""
    ends_s = np.arange(step_s, times_s[-1] + step_s, step_s)
    grown = np.interp(ends_s, times_s, total) - np.interp(ends_s - step_s, times_s, total)
    return ends_s, grown / step_s
