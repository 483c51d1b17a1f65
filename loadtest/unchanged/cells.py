"""Decisions of the simulator on small workloads: every policy, with and without a queue.

    conversation   a minute of the Mooncake trace, another one for each seed       recorded
    agentic        16 sessions of coding agents, their first 15 requests           recorded
    azure          2 minutes of bursts of prompts that share nothing               recorded
    pairs          drawn sessions; each request has a prefill and a decode worker
    two sites      independent prompts; a link between the sites (PrfaaS)

With the queue each seed has other rules: a queue without bounds, one that rejects, displaces and expires, and
one that promises a service level. Recorded traffic is left out where it does not lie beside the repository.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from loadtest.engine.profiles import PROFILES
from loadtest.plan.prfaas.fleets import CONTENDERS
from loadtest.plan.prfaas.traffic import lognormal_workload
from loadtest.plan.prfaas.trials import config_of
from loadtest.simulator.agentic import read_agentic
from loadtest.simulator.azure import read_azure
from loadtest.simulator.generated import AgenticShape, Lengths, generate_agentic
from loadtest.simulator.mooncake import read_mooncake
from loadtest.simulator.queueing import PATIENT, Flow, QueueRules
from loadtest.simulator.simulation import SimulationConfig, simulate
from loadtest.simulator.workload import Workload
from loadtest.study.traffic import AGENTIC_FILE, AZURE_FILE, CONVERSATION_FILE
from loadtest.unchanged.facts import Facts
from policies import POLICIES, ServiceLevel

SEEDS = (1, 2, 3)

DIGITS = 10
"""Recorded digits of the hash of a cell's decisions."""

FLOWS = (Flow("normal/one", 2.0), Flow("high/two", 1.0, weight=3.0))

QUEUES: Mapping[int, QueueRules] = MappingProxyType(
    {
        1: QueueRules(flows=FLOWS),
        2: QueueRules(room=replace(PATIENT, size=12, timeout_s=20.0)),
        3: QueueRules(level=ServiceLevel(ttft_slo_s=4.0, ttft_slo_s_per_1k_tokens=0.1)),
    }
)
"""Rules of the queue by seed."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of traffic and the fleet that serves it.

    Attributes:
        file: Name of the recorded traffic; empty if it is drawn.
        load: Reads or draws it, from the folder of the traces and with a seed.
    """

    file: str
    load: Callable[[Path, int], Workload]
    config: SimulationConfig


def _agentic(folder: Path, seed: int) -> Workload:
    workload = read_agentic(folder / AGENTIC_FILE, users=8, sessions=16, seed=seed)
    sessions = tuple(replace(one, requests=one.requests[:15]) for one in workload.sessions)
    return replace(workload, sessions=sessions)


def _pairs(_: Path, seed: int) -> Workload:
    shape = AgenticShape(turns=Lengths(6, 0.5, 10), agents_ratio=0.1)
    return generate_agentic(users=24, sessions=32, seed=seed, shape=shape)


_DENSE = SimulationConfig(engine=PROFILES["dense-70b"], workers=4)

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "conversation": Kind(
            CONVERSATION_FILE,
            lambda folder, seed: read_mooncake(
                folder / CONVERSATION_FILE, start_s=60.0 * (seed - 1), end_s=60.0 * seed, seed=seed
            ),
            replace(_DENSE, speed=4.0),
        ),
        "agentic": Kind(
            AGENTIC_FILE, _agentic, SimulationConfig(engine=PROFILES["mimo-v2.5-pro"], workers=3)
        ),
        "azure": Kind(
            AZURE_FILE,
            lambda folder, seed: read_azure(
                folder / AZURE_FILE, start_s=300.0 * (seed - 1), end_s=300.0 * seed - 180.0, shared_tokens=512
            ),
            replace(_DENSE, speed=30.0),
        ),
        "pairs": Kind("", _pairs, replace(_DENSE, workers=3, decode_workers=2, speed=5.0)),
        "two sites": Kind(
            "",
            lambda _, seed: lognormal_workload(120, 4.0, seed=seed, bursts=True),
            config_of(CONTENDERS["ours"], seed=1, warmup_s=0.0),
        ),
    }
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One simulation."""

    kind: str
    replicas: int
    queue: bool
    seed: int
    policy: str

    @property
    def name(self) -> str:
        """Name of the fact."""
        queue = "queue" if self.queue else "no queue"
        return f"decisions {self.kind}, {self.replicas} replicas, {queue}, seed {self.seed}, {self.policy}"


def cells(*, quick: bool = False) -> list[Cell]:
    """Return the design; of a quick one a few cells without recorded traffic."""
    if quick:
        return [
            Cell(kind, 1, queue, 1, policy)
            for kind in ("pairs", "two sites")
            for queue in (True, False)
            for policy in ("expected_cost", "round_robin")
        ]
    return [
        Cell(kind, replicas, queue, seed, policy)
        for kind in KINDS
        for seed in SEEDS
        for replicas in (1, 8)
        for queue in (True, False)
        for policy in sorted(POLICIES)
    ]


def readable(wanted: list[Cell], traces: Path) -> list[Cell]:
    """Return the cells whose traffic is there."""
    return [cell for cell in wanted if not KINDS[cell.kind].file or (traces / KINDS[cell.kind].file).exists()]


def decided(wanted: list[Cell], known: Facts, traces: Path) -> Iterator[tuple[str, str]]:
    """Simulate cells without a known fact, and yield name and hash of all decisions of each.

    Raises:
        OSError: A trace cannot be read.
        loadtest.traces.TraceError: A trace is damaged.
    """
    for cell in wanted:
        if cell.name not in known:
            yield cell.name, _digest(cell, traces)


def _digest(cell: Cell, traces: Path) -> str:
    config = replace(
        KINDS[cell.kind].config,
        policy=cell.policy,
        replicas=cell.replicas,
        seed=cell.seed,
        queue=QUEUES[cell.seed] if cell.queue else None,
    )
    return simulate(_workload(cell.kind, traces, cell.seed), config).decisions_digest[:DIGITS]


@lru_cache(maxsize=1)
def _workload(kind: str, traces: Path, seed: int) -> Workload:
    return KINDS[kind].load(traces, seed)
