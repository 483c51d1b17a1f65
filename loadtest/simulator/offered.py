"""Load that a workload offers a fleet, over the fleet's capacity: above 1 it is overloaded.

    prefill    least possible work (prompts behind what one pooled LRU cache of all workers would hold)
    decode     tokens of answers against the largest batch that memory and ``max_running`` allow
    misses     prefill that a policy's choices really caused, which is above the least by its misses

Over the time until the last arrival, if no request waited. An overloaded fleet has no steady state: its queue
grows as long as requests come, and times tell the length of the trace more than anything else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from loadtest.engine.profiles import EngineProfile
from loadtest.simulator.fleet import capacity_tokens
from loadtest.simulator.runs import Run
from loadtest.simulator.utilisation import least_utilisation
from loadtest.simulator.words import percent
from loadtest.simulator.workload import Workload

COMFORTABLE = 0.8
"""Share of the time that workers of a fleet without long queues are busy [guess]."""

OVERLOADED = 1.0


@dataclass(frozen=True, slots=True)
class Offered:
    """Offered load over capacity.

    Attributes:
        prefill: Load of the workers that take requests.
        decode: Load of those that decode.
        by_policy: Prefill really done over the time there was, by label; in a closed loop, where users wait
            for their answers, it stays near 1.
    """

    workers: int
    decode_workers: int
    prefill: float
    decode: float
    by_policy: tuple[tuple[str, float], ...]

    def sentences(self) -> list[str]:
        """Say it if the fleet is overloaded, and what would be enough; empty if it is not."""
        said = []
        for load, count, what, least in (
            (self.prefill, self.workers, "prefill", ", even if all their caches were one"),
            (self.decode, self.decode_workers or self.workers, "decode", ", with the largest batches"),
        ):
            if load > OVERLOADED:
                wanted = ceil(count * load / COMFORTABLE)
                said.append(
                    f"This fleet is overloaded: {load:.2f} × the {what} that {_workers(count)} can do"
                    f"{least}. Queues grow as long as requests come, so its times tell the length of the "
                    f"trace. About {_workers(wanted)} would be busy for {percent(COMFORTABLE)} of the time."
                )
        missing = [(label, load) for label, load in self.by_policy if load > OVERLOADED]
        if missing and self.prefill <= OVERLOADED:
            worst = ", ".join(f"{load:.2f} × under {label}" for label, load in missing)
            said.append(
                f"This fleet is overloaded by what policies miss: prefill is {worst} of what it can do, and "
                f"{self.prefill:.2f} × at the least. Times of these policies are those of growing queues."
            )
        return said


def offered_load(runs: Sequence[Run], workload: Workload) -> Offered:
    """Compute the load of runs that differ in their policy only."""
    result = runs[0].result
    config = result.config
    engine = config.engine.with_prefill(1.0 / result.time_scale)
    room = capacity_tokens(engine, config.workers, config.host, config.l3)
    prefill = least_utilisation(
        workload,
        engine,
        config.workers,
        capacity_tokens=room,
        decode_workers=config.decode_workers,
        speed=config.speed,
    )
    by_policy = tuple((run.label, _done(run, engine)) for run in runs)
    return Offered(
        config.workers,
        config.decode_workers,
        prefill,
        _decode(workload, engine, config.decode_workers or config.workers, config.speed),
        by_policy if not workload.users else (),
    )


def _done(run: Run, engine: EngineProfile) -> float:
    """Prefill of the requests that were prefilled, over the workers' time until the last arrival."""
    records, prices = run.result.records, engine.prefill.model()
    ran = np.isfinite(records.first_s)
    if not ran.any():
        return 0.0
    cached = records.reused_tokens[ran]
    uncached = records.prompt_tokens[ran] - cached
    work_s = prices.a_s + prices.b_s * uncached * (1.0 + (cached + 0.5 * uncached) / prices.c0_tokens)
    span_s = float(records.arrival_s.max() - records.arrival_s.min())
    return float(work_s.sum()) / (run.result.config.workers * max(span_s, 1e-9))


def _decode(workload: Workload, engine: EngineProfile, workers: int, speed: float) -> float:
    """Tokens per second that come over those that the workers can decode; 0 in a closed loop."""
    starts = [session.start_s for session in workload.sessions]
    if workload.users or any(start is None for start in starts):
        return 0.0
    requests = list(workload.requests())
    outputs = np.array([request.output_tokens for request in requests], dtype=np.float64)
    contexts = np.array([request.tokens for request in requests]) + outputs / 2
    # A request is in the batch for as long as its answer takes.
    context = float((contexts * outputs).sum() / outputs.sum())
    held = engine.rules.full_tokens * engine.dp_ranks / context
    batch = max(min(float(engine.max_running), held), 1.0)
    decode = engine.decode
    step_s = decode.base_s + batch * (decode.request_s + decode.kv_token_s * context)
    span_s = max(start or 0.0 for start in starts) / speed
    if step_s <= 0 or span_s <= 0:
        return 0.0
    return float(outputs.sum()) / span_s / (workers * batch * decode.mtp_speedup / step_s)


def _workers(count: int) -> str:
    return f"{count} worker{'s' * (count != 1)}"
