"""What the study runs: a documented design instead of the whole cross product.

The whole product of 5 kinds of traffic, 3 loads, 2 engines, with and without L3, 1 and 8 replicas and 14
variants of policies is 1,680 simulations. Run are

    main        every traffic x every load x every policy: SWA engine, no L3, one replica
    dense, l3, replicas
                every traffic x the contenders at 80 %, with one factor changed
    corner      agentic traffic with all three changed at once, at 80 and 95 %: do the factors add up?
    seeds       agentic traffic at 80 % with its sessions in other orders: how much is chance?
    sweep-*     one parameter varied, on the agentic and the conversation traffic
    claims      what MiMo-V2.5 says it gained (arXiv:2607.13095, 4.1 and 5.2), switched on and off
    cross-check Dynamo's trace, engine and cache capacity (`loadtest.study.cross_check`)

so each factor is seen against the same middle: the SWA engine, no L3, one replica, 80 %. The load of a cell
is a utilisation: engines are slowed until the least work that the traffic can cause keeps the fleet this busy
(`loadtest.simulator.utilisation`), so that loads of different traffic and engines mean the same. A policy
that reuses less has more work than that, and may be overloaded where another is not: that is the comparison.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from loadtest.engine.profiles import QueueOrder

Options = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Variant:
    """A policy as the tables name it.

    Attributes:
        label: Its name in tables.
        policy: Its name in the registry.
        options: Its options, as pairs.
    """

    label: str
    policy: str
    options: Options = ()


OURS = "expected_cost"

MANY_RANKS = "mimo-v2.5-pro-dp8"
"""Of `loadtest.study.traffic.ENGINES`: a step waits for the longest of eight ranks, not of two."""

TUNED = Variant("kv_cost, scale 32", "kv_cost", (("prefill_load_scale", 32.0),))
"""The best weight of prefill in the sweep, on either traffic."""

DYNAMOS = Variant("kv_cost, scale 4", "kv_cost", (("prefill_load_scale", 4.0),))
"""The weight with which Dynamo's own replay is quoted (`loadtest.study.cross_check`)."""

VARIANTS = (
    Variant(OURS, OURS),
    Variant("min_ttft", "min_ttft"),
    Variant("affinity", "affinity"),
    Variant("kv_cost", "kv_cost"),
    DYNAMOS,
    TUNED,
    Variant("lmetric", "lmetric"),
    Variant("cache_aware", "cache_aware"),
    Variant("prefix_hash", "prefix_hash"),
    Variant("consistent_hash", "consistent_hash"),
    Variant("power_of_two", "power_of_two"),
    Variant("least_load", "least_load"),
    Variant("round_robin", "round_robin"),
    Variant("random", "random"),
)
"""Every policy of the registry, and the peer with the most cited knob as tuned."""

ALL = tuple(variant.label for variant in VARIANTS)

CONTENDERS = (
    OURS,
    "min_ttft",
    "affinity",
    DYNAMOS.label,
    TUNED.label,
    "lmetric",
    "cache_aware",
    "least_load",
    "round_robin",
)
"""Those that are compared everywhere; the others take part in the main part alone."""

PEERS = (DYNAMOS.label, TUNED.label, "cache_aware", "lmetric", "least_load")
"""Whom the default policy is measured against: what other routers ship."""

ORDERS: tuple[QueueOrder, ...] = ("fcfs", "uncached")

MIDDLE = 0.8

