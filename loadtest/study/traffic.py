"""The traffic of the study, and the engines that serve it.

The recorded traces lie beside this repository (sources and licences in their README). The fleet grows with
the load: three times the arrivals meet three times the workers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from types import MappingProxyType

from loadtest.engine.profiles import PROFILES, EngineProfile
from loadtest.engine.timing import LinkTiming
from loadtest.simulator.agentic import read_agentic
from loadtest.simulator.azure import read_azure
from loadtest.simulator.mooncake import read_mooncake
from loadtest.simulator.workload import Workload
from loadtest.study import cross_check
from loadtest.study.design import MANY_RANKS
from loadtest.study.steady import steady
from loadtest.unchanged.revision import ROOT

TRACES = ROOT.parent / "shared" / "traces"

CONVERSATION_FILE = "mooncake_conversation_first60.jsonl.gz"
AGENTIC_FILE = "weka_agentic_setA.jsonl.zst"
AZURE_FILE = "azure2023_code_first60.csv.gz"


def _many_ranks() -> EngineProfile:
    """MiMo-V2.5-Pro with the memory of its two data-parallel ranks divided among eight.

    [guess] Large deployments with expert parallelism run more ranks than the recipe for 16 GPUs; the paper's
    number is not published.
    """
    pro = PROFILES["mimo-v2.5-pro"]
    times = 8 // pro.dp_ranks
    rules = replace(
        pro.rules, full_tokens=pro.rules.full_tokens // times, swa_tokens=pro.rules.swa_tokens // times
    )
    host = LinkTiming(pro.host.bytes_per_s / times, pro.host.latency_s)
    return replace(pro, name=MANY_RANKS, dp_ranks=8, rules=rules, host=host)


ENGINES: Mapping[str, EngineProfile] = MappingProxyType(
    {**PROFILES, MANY_RANKS: _many_ranks(), cross_check.ENGINE.name: cross_check.ENGINE}
)
"""Engines by name: the published models, one of them with more ranks, and Dynamo's mock engine."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """One kind of load.

    Attributes:
        title: For the report.
        speed: Relative to the recording.
        load: Reads it, from the folder of the traces and with a seed of all that is drawn.
    """

    title: str
    workers: int
    speed: float
    load: Callable[[Path, int], Workload]


def _conversation(folder: Path, seed: int, *, end_s: float) -> Workload:
    return read_mooncake(folder / CONVERSATION_FILE, end_s=end_s, seed=seed)


def _agentic(folder: Path, seed: int, *, users: int, sessions: int) -> Workload:
    return steady(read_agentic(folder / AGENTIC_FILE, users=users, sessions=sessions, seed=seed))


def _azure(folder: Path, seed: int, *, span_s: float) -> Workload:
    """Each seed is a window of its own, five minutes after the one before: nothing in the trace is drawn."""
    start_s = 300.0 * (seed - 1)
    return read_azure(folder / AZURE_FILE, start_s=start_s, end_s=start_s + span_s)


TRAFFIC: Mapping[str, Traffic] = MappingProxyType(
    {
        "conversation": Traffic(
            "Mooncake conversation trace, its first 15 minutes", 8, 1.0, partial(_conversation, end_s=900.0)
        ),
        "agentic-64": Traffic(
            "recorded sessions of coding agents, 64 at work at a time",
            8,
            1.0,
            partial(_agentic, users=64, sessions=100),
        ),
        "azure-code": Traffic(
            "Azure code trace, 20 minutes of it: bursts of prompts that share nothing",
            8,
            1.0,
            partial(_azure, span_s=1200.0),
        ),
        "cross-check": Traffic(
            "Mooncake conversation trace, all that lies here",
            cross_check.WORKERS,
            cross_check.SPEED,
            partial(_conversation, end_s=inf),
        ),
    }
)
"""Traffic by the key that cells name it with."""
