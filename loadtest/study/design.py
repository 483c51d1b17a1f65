"""A documented design instead of the whole cross product.

    main        both kinds of traffic at 80 % with every rule, and at 60 % with the contenders: SWA engine, no
                L3, one replica
    dense, l3   the contenders at 80 %, with one factor changed, on the traffic that feels it
    claims      what MiMo-V2.5 says it gained (arXiv:2607.13095, 4.1, 4.2 and 5.2), switched on and off
    cross-check Dynamo's trace, engine and cache capacity (`loadtest.study.cross_check`)

The load of a cell is a utilisation: engines are slowed until the least work that the traffic can cause keeps
the fleet this busy (`loadtest.simulator.utilisation`). A policy that reuses less has more work than that, and
may be overloaded where another is not: that is the comparison.

**Products as they ship.** The default policy has the gateway's queue in front of it; the rivals have none, as
the routers that ship these rules. The default policy without the queue is a third variant.

**Seeds.** All rules get the same traffic at the same load with each of `SEEDS`, so they are compared pair by
pair (`loadtest.study.verdict`).
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from loadtest.study.shipped import K

Options = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Variant:
    """A rule as the tables name it.

    Attributes:
        policy: Its name in the registry.
        options: Its options, as pairs.
        queue_k: k of the gateway's queue in front of it; None: there is no queue.
    """

    label: str
    policy: str
    options: Options = ()
    queue_k: float | None = None


OURS = "expected_cost"

BARE = f"{OURS}, no queue"
"""The default policy without the gateway's queue."""

MANY_RANKS = "mimo-v2.5-pro-dp8"
"""Key of `loadtest.study.traffic.ENGINES`: a step waits for the longest of eight ranks, not of two."""

TUNED = Variant("kv_cost, scale 32", "kv_cost", (("prefill_load_scale", 32.0),))
"""Dynamo's rule with a weight of prefill that suits this traffic; no release has it."""

DYNAMOS = Variant("kv_cost, scale 4", "kv_cost", (("prefill_load_scale", 4.0),))
"""The weight with which Dynamo's own replay is quoted (`loadtest.study.cross_check`)."""

VARIANTS = (
    Variant(OURS, OURS, queue_k=K),
    Variant(BARE, OURS),
    Variant("min_ttft", "min_ttft"),
    Variant("affinity", "affinity"),
    Variant("affinity, weight 2", "affinity", (("match_weight", 2.0),)),
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
"""The default with and without its queue; every other rule with the options of the router that ships it.

``kv_cost`` Dynamo, ``cache_aware`` SGLang and SMG, ``prefix_hash`` and ``consistent_hash`` SMG and vLLM's
router. MiMo's paper gives no weight for ``affinity``, so two are run.
"""

ALL = tuple(variant.label for variant in VARIANTS)

RIVALS = tuple(label for label in ALL if label not in (OURS, BARE))
"""Rivals of the default: every other rule."""

CONTENDERS = (
    OURS,
    BARE,
    "min_ttft",
    "affinity",
    "lmetric",
    "cache_aware",
)
"""Rules that know caches, which run everywhere; the rest take part at 80 % alone, to save time."""

SEEDS = (1, 2, 3)

MIDDLE = 0.8

UTILISATIONS = (0.6, MIDDLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One simulation.

    Attributes:
        traffic: Key of `loadtest.study.traffic.TRAFFIC`.
        label: The rule as tables name it.
        queue_k: k of the gateway's queue (`loadtest.study.shipped`); None: there is no queue.
        engine: Key of `loadtest.study.traffic.ENGINES`.
        host: Workers have host memory below the device (HiCache).
        l3: Workers share an L3 pool, which host memory goes with.
        replicas: Copies of the gateway.
        utilisation: Load (see above); None: the engine as fast as it is.
        buckets: Workers are divided by the length of requests (`loadtest.study.buckets`).
        default_prices: The gateway starts from the profile of an undescribed engine; else from this one's
            prices.
        value: The varied value of a claim, as tables show it.
    """

    part: str
    traffic: str
    label: str
    policy: str
    options: Options = ()
    queue_k: float | None = None
    engine: str = "mimo-v2.5-pro"
    host: bool = False
    l3: bool = False
    replicas: int = 1
    utilisation: float | None = MIDDLE
    buckets: bool = False
    default_prices: bool = False
    value: str = ""
    seed: int = 1

    @property
    def scenario(self) -> "Cell":
        """The cell without its rule and seed: what rules are compared on."""
        return replace(self, label="", policy="", options=(), queue_k=None, seed=1)


AGENTIC, CONVERSATION = "agentic-64", "conversation"
TRAFFIC_KEYS = (CONVERSATION, AGENTIC)


def cells(*, quick: bool = False) -> list[Cell]:
    """All cells of the study in the order of its tables.

    ``quick``: the middle of the design with one seed.
    """
    if quick:
        return [cell for traffic in (AGENTIC, CONVERSATION) for cell in _compared(_middle("main", traffic))]
    found: list[Cell] = []
    for traffic in TRAFFIC_KEYS:
        found += _compared(_middle("main", traffic))
    for traffic in (CONVERSATION, AGENTIC):
        for load in (load for load in UTILISATIONS if load != MIDDLE):
            found += _compared(replace(_middle("main", traffic), utilisation=load), CONTENDERS)
    for traffic in (CONVERSATION, AGENTIC):
        found += _compared(replace(_middle("dense", traffic), engine="dense-70b"), CONTENDERS)
    found += _compared(replace(_middle("l3", CONVERSATION), l3=True), CONTENDERS)
    found += [*_claims(), *_cross_check()]
    return [replace(cell, seed=seed) for cell in found for seed in SEEDS]


def _middle(part: str, traffic: str) -> Cell:
    return Cell(part=part, traffic=traffic, label="", policy="")


def _compared(scenario: Cell, labels: Collection[str] = ALL) -> Iterator[Cell]:
    for variant in VARIANTS:
        if variant.label in labels:
            yield replace(
                scenario,
                label=variant.label,
                policy=variant.policy,
                options=variant.options,
                queue_k=variant.queue_k,
            )


def _valued(part: str, traffic: str, value: str, labels: Collection[str] = (OURS,)) -> Iterable[Cell]:
    return _compared(replace(_middle(part, traffic), value=value), labels)


def _claims() -> Iterator[Cell]:
    """Routing and order with host memory at 95 %; buckets at 80 %, with few and with many ranks."""
    for cell in _valued("claims", AGENTIC, "routing", ("round_robin", "least_load", "affinity", OURS)):
        yield replace(cell, host=True, utilisation=0.95)
    for value, k in (("fcfs", 0.0), ("uncached", K)):
        for cell in _valued("claims", AGENTIC, value, ("affinity",)):
            yield replace(cell, host=True, utilisation=0.95, queue_k=k)
    for value, buckets in (("one pool", False), ("buckets", True)):
        for cell in _valued("claims", AGENTIC, value):
            yield replace(cell, buckets=buckets)
            yield replace(cell, buckets=buckets, engine=MANY_RANKS, value=f"{value}, 8 ranks")


def _cross_check() -> Iterator[Cell]:
    same = replace(_middle("cross-check", "cross-check"), engine="dynamo-mocker", utilisation=None)
    return _compared(same, (OURS, BARE, "kv_cost", DYNAMOS.label, "round_robin"))
