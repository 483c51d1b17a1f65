"""Costs of a few workers that no option concerns, in one loop.

Mostly a few workers differ in nothing but service model, kappa, cache and backlog: none has a pool, ranks
beside it or another length bucket, and no request waits. Then the loop computes an offer of each, also of one
that hands the request over to a decode worker, and no `Timing`. Workers with the same match and model need
the same time for a request, so these are found once for all of them.

The formulas are those of `policies.pricing.timing.assemble` without its options, and of the policies' prices,
written out in their order of operations, since calls would be most of the loop. A test compares both.
"""

from collections.abc import Sequence
from math import inf

import msgspec

from policies.pricing.timing import Prices, Shipped
from policies.state.loads import Loads
from radix import Match

Model = tuple[float, float, float]
"""a_s, b_s and c0_tokens of a service model; the same object for workers of the same model."""

Row = tuple[int, int, Model, float, float, float]
"""Hash of the worker's id, slot, model, congestion_per_s, and evicting of a worker (0 and +inf if there is
none), as in `policies.pricing.timing.Prices`."""

Offer = tuple[float, int, int, float, float, float, float]
"""Cost of a request on one worker, hash of the worker's id, slot, window-safe match, and V', x and s
(`policies.pricing.timing`). Sorted, the cheapest come first."""


class PlainRows(msgspec.Struct, frozen=True, gc=False):
    """Prices of a few workers without options.

    Attributes:
        slots: Rows of the workers in the fleet state.
        rows: Prices of each.
        row_of: The same by the worker's bit in a set of workers (`radix.bitmask`).
        mask: Set of them all.
    """

    slots: list[int]
    rows: list[Row]
    row_of: dict[int, Row]
    mask: int

    def by_match(
        self, matches: Sequence[Match], tokens_per_block: float, tokens_max: float, *, windowed: bool
    ) -> list[tuple[float, Sequence[Row]]]:
        """Group the workers by their window-safe prefix match over all prompts, at most ``tokens_max``.

        If not ``windowed``, the safe part of a match is all of it.
        """
        if not matches:
            return [(0.0, self.rows)]
        if windowed or len(matches) > 1:
            blocks = [0] * len(self.slots)
            for match in matches:
                match.add_safe(blocks, self.slots)
            return [
                (min(safe * tokens_per_block, tokens_max), (row,))
                for safe, row in zip(blocks, self.rows, strict=True)
            ]
        match, left = matches[0], self.mask
        groups: list[tuple[float, Sequence[Row]]] = []
        for workers, depth in match.parts:
            here = workers & left
            if here:
                left ^= here
                tokens = depth * tokens_per_block
                groups.append((tokens if tokens < tokens_max else tokens_max, self._rows_of(here)))
                if not left:
                    return groups
        groups.append((0.0, self._rows_of(left)))
        return groups

    def _rows_of(self, workers: int) -> Sequence[Row]:
        """Rows of a set of these workers."""
        if workers == self.mask:
            return self.rows
        row = self.row_of.get(workers)
        if row is not None:  # one worker: the usual case of a conversation
            return (row,)
        return [row for bit, row in self.row_of.items() if workers & bit]

    @staticmethod
    def offers(
        groups: Sequence[tuple[float, Sequence[Row]]],
        prompt_tokens: float,
        loads: Loads,
        now_us: int,
        committed_s: float,
        shipped: Shipped[float] | None,
        *,
        counts_others: bool,
    ) -> list[Offer]:
        """Find the offers of workers for a request, by their matches (`by_match`) and backlogs.

        ``committed_s`` is the backlog that no later request overtakes (`policies.state.queue_view`); +inf if
        requests do not wait in the gateway. ``shipped`` is that of `policies.pricing.timing.assemble`. The
        price is `min_ttft`, or `expected_cost`, which counts others.
        """
        offers: list[Offer] = []
        prefill_us_at, head_us_at, head_service_us_at = loads.backlog_at
        for cached, rows in groups:
            model: Model | None = None
            uncached, work_s, service_s = prompt_tokens - cached, 0.0, 0.0
            for worker_hash, slot, own_model, congestion_per_s, evict_token_s, free_tokens in rows:
                if own_model is not model:
                    model = a_s, b_s, c0_tokens = own_model
                    work_s = service_s = a_s + b_s * uncached * (1.0 + (cached + uncached * 0.5) / c0_tokens)
                elapsed_us = now_us - head_us_at[slot]  # as `Loads.backlogs_s`
                head_service_us = head_service_us_at[slot]
                if elapsed_us > head_service_us:
                    elapsed_us = head_service_us
                elif elapsed_us < 0:
                    elapsed_us = 0.0
                ready_s = (prefill_us_at[slot] - elapsed_us) / 1e6
                settled_s = ready_s if ready_s < committed_s else committed_s
                if shipped is not None:
                    room_s, exposed_s, stall_s = shipped(slot, service_s)
                    work_s = service_s + exposed_s + stall_s
                    ready_s = max(ready_s, room_s)
                    if committed_s == inf:
                        settled_s = ready_s
                cost = ready_s + work_s
                if counts_others:
                    cost += work_s * (congestion_per_s * (settled_s + work_s * 0.5))
                    if uncached > free_tokens:
                        cost += evict_token_s * (uncached - free_tokens)
                offers.append((cost, worker_hash, slot, cached, ready_s, work_s, service_s))
        return offers


def plain_rows(few: Sequence[Prices[float]], worker_hash: Sequence[int]) -> PlainRows | None:
    """Prepare a few workers by their prices and the hashes of their ids.

    None if there are none, or an option concerns one of them.
    """
    if not few or any(each.fetching or each.visiting or each.beside for each in few):
        return None
    one_of = dict[Model, Model]().setdefault
    rows: list[Row] = [
        (
            own_hash,
            each.slot,
            one_of(each[1:4], each[1:4]),
            each.congestion_per_s,
            *(each.evicting or (0.0, inf)),
        )
        for own_hash, each in zip(worker_hash, few, strict=True)
    ]
    row_of = {1 << each.slot: row for row, each in zip(rows, few, strict=True)}
    return PlainRows([each.slot for each in few], rows, row_of, sum(row_of))
