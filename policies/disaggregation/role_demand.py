"""What the slow loop prices the fleet by: what came, what prefill and decode take, what links carry.

Prefill takes what the fit of the worker's class says (`policies.estimates.costs`), behind as much cache as
requests of that length have. Decode takes what was learned of it (`policies.estimates.decodes`): a worker
decodes BS_max requests together, each of which lasts as long as a decode does in such a batch. BS_max is the
least of

    what its engine runs at a time
    what its KV capacity holds of the contexts that come
    what still keeps the promised time per output token, if one is promised

A class that never decoded is priced like the slowest that did: so that somebody may begin, and nobody hopes.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import inf, isfinite

import numpy as np

from policies.disaggregation.optimum import service_curve
from policies.disaggregation.role_plan import DECODE, PREFILL, RoleDemand, RoleMember, StageLoad, live_lengths
from policies.estimates.costs import Floats
from policies.estimates.decodes import DecodeFit
from policies.estimates.kv_bytes import UNKNOWN_KV, KvBytes
from policies.fleet.admission import RUNNING_MAX_LABEL
from policies.fleet.fleet import FleetState
from policies.state.links import link_name
from radix import COUNT_MAX, parsed_whole


def role_demand(
    fleet: FleetState,
    members: Sequence[RoleMember],
    decode_fit: Callable[[str], DecodeFit],
    now_us: int,
    tpot_slo_s: float = 0.0,
) -> RoleDemand:
    """What came lately, and what it takes.

    Args:
        fleet: The shared state.
        members: The workers that prefill or decode.
        decode_fit: What was learned of decode, by worker class.
        now_us: Log time.
        tpot_slo_s: Promised time per output token; 0 if there is none.
    """
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
        # No KV that nobody has weighed crosses a link (`policies.disaggregation.offload`).
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
    """BS_max of the classes at home: the mean of their workers'; +inf if nothing bounds it."""
    loads = fleet.loads
    decoding = [member.worker.slot for member in members if member.home and member.worker.role == DECODE]
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
            fleet.reports.running_max.item(worker.slot),
            capacity_tokens / context_tokens if capacity_tokens and context_tokens else inf,
            fit.requests_within(tpot_slo_s) if tpot_slo_s > 0 and fit.known else inf,
        ]
        found[worker.worker_class].append(max(min(limits), 1.0))
    return {name: sum(limits) / len(limits) for name, limits in sorted(found.items())}


def _load(
    fleet: FleetState, members: Sequence[RoleMember], batches: dict[str, float], now_us: int
) -> StageLoad:
    """How busy both stages at home are."""
    serving = [member for member in members if member.home and member.serves]
    prefill = np.array([one.worker.slot for one in serving if one.worker.role == PREFILL], dtype=np.intp)
    decode = [one for one in serving if one.worker.role == DECODE]
    room = sum(batches[one.worker.worker_class] for one in decode)
    busy, backlog_s = 0.0, 0.0
    if len(prefill):
        busy = float(fleet.loads.rates(now_us)[1][prefill].mean())
        backlog_s = float(fleet.loads.backlog_s(prefill, now_us).mean())
    decoding = sum(one.inflight_requests for one in decode)
    return StageLoad(busy, backlog_s, decoding / room if room else 0.0)


def _weight(known: Iterable[KvBytes]) -> KvBytes:
    """What KV weighs; of several models the heaviest, since the histogram does not tell them apart."""
    return max(known, key=lambda kv: (kv.kv_bytes_per_token, kv.request_bytes(1 << 20)), default=UNKNOWN_KV)


def _kv_bytes(kv: KvBytes, tokens: Floats) -> Floats:
    """`KvBytes.of` for many uncached lengths."""
    window: Floats = np.minimum(tokens, kv.window_tokens)
    return tokens * kv.kv_bytes_per_token + window * kv.window_bytes_per_token + kv.state_bytes
