"""One file per placement policy, one registry.

A policy turns one request and the columns of its candidates into costs: the lowest wins, +inf is not
considered. `policies.scoring.placement` picks and breaks ties. The columns that a policy returns may be the
candidates' own, and must not be changed.

Policies that only add up seconds (`expected_cost`, `min_ttft`) are written as the *price* of one worker, a
formula for both numbers and columns, so that a few candidates need no columns.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

from policies.estimates.costs import Floats, Number
from policies.pricing.timing import Timing
from policies.pricing.views import Candidates, RequestView
from policies.scoring.affinity import AffinityOptions, affinity
from policies.scoring.cache_aware import CacheAwareOptions, cache_aware
from policies.scoring.consistent_hash import ConsistentHashOptions, consistent_hash
from policies.scoring.expected_cost import expected_cost
from policies.scoring.kv_cost import KvCostOptions, kv_cost
from policies.scoring.least_load import least_load
from policies.scoring.lmetric import lmetric
from policies.scoring.min_ttft import min_ttft
from policies.scoring.options import checked_options
from policies.scoring.power_of_two import power_of_two
from policies.scoring.prefix_hash import PrefixHashOptions, prefix_hash
from policies.scoring.round_robin import round_robin
from policies.scoring.uniform import uniform

DEFAULT_POLICY = "expected_cost"

SECONDS = "seconds"
"""Unit of policies that price time."""


class Price(Protocol):
    """Cost of one worker, or of each of many."""

    def __call__(self, timing: Timing[Number], /) -> Number:
        """Lower is better."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A scoring rule, ready to use.

    Attributes:
        costs: One cost per candidate; the lowest wins, +inf is not considered.
        uses_cache: True if costs depend on cached blocks.
        price: ``costs`` of one worker, if seconds decide alone.
        counts_others: True if the price counts the time that others lose, too; None without a price.
        unit: Unit of a cost, for people.
        left_out: Meaning of +inf, for people: said of the worker.
    """

    name: str
    costs: Callable[[RequestView, Candidates], Floats]
    uses_cache: bool
    price: Price | None = None
    unit: str = SECONDS
    left_out: str = ""
    counts_others: bool | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """An entry of the registry, as `Policy`; ``costs`` takes an instance of ``options``, if there are any."""

    costs: Callable[..., Floats]
    options: type[Any] | None = None
    uses_cache: bool = False
    price: Price | None = None
    unit: str = SECONDS
    left_out: str = ""
    counts_others: bool | None = None


def _priced(price: Price, *, counts_others: bool) -> Rule:
    def costs(request: RequestView, candidates: Candidates) -> Floats:
        return price(candidates.times(request.prompt_tokens))

    return Rule(costs, uses_cache=True, price=price, counts_others=counts_others)


_RANK = "rank of the worker for this hash"
_FULL = "is full: it has more than its share of the requests in flight (load_factor)"

POLICIES: Mapping[str, Rule] = MappingProxyType(
    {
        DEFAULT_POLICY: _priced(expected_cost, counts_others=True),
        "min_ttft": _priced(min_ttft, counts_others=False),
        "affinity": Rule(
            affinity, AffinityOptions, uses_cache=True, unit="share of the busiest backlog less cached share"
        ),
        "kv_cost": Rule(kv_cost, KvCostOptions, uses_cache=True, unit="blocks to prefill and to decode"),
        "lmetric": Rule(lmetric, uses_cache=True, unit="tokens to prefill times requests"),
        "cache_aware": Rule(
            cache_aware,
            CacheAwareOptions,
            uses_cache=True,
            unit="requests in flight, or cached tokens (negative), or tokens held, whichever rule applies",
        ),
        "prefix_hash": Rule(prefix_hash, PrefixHashOptions, unit=_RANK, left_out=_FULL),
        "consistent_hash": Rule(consistent_hash, ConsistentHashOptions, unit=_RANK, left_out=_FULL),
        "power_of_two": Rule(
            power_of_two, unit="requests in flight", left_out="is not one of the two that were drawn"
        ),
        "least_load": Rule(least_load, unit="requests in flight"),
        "round_robin": Rule(round_robin, unit="turns to wait"),
        "random": Rule(uniform, unit="number drawn for this turn"),
    }
)

DECODE_COST = "decode_cost"
"""Default policy for decode workers (`policies.disaggregation.decode_selection`)."""

DECODE_POLICIES = (DECODE_COST, *POLICIES)
"""Policies for decode workers: the policies of prefill workers may choose them, too."""


OWN_POLICY = r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*"
"""Pattern of a policy that a user writes, ``PACKAGE.MODULE:NAME`` (`router.own_policies` loads it)."""


def is_own(name: str) -> bool:
    """True if a policy's name is that of a user's."""
    return re.fullmatch(OWN_POLICY, name) is not None


NO_RULES: Mapping[str, Rule] = MappingProxyType({})


def make_policy(
    name: str, options: Mapping[str, float] = MappingProxyType({}), own: Mapping[str, Rule] = NO_RULES
) -> Policy:
    """Make a policy by name, of the registry or of a user's ``own``; missing options keep their defaults.

    Raises:
        ValueError: Unknown name or option, or a value out of range; the message lists what is valid.
    """
    rule = POLICIES.get(name) or own.get(name)
    if rule is None:
        raise ValueError(f"unknown policy {name!r}; known are: {', '.join(POLICIES)}")
    bound = checked_options(name, rule.options, options)
    costs = rule.costs if bound is None else partial(rule.costs, options=bound)
    return Policy(name, costs, rule.uses_cache, rule.price, rule.unit, rule.left_out, rule.counts_others)
