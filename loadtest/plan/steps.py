"""The sensitivity of a plan: one step in each direction, everything else as it is."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from loadtest.plan.candidate import Candidate
from loadtest.simulator.contenders import Contender

LOAD_STEP = 1.1
"""The load of tomorrow, as a multiple of today's."""


@dataclass(frozen=True, slots=True)
class Step:
    """A change to a plan; ``load`` is a multiple of the workload's."""

    name: str
    candidate: Candidate
    load: float = 1.0


def steps_around(
    plan: Candidate, contenders: Sequence[Contender], host_gib: Sequence[float], pool_gib: Sequence[float]
) -> list[Step]:
    """Everything that is one step from a plan: other contenders, and the neighbouring sizes of host and pool.

    Sizes ascend. Pools are read into host memory and need some.
    """
    steps = [
        Step(f"{LOAD_STEP:g} × the load", plan, LOAD_STEP),
        Step(f"{1 / LOAD_STEP:.2f} × the load", plan, 1 / LOAD_STEP),
    ]
    role = "prefill worker" if plan.decode_workers else "worker"
    steps += _counted(role, plan, "workers", plan.family.workers_min)
    if plan.decode_workers:
        steps += _counted("decode worker", plan, "decode_workers", 1)
        steps += _moved(plan)
    family = plan.family
    steps += [
        Step(f"{size:,g} GiB of host memory each", replace(plan, family=replace(family, host_gib=size)))
        for size in _beside(host_gib, family.host_gib)
        if size or not family.pool_gib
    ]
    steps += [
        Step(f"{size:,g} GiB in the pool", replace(plan, family=replace(family, pool_gib=size)))
        for size in _beside(pool_gib, family.pool_gib)
        if family.host_gib or not size
    ]
    steps += [
        Step(contender.label, replace(plan, family=replace(plan.family, contender=contender)))
        for contender in contenders
        if contender != plan.family.contender
    ]
    if family.division is not None:
        steps.append(Step("no buckets", replace(plan, family=replace(family, division=None))))
    return steps


def _beside(sizes: Sequence[float], size: float) -> list[float]:
    place = sizes.index(size)
    return [*sizes[place + 1 : place + 2], *sizes[max(place - 1, 0) : place]]


def _moved(plan: Candidate) -> list[Step]:
    steps = []
    if plan.workers > plan.family.workers_min:
        fewer = replace(plan, workers=plan.workers - 1, decode_workers=plan.decode_workers + 1)
        steps.append(Step("one of them decodes instead", fewer))
    if plan.decode_workers > 1:
        more = replace(plan, workers=plan.workers + 1, decode_workers=plan.decode_workers - 1)
        steps.append(Step("one of them prefills instead", more))
    return steps


def _counted(role: str, plan: Candidate, field: str, least: int) -> list[Step]:
    count = getattr(plan, field)
    steps = [Step(f"a {role} more", replace(plan, **{field: count + 1}))]
    if count > least:
        steps.append(Step(f"a {role} less", replace(plan, **{field: count - 1})))
    return steps
