"""Costs of a few workers that no option concerns, in one loop.

Mostly a few workers differ in nothing but service model, kappa, cache and backlog: none has a pool, ranks
beside it or another length bucket, and no request waits. Then the loop computes the cost of each, also of one
that hands the request over to a decode worker, and no `Timing`.

The formulas are those of `policies.pricing.timing.assemble` without its options, and of the policies' prices,
written out in their order of operations, since calls would be most of the loop. A test holds both to the same
numbers.
"""

from collections.abc import Sequence
from math import inf

import msgspec

from policies.pricing.timing import Prices, Shipped
from radix import Match


class PlainRows(msgspec.Struct, frozen=True, gc=False):
    """Prices of a few workers without options.

    Attributes:
        slots: Rows of the workers in the fleet state.
        row_of: Row of each here, by its bit in a set of workers (`radix.bitmask`).
        mask: Set of them all.
        prices: a_s, b_s, c0_tokens, congestion_per_s, and evicting (0 and +inf if there is none) of each, as
            in `policies.pricing.timing.Prices`.
    """

    slots: list[int]
    row_of: dict[int, int]
    mask: int
    prices: list[tuple[float, float, float, float, float, float]]

    def matched_tokens(self, match: Match, tokens_per_block: float, tokens_max: float) -> list[float]:
        """Prefix match of each, at most ``tokens_max``."""
        row_of, mask = self.row_of, self.mask
        matched = [0.0] * len(row_of)
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
        backlogs_s: list[float],
        committed_s: float,
        shipped: Shipped[float] | None,
        *,
        counts_others: bool,
    ) -> "PlainTimes":
        """Price each for a request, by the window-safe match and the backlog of each.

        ``committed_s`` is the backlog that no later request overtakes (`policies.state.queue_view`); +inf if
        requests do not wait in the gateway. ``shipped`` is that of `policies.pricing.timing.assemble`. The
        price is `min_ttft`, or `expected_cost`, which counts others.
        """
        costs: list[float] = []
        works_s: list[float] = []
        services_s, readies_s = works_s, backlogs_s
        if shipped is not None:
            services_s, readies_s = [], []
        for (a_s, b_s, c0_tokens, congestion_per_s, evict_token_s, free_tokens), cached, ready_s in zip(
            self.prices, safe_tokens, backlogs_s, strict=True
        ):
            uncached = prompt_tokens - cached
            work_s = a_s + b_s * uncached * (1.0 + (cached + uncached * 0.5) / c0_tokens)
            settled_s = ready_s if ready_s < committed_s else committed_s
            if shipped is not None:
                services_s.append(work_s)
                room_s, exposed_s, stall_s = shipped(self.slots[len(costs)], work_s)
                work_s = work_s + exposed_s + stall_s
                ready_s = max(ready_s, room_s)
                readies_s.append(ready_s)
                if committed_s == inf:
                    settled_s = ready_s
            works_s.append(work_s)
            cost = ready_s + work_s
            if counts_others:
                cost = cost + work_s * (congestion_per_s * (settled_s + work_s * 0.5))
                if uncached > free_tokens:
                    cost = cost + evict_token_s * (uncached - free_tokens)
            costs.append(cost)
        return PlainTimes(self.slots, safe_tokens, services_s, readies_s, works_s, costs)


def plain_rows(few: Sequence[Prices[float]]) -> PlainRows | None:
    """Prepare a few workers; None if there are none, or an option concerns one of them."""
    if not few or any(each.fetching or each.visiting or each.beside for each in few):
        return None
    prices = [
        (each.a_s, each.b_s, each.c0_tokens, each.congestion_per_s, *(each.evicting or (0.0, inf)))
        for each in few
    ]
    row_of = {1 << each.slot: row for row, each in enumerate(few)}
    return PlainRows([each.slot for each in few], row_of, sum(row_of), prices)


class PlainTimes(msgspec.Struct, frozen=True, gc=False):
    """Times and costs of a request on a few workers without options.

    Attributes:
        slots: Rows of the workers in the fleet state.
        safe_tokens: Window-safe match of each.
        services_s: s of each.
        readies_s: V' of each.
        works_s: x of each.
        costs: Cost of each by the policy's price.
    """

    slots: list[int]
    safe_tokens: list[float]
    services_s: list[float]
    readies_s: list[float]
    works_s: list[float]
    costs: list[float]
