"""The parts of a command line that ``cacheway simulate`` and ``cacheway plan`` share."""

import argparse
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from math import inf
from pathlib import Path
from typing import get_args

from loadtest.engine.parallelism import AS_PROFILE, Parallelism
from loadtest.engine.profiles import PROFILES, EngineProfile, make_profile
from loadtest.engine.settings import Dialect
from loadtest.profile.engine_file import EngineFile, OwnEngine, read_engine
from loadtest.profile.live import FROM_METRICS, MEASURE_S, measured_engine
from loadtest.simulator.contenders import Contender, read_contenders
from loadtest.simulator.generated import generate_agentic
from loadtest.simulator.queueing import PATIENT, QueueRules
from loadtest.simulator.readers import ALL, ReadOptions, TraceFormat, read_auto
from loadtest.simulator.tier_rules import PLAIN, PUBLISHED, TierRules, read_tier_rules
from loadtest.simulator.workload import ENGINE_BLOCK_TOKENS, Workload
from policies import LengthBuckets, ServiceLevel

DEFAULT_ENGINE = "mimo-v2.5-pro"

GENERATED_SESSIONS = 100
"""Drawn without a trace, or twice as many as there are users: half an hour of a fleet."""


def positive(text: str) -> float:
    """A finite number above 0."""
    return _number(text, lambda value: 0 < value < inf, "a number above 0")


def not_negative(text: str) -> float:
    """A finite number, 0 or above."""
    return _number(text, lambda value: 0 <= value < inf, "a number, 0 or above")


def share(text: str) -> float:
    """A number above 0 and below 1."""
    return _number(text, lambda value: 0 < value < 1, "a number between 0 and 1, such as 0.8")


def count(text: str) -> int:
    """A whole number, 1 or above; ``K`` and ``M`` stand for 1,024 and its square."""
    return _whole(text, 1)


def count_or_none(text: str) -> int:
    """A whole number, 0 or above, written as for `count`."""
    return _whole(text, 0)


def sizes(text: str) -> list[float]:
    """Numbers of 0 or above with commas between them, ascending, each once."""
    return sorted({not_negative(part) for part in text.split(",")})


def bucket_workers(text: str) -> tuple[tuple[int, int], ...]:
    """Upper bounds of length buckets and the workers of each, such as ``64K=5,256K=2,1M=1``."""
    pairs = []
    for part in text.split(","):
        bound, equals, workers = part.partition("=")
        if not equals:
            raise argparse.ArgumentTypeError(f"{part!r} is not TOKENS=WORKERS, for example 64K=5")
        pairs.append((count(bound.strip()), count(workers.strip())))
    try:
        LengthBuckets(tuple(bound for bound, _ in pairs))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    return tuple(pairs)