UTILISATIONS = (0.6, MIDDLE, 0.95)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One simulation.

    Attributes:
        part: Part of the design, or ``sweep-`` and what is varied.
        traffic: Key of `loadtest.study.traffic.TRAFFIC`.
        label: The policy as tables name it.
        policy: Its name in the registry.
        options: Its options.
        engine: Key of `loadtest.study.traffic.ENGINES`.
        l3: Whether workers share an L3 pool.
        replicas: Copies of the gateway.
        utilisation: Load (see above); None: the engine as fast as it is.
        block_tokens: Block size of the gateway.
        congestion_max_per_s: Bound of kappa; None: the default.
        queue_order: Order of the engine's queue.
        buckets: Whether workers are parted by the length of requests (`loadtest.study.buckets`).
        default_prices: Whether the gateway starts from the profile of an engine that nobody has described;
            else from the prices of this one.
        aging: k of the order ``uncached``.
        value: What is varied in a sweep, as tables show it.
        seed: Of everything that is drawn.
    """

    part: str
    traffic: str
    label: str
    policy: str
    options: Options = ()
    engine: str = "mimo-v2.5-pro"
    l3: bool = False
    replicas: int = 1
    utilisation: float | None = MIDDLE
    block_tokens: int = 256
    congestion_max_per_s: float | None = None
    queue_order: QueueOrder = "fcfs"
    buckets: bool = False
    default_prices: bool = False
    aging: float = 1.0
    value: str = ""
    seed: int = 1

    @property
    def scenario(self) -> "Cell":
        """The cell without its policy: what the policies are compared on."""
        return replace(self, label="", policy="", options=())


AGENTIC, CONVERSATION = "agentic-64", "conversation"
TRAFFIC_KEYS = (CONVERSATION, "conversation-3x", AGENTIC, "agentic-256", "azure-code")
CACHED_KEYS = TRAFFIC_KEYS[:-1]
"""Traffic whose prompts share something."""


def cells(*, quick: bool = False) -> list[Cell]:
    """All cells of the study in the order of its tables.

    Args:
        quick: Only the middle of the design, and no sweeps: shows that everything runs.
    """
    if quick:
        return [cell for traffic in (AGENTIC, CONVERSATION) for cell in _compared(_middle("main", traffic))]
    found = [
        cell
        for traffic in TRAFFIC_KEYS
        for utilisation in UTILISATIONS
        for cell in _compared(replace(_middle("main", traffic), utilisation=utilisation))
    ]
    for traffic in TRAFFIC_KEYS:
        found += _compared(replace(_middle("dense", traffic), engine="dense-70b"), CONTENDERS)
        found += _compared(replace(_middle("replicas", traffic), replicas=8), CONTENDERS)
    for traffic in CACHED_KEYS:
        found += _compared(replace(_middle("l3", traffic), l3=True), CONTENDERS)
    corner = replace(_middle("corner", AGENTIC), engine="dense-70b", l3=True, replicas=8)
    for utilisation in (MIDDLE, 0.95):
        found += _compared(replace(corner, utilisation=utilisation), CONTENDERS)
    for seed in (2, 3):
        found += _compared(replace(_middle("seeds", AGENTIC), seed=seed), CONTENDERS)
    return [*found, *_sweeps(), *_claims(), *_cross_check()]


def _middle(part: str, traffic: str) -> Cell:
    return Cell(part=part, traffic=traffic, label="", policy="")


def _compared(scenario: Cell, labels: Collection[str] = ALL) -> Iterator[Cell]:
    for variant in VARIANTS:
        if variant.label in labels:
            yield replace(scenario, label=variant.label, policy=variant.policy, options=variant.options)


def _sweeps() -> Iterator[Cell]:
    for traffic in (AGENTIC, CONVERSATION):
        for weight in (0.25, 0.5, 1.0, 2.0, 4.0):
            yield _cell("sweep-match_weight", traffic, "affinity", f"{weight:g}", match_weight=weight)
        for scale in (1.0, 4.0, 8.0, 16.0, 32.0, 64.0):
            yield _cell(
                "sweep-prefill_load_scale", traffic, "kv_cost", f"{scale:g}", prefill_load_scale=scale
            )
        for kappa in (0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 50.0):
            cell = _cell("sweep-congestion_max_per_s", traffic, OURS, f"{kappa:g}")
            yield replace(cell, congestion_max_per_s=kappa)
        for block_tokens in (64, 128, 256, 512, 1024, 2048):
            cell = _cell("sweep-block_tokens", traffic, OURS, str(block_tokens))
            yield replace(cell, block_tokens=block_tokens)
        for value, default in (("engine's own", False), ("default", True)):
            yield replace(_cell("sweep-prices", traffic, OURS, value), default_prices=default)
        for aging in (0.0, 0.5, 1.0, 2.0, 5.0, 20.0):
            cell = _cell("sweep-aging", traffic, OURS, f"{aging:g}")
            yield replace(cell, queue_order="uncached", aging=aging, utilisation=0.95)


def _cell(part: str, traffic: str, policy: str, value: str, **options: float) -> Cell:
    return Cell(
        part=part, traffic=traffic, label=policy, policy=policy, options=tuple(options.items()), value=value
    )


def _claims() -> Iterator[Cell]:
    """Affinity and order at 95 %, where they matter; buckets at 80 %, with few and with many ranks."""
    for policy in ("least_load", "affinity", OURS):
        for order in ORDERS:
            cell = _cell("claims", AGENTIC, policy, order)
            yield replace(cell, queue_order=order, utilisation=0.95)
    for policy in ("affinity", OURS):
        for value, buckets in (("one pool", False), ("buckets", True)):
            yield replace(_cell("claims", AGENTIC, policy, value), buckets=buckets)
            many = _cell("claims", AGENTIC, policy, f"{value}, 8 ranks")
            yield replace(many, buckets=buckets, engine=MANY_RANKS)


def _cross_check() -> Iterator[Cell]:
    same = replace(_middle("cross-check", "cross-check"), engine="dynamo-mocker", utilisation=None)
    return _compared(same, (OURS, "round_robin", "kv_cost", *PEERS))
