"""Demand by which the slow loop prices the fleet: recent requests, prefill and decode times, link capacities.

Prefill times are the fits of the worker classes (`policies.estimates.costs`), behind as much cache as
requests of that length have. Decode follows its fit (`policies.estimates.decodes`): a worker decodes BS_max
requests together, each for as long as a decode lasts in such a batch. BS_max is the least of

    requests that its engine runs at a time
    contexts, of the length that comes, that its KV capacity holds
    requests that keep the promised time per output token, if one is promised

A class that never decoded is priced like the slowest that did: it may begin, and is not overrated.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import inf, isfinite

import numpy as np

from policies.disaggregation.optimum import service_curve
from policies.disaggregation.role_plan import RoleDemand, RoleMember, StageLoad, live_lengths
from policies.estimates.costs import Floats
from policies.estimates.decodes import DecodeFit
from policies.estimates.kv_bytes import UNKNOWN_KV, KvBytes
from policies.fleet.admission import RUNNING_MAX_LABEL
from policies.fleet.fleet import FleetState
from policies.fleet.roles import DECODE, PREFILL
from policies.state.links import link_name
from radix import COUNT_MAX, parsed_whole


def role_demand(
    fleet: FleetState,
    members: Sequence[RoleMember],
    decode_fit: Callable[[str], DecodeFit],
    now_us: int,
    tpot_slo_s: float = 0.0,
) -> RoleDemand:
    """Demand of late on the workers that prefill or decode; a ``tpot_slo_s`` of 0 promises nothing."""
    requests, cached_tokens, _ = fleet.uncached_lengths.sums(now_us)
    lengths, behind = live_lengths(requests, cached_tokens)
    batches = _batches(fleet, members, decode_fit, tpot_slo_s)
    decode_per_s = {
        name: batch / decode_fit(name).lasts_s(batch)
        for name, batch in batches.items()
        if decode_fit(name).known and isfinite(batch)
    }
    classes = {member.worker.worker_class for member in members}
    if decode_per_s:
        slowest = min(decode_per_s.values())
        decode_per_s = {name: decode_per_s.get(name, slowest) for name in sorted(classes)}
    kv = _weight(fleet.rules.kv_bytes.values())
    return RoleDemand(
        lengths,
        {name: service_curve(fleet.service_model(name), lengths.tokens, behind) for name in sorted(classes)},
        decode_per_s,
        # KV of unknown size crosses no link (`policies.disaggregation.offload`).
        {
            site: fleet.links.cap_bytes_per_s(link_name(site, fleet.rules.site), now_us) if kv.known else 0.0
            for site in sorted({member.site for member in members if member.site})
        },
        lambda tokens: _kv_bytes(kv, tokens),
        _load(fleet, members, batches, now_us),
    )


def _batches(
    fleet: FleetState,
    members: Sequence[RoleMember],
    decode_fit: Callable[[str], DecodeFit],
    tpot_slo_s: float,
) -> dict[str, float]:
    """Mean BS_max of the classes at home; +inf if nothing bounds it."""
    loads = fleet.loads
    decoding = [
        slot
        for member in members
        if member.home and member.worker.role == DECODE
        for slot in fleet.slots(member.worker)
    ]
    context_tokens = float(loads.inflight_tokens[decoding].sum()) / max(
        float(loads.inflight_requests[decoding].sum()), 1.0
    )
    found: defaultdict[str, list[float]] = defaultdict(list)
    for member in members:
        if not member.home:
            continue
        worker = member.worker
        label = worker.labels.get(RUNNING_MAX_LABEL, "")
        capacity_tokens = worker.capacity_tokens or fleet.rules.capacity_tokens
        fit = decode_fit(worker.worker_class)
        limits = [
            float(parsed_whole(label, COUNT_MAX) or inf),
            float(fleet.reports.running_max[fleet.slots(worker)].sum()),
            capacity_tokens / context_tokens if capacity_tokens and context_tokens else inf,
            fit.requests_within(tpot_slo_s) if tpot_slo_s > 0 and fit.known else inf,
        ]
        found[worker.worker_class].append(max(min(limits), 1.0))
    return {name: sum(limits) / len(limits) for name, limits in sorted(found.items())}


def _load(
    fleet: FleetState, members: Sequence[RoleMember], batches: dict[str, float], now_us: int
) -> StageLoad:
    serving = [member for member in members if member.home and member.serves]
    prefill = [fleet.slots(one.worker) for one in serving if one.worker.role == PREFILL]
    decode = [one for one in serving if one.worker.role == DECODE]
    room = sum(batches[one.worker.worker_class] for one in decode)
    busy, backlog_s = 0.0, 0.0
    if prefill:
        # Ranks share their engine: their values add up.
        slots = np.concatenate(prefill)
        busy = float(fleet.loads.rates(now_us)[1][slots].sum()) / len(prefill)
        backlog_s = float(fleet.loads.backlog_s(slots, now_us).sum()) / len(prefill)
    decoding = sum(one.inflight_requests for one in decode)
    return StageLoad(busy, backlog_s, decoding / room if room else 0.0)


def _weight(sizes: Iterable[KvBytes]) -> KvBytes:
    """KV of the heaviest model: the histogram does not tell models apart."""
    return max(sizes, key=lambda kv: (kv.kv_bytes_per_token, kv.request_bytes(1 << 20)), default=UNKNOWN_KV)


def _kv_bytes(kv: KvBytes, tokens: Floats) -> Floats:
    window: Floats = np.minimum(tokens, kv.window_tokens)
    return tokens * kv.kv_bytes_per_token + window * kv.window_bytes_per_token + kv.state_bytes
