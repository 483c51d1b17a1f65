"""Costs of a few workers that no option concerns, in one loop.

Mostly a few workers differ in nothing but service model, kappa, cache and backlog: none has a pool, ranks
beside it or another length bucket, and no request waits. Then the loop computes the cost of each, also of one
that hands the request over to a decode worker, and no `Timing`.

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

Times = tuple[float, float, float]
"""V', x and s of a request on one worker (`policies.pricing.timing`)."""


class PlainRows(msgspec.Struct, frozen=True, gc=False):
    """Prices of a few workers without options.

    Attributes:
        slots: Rows of the workers in the fleet state.
        row_of: Row of each here, by its bit in a set of workers (`radix.bitmask`).
        mask: Set of them all.
        prices: Slot, model, congestion_per_s, and evicting (0 and +inf if there is none) of each, as in
            `policies.pricing.timing.Prices`.
    """

    slots: list[int]
    row_of: dict[int, int]
    mask: int
    prices: list[tuple[int, Model, float, float, float]]

    def safe_tokens(
        self, matches: Sequence[Match], tokens_per_block: float, tokens_max: float, *, windowed: bool
    ) -> list[float]:
        """Window-safe prefix match of each over all prompts, at most ``tokens_max``.

        If not ``windowed``, the safe part of a match is all of it.
        """
        row_of, mask = self.row_of, self.mask
        matched = [0.0] * len(row_of)
        if not matches:
            return matched
        if windowed or len(matches) > 1:
            blocks = [0] * len(row_of)
            for match in matches:
                match.add_safe(blocks, self.slots)
            return [min(safe * tokens_per_block, tokens_max) for safe in blocks]
        match = matches[0]
        for workers, depth in zip(match.parted, match.depths, strict=True):
            here = workers & mask
            if here:
                tokens = depth * tokens_per_block
                if tokens > tokens_max:
                    tokens = tokens_max
                if here == mask:
                    return [tokens] * len(row_of)
                row = row_of.get(here)
                if row is not None:  # one worker: the usual case of a conversation
                    matched[row] = tokens
                else:
                    matched = [
                        tokens if here & bit else known for bit, known in zip(row_of, matched, strict=True)
                    ]
        return matched

    def priced(
        self,
        prompt_tokens: float,
        safe_tokens: list[float],
        loads: Loads,
        now_us: int,
        committed_s: float,
        shipped: Shipped[float] | None,
        *,
        counts_others: bool,
    ) -> tuple[list[float], list[Times]]:
        """Find cost and times of each for a request, by its window-safe match and its backlog.

        ``committed_s`` is the backlog that no later request overtakes (`policies.state.queue_view`); +inf if
        requests do not wait in the gateway. ``shipped`` is that of `policies.pricing.timing.assemble`. The
        price is `min_ttft`, or `expected_cost`, which counts others.
        """
        costs: list[float] = []
        times: list[Times] = []
        prefill_us_at, head_us_at, head_service_us_at = loads.backlog_at
        model: Model | None = None
        cached = uncached = service_s = work_s = 0.0
        for (slot, own_model, congestion_per_s, evict_token_s, free_tokens), own_cached in zip(
            self.prices, safe_tokens, strict=True
        ):
            if own_model is not model or own_cached != cached:  # often as those of the one before
                model, cached = own_model, own_cached
                a_s, b_s, c0_tokens = model
                uncached = prompt_tokens - cached
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
            times.append((ready_s, work_s, service_s))
            cost = ready_s + work_s
            if counts_others:
                cost = cost + work_s * (congestion_per_s * (settled_s + work_s * 0.5))
                if uncached > free_tokens:
                    cost = cost + evict_token_s * (uncached - free_tokens)
            costs.append(cost)
        return costs, times


def plain_rows(few: Sequence[Prices[float]]) -> PlainRows | None:
    """Prepare a few workers; None if there are none, or an option concerns one of them."""
    if not few or any(each.fetching or each.visiting or each.beside for each in few):
        return None
    one_of = dict[Model, Model]().setdefault
    prices = [
        (each.slot, one_of(each[1:4], each[1:4]), each.congestion_per_s, *(each.evicting or (0.0, inf)))
        for each in few
    ]
    row_of = {1 << each.slot: row for row, each in enumerate(few)}
    return PlainRows([each.slot for each in few], row_of, sum(row_of), prices)
