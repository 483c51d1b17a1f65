"""Finds why workers were no candidates for a request: for each one the first reason that holds.

The order is that of the filters that a request passes (`router.gateway.choosing`):

    the worker    it encodes, serves another model, was started for another role
    its state     starting, unhealthy, draining, ejected, about to change its length bucket
    the request   too long for it, no partner for it, not to be shared, a cache to be kept apart, slow start
    the policy    it would not answer sooner than those at home; it decodes only; no link leads from it

Each reason is read from the state that the filter reads; no filter is repeated here.
"""

from collections.abc import Collection, Iterator
from enum import StrEnum
from typing import NamedTuple

from policies import Circuit
from policies.disaggregation import ScoredPair
from router.explaining.rehearsal import Rehearsed
from router.fleet import Health, LocalWorker
from router.gateway.gateway import Gateway
from router.gateway.salting import OVERLOOKED_BY


class Absence(StrEnum):
    """Reason why a worker is no candidate; stable words."""

    ENCODER = "encoder"
    OTHER_MODEL = "other_model"
    MISNAMED = "misnamed"
    STARTING = "starting"
    UNHEALTHY = "unhealthy"
    DRAINING = "draining"
    EJECTED = "ejected"
    NO_PARTNER = "no_partner"
    DECODES_ONLY = "decodes_only"
    TOO_LONG = "too_long"
    NOT_SHARED = "not_shared"
    NOT_KEPT_APART = "not_kept_apart"
    OTHER_PART = "other_part"
    SLOW_START = "slow_start"
    OTHER_BUCKET = "other_bucket"
    NO_LINK = "no_link"
    LEFT_OUT = "left_out"


class NonCandidate(NamedTuple):
    """A worker that is no candidate, with the first reason, also in words."""

    worker_id: str
    absence: Absence
    detail: str


def bystanders(gateway: Gateway, rehearsed: Rehearsed, candidates: Collection[int]) -> Iterator[NonCandidate]:
    """Yield all workers but the ``candidates`` (slots), in order of their ids, each with its first reason."""
    registry, parsed, now_us = gateway.registry, rehearsed.parsed, rehearsed.now_us
    eligible = frozenset(registry.eligible(parsed.model, now_us, rehearsed.length).tolist())
    scored = rehearsed.scored
    scored_slots = frozenset(scored.everyone.slots.tolist()) if scored is not None else frozenset()
    for local, place in registry.places():
        slot = place.slot
        if slot in candidates:
            continue
        reason = _of_itself(gateway, rehearsed, local)
        if reason is None:
            if slot not in eligible:
                reason = _not_eligible(gateway, rehearsed, local)
            elif slot not in scored_slots:
                reason = _not_for_this(gateway, rehearsed, local)
            elif isinstance(scored, ScoredPair) and scored.by_site is not None:
                reason = Absence.NO_LINK, "no link leads from its site to a worker that decodes"
            else:
                reason = (
                    Absence.OTHER_BUCKET,
                    "it is of another length bucket and would not answer sooner than all at home",
                )
        yield NonCandidate(place.worker_id, *reason)


def _of_itself(gateway: Gateway, rehearsed: Rehearsed, local: LocalWorker) -> tuple[Absence, str] | None:
    registry, worker, model = gateway.registry, local.worker, rehearsed.parsed.model
    if worker.role == "encode":
        return Absence.ENCODER, "it encodes media for the others"
    if not local.serves(model):
        served = ", ".join(sorted(each.model_id for each in local.models or ())[:3])
        return Absence.OTHER_MODEL, f"it serves {served or 'no model'}"
    if local.health is not Health.HEALTHY:
        absence = Absence.STARTING if local.health is Health.STARTING else Absence.UNHEALTHY
        return absence, f"its last health check said: {local.detail}"
    if worker.draining:
        return Absence.DRAINING, "it takes no new requests until it is put back in service"
    if local.misnamed:
        return Absence.MISNAMED, local.misnamed
    circuit = registry.circuits.of(local)
    if circuit is not None and circuit.state is not Circuit.CLOSED:
        left_s = (circuit.until_us - rehearsed.now_us) / 1e6
        when = f"it is probed in {left_s:.1f} s" if left_s > 0 else "a replica is probing it"
        return Absence.EJECTED, f"its circuit is {circuit.state.value.replace('_', ' ')}; {when}"
    return None


def _not_eligible(gateway: Gateway, rehearsed: Rehearsed, local: LocalWorker) -> tuple[Absence, str]:
    role = local.worker.role
    if role == "prefill":
        missing = gateway.registry.pairs.missing((rehearsed.parsed.model, rehearsed.length))
        return Absence.NO_PARTNER, missing or "no decode worker for it may be asked now"
    if role == "decode":
        return Absence.DECODES_ONLY, "it decodes for prefill workers"
    if rehearsed.length.exceeds_tokens:
        return Absence.TOO_LONG, f"its engine takes {local.longest_tokens(rehearsed.parsed.model)} tokens"
    return Absence.TOO_LONG, "it cannot hold the requests of this length bucket"


def _not_for_this(gateway: Gateway, rehearsed: Rehearsed, local: LocalWorker) -> tuple[Absence, str]:
    parsed, registry, role = rehearsed.parsed, gateway.registry, local.worker.role
    if role == "prefill" and gateway.pairs is not None and not gateway.pairs.splits(local.protocol, parsed):
        return Absence.NOT_SHARED, f"a request like this cannot be shared by two workers ({local.protocol})"
    if rehearsed.tenant.salt and local.engine in OVERLOOKED_BY.get(parsed.endpoint, ()):
        return Absence.NOT_KEPT_APART, f"{local.engine} cannot keep the tenant's cache apart here"
    if parsed.choice is not None:
        eligible = registry.eligible(parsed.model, rehearsed.now_us, rehearsed.length)
        own = frozenset(parsed.choice.among(eligible).tolist())
        if own.isdisjoint(local.slots):
            return Absence.OTHER_PART, "it serves the other part of the model's requests (models.splits)"
    share = registry.share(local, rehearsed.now_us)
    if share < 1.0:
        return Absence.SLOW_START, f"it has just returned and takes {share:.0%} of the prompts; this is none"
    if role == "decode":
        return Absence.DECODES_ONLY, "this policy has no price of a prefill for its decodes"
    return Absence.LEFT_OUT, "it was left out of this decision"