def window(text: str) -> tuple[float, float]:
    """A stretch of time as ``START:END`` in seconds; either may be left out."""
    start, colon, end = text.partition(":")
    try:
        stretch = float(start or 0.0), float(end or inf)
    except ValueError:
        stretch = 1.0, 0.0
    if not (colon and 0 <= stretch[0] < stretch[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not START:END in seconds, for example 0:600")
    return stretch


def new_file(text: str) -> Path:
    """A file to write, in a folder that exists: no long run ends with an error that was there before."""
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"cannot write {text!r}: it is a folder, or its folder does not exist"
        )
    return path


def add_workload(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say what comes."""
    group = parser.add_argument_group("workload")
    group.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="recorded traffic; without it, sessions of coding agents are drawn from the seed",
    )
    group.add_argument(
        "--format",
        type=TraceFormat,
        choices=list(TraceFormat),
        default=TraceFormat.AUTO,
        help="of the trace [default auto: by its first line]",
    )
    group.add_argument(
        "--window",
        type=window,
        default=(ALL.start_s, ALL.end_s),
        metavar="START:END",
        help="arrivals to take, seconds of the trace [default all]",
    )
    group.add_argument(
        "--requests-max", type=count, metavar="N", help="take no more than the first N requests"
    )
    group.add_argument(
        "--users",
        type=count,
        default=ALL.users,
        metavar="N",
        help=f"agents' sessions at work at the same time [default {ALL.users}]",
    )
    group.add_argument(
        "--sessions",
        type=count,
        metavar="N",
        help="how many agents' sessions [default all, or 100 drawn ones]",
    )
    group.add_argument(
        "--gap-s-max",
        type=not_negative,
        default=ALL.gap_s_max,
        metavar="S",
        help=f"longest pause inside an agent's session, seconds [default {ALL.gap_s_max:g}]",
    )
    group.add_argument(
        "--prompt-tokens-max", type=count, metavar="N", help="leave out agents' requests with longer prompts"
    )
    group.add_argument(
        "--shared-tokens",
        type=count_or_none,
        default=ALL.shared_tokens,
        metavar="N",
        help="leading tokens that all prompts of a trace of lengths share [default 0]",
    )
    group.add_argument(
        "--seed", type=int, default=ALL.seed, metavar="N", help=f"of all that is drawn [default {ALL.seed}]"
    )


def tier_rules(text: str) -> TierRules:
    """Rules of memory below the device (`loadtest.simulator.tier_rules`)."""
    try:
        return read_tier_rules(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_pool(parser: argparse._ActionsContainer) -> None:
    """Add the argument that says how memory below the device works."""
    parser.add_argument(
        "--pool",
        type=tier_rules,
        default=PLAIN,
        metavar="NAME|FILE,KEY=VALUE,...",
        help=f"how host memory and the shared pool work: {' or '.join(PUBLISHED)}, or a YAML file, and keys "
        "that differ, as in mooncake,ttl_s=600; docs/pools.md has the keys [default gcache]",
    )


def add_engine(parser: argparse._ActionsContainer) -> None:
    """Add the arguments that say what workers are."""
    parser.add_argument(
        "--engine",
        nargs="+",
        default=[DEFAULT_ENGINE],
        metavar="NAME|FILE|from-metrics URL",
        help=f"what the workers are: {', '.join(sorted(PROFILES))}, a YAML file (docs/own-engine.md), or "
        f"from-metrics and the URL of a running engine to measure first [default {DEFAULT_ENGINE}]",
    )
    add_measuring(parser)
    parser.add_argument(
        "--dialect",
        choices=get_args(Dialect),
        help="whose rules their caches follow [default: the file's, else sglang]",
    )
    parser.add_argument(
        "--expert-parallel",
        type=count,
        default=AS_PROFILE.expert_parallel,
        metavar="N",
        help="GPUs over which a worker divides the experts of its layers [default: all of the profile's]",
    )
    parser.add_argument(
        "--pipeline-parallel",
        type=count,
        default=AS_PROFILE.pipeline_parallel,
        metavar="N",
        help="pipeline stages of a worker, each of so many GPUs [default 1]",
    )
    parser.add_argument(
        "--expert-balance",
        type=positive,
        default=AS_PROFILE.expert_balance,
        metavar="B",
        help="mean number of tokens of a worker's ranks over the largest, 1 if experts are even "
        f"[default {AS_PROFILE.expert_balance:g}]",
    )
    parser.add_argument(
        "--numa-balancing",
        action="store_true",
        help="the kernel of the workers' machines moves memory between NUMA nodes (numa_balancing)",
    )
    parser.add_argument(
        "--no-prefill-mtp",
        dest="prefill_mtp",
        action="store_false",
        help="prefill does not run the MTP layers, so the first 256 tokens of an answer come more slowly",
    )


def add_dp_aware(parser: argparse._ActionsContainer) -> None:
    """Add the argument that says who chooses data-parallel ranks, called as that of the gateway."""
    parser.add_argument(
        "--dp-aware",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="the gateway chooses the data-parallel rank of a request, too; otherwise its engine does, and "
        "looks at no cache [default: the gateway]",
    )


def add_measuring(parser: argparse._ActionsContainer) -> None:
    """Add the arguments that say how a running engine is measured."""
    parser.add_argument(
        "--probe",
        action="store_true",
        help="from-metrics: send a few prompts of random tokens, too, which the engine works for",
    )
    parser.add_argument(
        "--measure-s",
        type=positive,
        default=MEASURE_S,
        metavar="S",
        help=f"from-metrics: seconds to watch its counters [default {MEASURE_S:g}]",
    )
    parser.add_argument(
        "--measured",
        type=new_file,
        default=Path("measured-engine.yaml"),
        metavar="FILE",
        help="from-metrics: where the measured profile is written [default measured-engine.yaml]",
    )


@dataclass(frozen=True, slots=True)
class ChosenEngine:
    """The engine of a command line.

    Attributes:
        profile_gpus: GPUs of the published or described engine, before ``profile`` was divided otherwise.
        given: Values of a user's file; None for a published engine.
    """

    profile: EngineProfile
    profile_gpus: int
    given: EngineFile | None = None


def engine_of(options: argparse.Namespace) -> ChosenEngine:
    """The engine from the arguments of `add_engine`; `ValueError` if no such engine can be."""
    name, *rest = options.engine
    parallelism = Parallelism(
        expert_parallel=options.expert_parallel,
        pipeline_parallel=options.pipeline_parallel,
        expert_balance=options.expert_balance,
        numa_balancing=options.numa_balancing,
        prefill_mtp=options.prefill_mtp,
    )
    given = None
    if name in PROFILES and not rest:
        engine, gpus = make_profile(name, parallelism), PROFILES[name].gpus
    elif parallelism != AS_PROFILE:
        raise ValueError(
            "an engine of your own is what was measured: leave out --expert-parallel, --pipeline-parallel, "
            "--expert-balance, --numa-balancing and --no-prefill-mtp"
        )
    else:
        own = _own_engine(name, rest, options)
        engine, gpus, given = own.profile, own.profile.gpus, own.given
    dialect = options.dialect or (given.dialect if given is not None else "sglang")
    # Workloads come in blocks of one size for all engines.
    rules = replace(engine.rules, match_rule=dialect, block_tokens=ENGINE_BLOCK_TOKENS)
    return ChosenEngine(replace(engine, rules=rules), gpus, given)


def _own_engine(name: str, rest: list[str], options: argparse.Namespace) -> OwnEngine:
    if name == FROM_METRICS and len(rest) == 1:
        return measured_engine(rest[0], seconds=options.measure_s, probe=options.probe, path=options.measured)
    if name == FROM_METRICS:
        raise ValueError("--engine from-metrics takes the URL of one engine, as in http://10.0.0.7:30001")
    if rest:
        raise ValueError(f"--engine takes one name or file, not {len(rest) + 1}")
    if not name.endswith((".yaml", ".yml", ".json")) and not Path(name).is_file():
        near = did_you_mean(name, PROFILES)
        raise ValueError(
            f"there is no engine {name!r}{near}; give one of {', '.join(sorted(PROFILES))}, a YAML file "
            "(docs/own-engine.md has an example), or from-metrics URL"
        )
    return read_engine(Path(name))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Suggest the nearest known word; empty if none is near."""
    near = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean {near[0]}?)" if near else ""


def add_queue(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say how requests wait in the gateway."""
    group = parser.add_argument_group("queue")
    group.add_argument(
        "--queue-k",
        type=not_negative,
        metavar="K",
        help="let requests wait in the gateway for workers with room, by arrival plus K times predicted "
        "prefill; 0: first come, first served [default: all go to their workers at once]",
    )
    group.add_argument(
        "--queue-timeout-s",
        type=positive,
        default=PATIENT.timeout_s,
        metavar="S",
        help="longest wait; then a request expires [default: never]",
    )
    group.add_argument(
        "--ttft-slo-s",
        type=not_negative,
        default=0.0,
        metavar="S",
        help="reject a request that is predicted to wait longer for its first token; 0: none [default 0]",
    )
    group.add_argument(
        "--ttft-slo-s-per-1k-tokens",
        type=not_negative,
        default=0.0,
        metavar="S",
        help="what is added to it for each 1,000 tokens of the prompt [default 0]",
    )


def queue_rules(options: argparse.Namespace) -> QueueRules | None:
    """Rules from the arguments of `add_queue`; None: requests never wait in the gateway."""
    if options.queue_k is None:
        return None
    return QueueRules(
        k=options.queue_k,
        room=replace(PATIENT, timeout_s=options.queue_timeout_s),
        level=ServiceLevel(options.ttft_slo_s, options.ttft_slo_s_per_1k_tokens),
    )


def add_jobs(parser: argparse._ActionsContainer) -> None:
    """Add the argument that says how much of this machine to take."""
    parser.add_argument(
        "--jobs",
        type=count,
        default=len(os.sched_getaffinity(0)),
        metavar="N",
        help="simulations at the same time [default: the processors]",
    )


def contenders(text: str) -> list[Contender]:
    """Policies with options (`loadtest.simulator.contenders`)."""
    try:
        return read_contenders(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def read_options(options: argparse.Namespace) -> ReadOptions:
    """Options from the arguments of `add_workload`."""
    start_s, end_s = options.window
    return ReadOptions(
        start_s=start_s,
        end_s=end_s,
        requests_max=options.requests_max,
        users=options.users,
        sessions=options.sessions,
        gap_s_max=options.gap_s_max,
        prompt_tokens_max=options.prompt_tokens_max,
        shared_tokens=options.shared_tokens,
        seed=options.seed,
    )


def read_workload(options: argparse.Namespace) -> Workload:
    """Read the workload that the arguments name, or draw one; `TraceError` as in `read_auto`."""
    take = read_options(options)
    if options.trace is not None:
        return read_auto(options.trace, take, options.format)
    sessions = take.sessions or max(GENERATED_SESSIONS, 2 * take.users)
    drawn = generate_agentic(users=take.users, sessions=sessions, seed=take.seed)
    return drawn if take.requests_max is None else drawn.cut(take.requests_max)


def _number(text: str, fits: Callable[[float], bool], wanted: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not fits(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
    return value


def _whole(text: str, least: int) -> int:
    digits, unit = (text[:-1], _UNITS[text[-1:].upper()]) if text[-1:].upper() in _UNITS else (text, 1)
    try:
        value = int(digits.replace(",", "").replace("_", "")) * unit
    except ValueError:
        value = -1
    if value < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return value


_UNITS = {"K": 1 << 10, "M": 1 << 20}
