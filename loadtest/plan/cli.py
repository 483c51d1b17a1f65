"""``cacheway plan``: number of workers, their split and policy, for a service level and prices.

    trace or histogram ──> bounds ──> search by simulation ──> one step around it ──> table, page, curve

It names its certainty and its assumptions. The same command gives the same plan.
"""

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from loadtest.command_line import CommandParser
from loadtest.engine.model_config import read_shape
from loadtest.plan.candidate import Candidate
from loadtest.plan.charts import draw_curve
from loadtest.plan.division import divisions
from loadtest.plan.dual_pools import DualPools
from loadtest.plan.laboratory import Laboratory
from loadtest.plan.lengths import (
    DRAWN_OUTPUT_TOKENS,
    DRAWN_REQUESTS,
    REUSE_S,
    Drawing,
    draw_workload,
    read_lengths,
)
from loadtest.plan.objective import Prices, Slo
from loadtest.plan.outcome import HEADINGS, Outcome
from loadtest.plan.page import plan_page
from loadtest.plan.planner import NoPlan, Question, make_plan
from loadtest.plan.trial import Trial
from loadtest.profile.engine_file import EnginePrices
from loadtest.simulator.arguments import (
    ChosenEngine,
    add_dp_aware,
    add_engine,
    add_jobs,
    add_pool,
    add_workload,
    contenders,
    count,
    engine_of,
    new_file,
    not_negative,
    positive,
    read_workload,
    share,
    sizes,
)
from loadtest.simulator.memory import can_hold_more
from loadtest.simulator.parallel import SimulationFailed
from loadtest.simulator.setting_words import gpus_in_words
from loadtest.simulator.simulation import SimulationConfig
from loadtest.simulator.theme import style
from loadtest.simulator.tier_rules import PLAIN
from loadtest.simulator.workload import Workload
from loadtest.traces import TraceError

DEFAULT_POLICIES = "expected_cost,least_load"

PNG_DPI = 180

PRICES = Prices()


def main(argv: list[str]) -> int:
    """Make a plan.

    Return 0 with a plan, 1 without one or if something cannot be read or written, 2 for a wrong command line,
    130 after Ctrl-C.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    if options.pool_gib[0] and not options.host_gib[-1]:
        parser.error("--pool-gib needs --host-gib: a pool is read into host memory")
    if options.lengths is not None and (options.hit_ratio is None or options.rate is None):
        parser.error("--lengths needs --hit-ratio and --rate: a histogram says neither")
    try:
        engine = engine_of(options)
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        return 130
    console = Console()
    try:
        outcome = _planned(console, options, engine)
        _show(console, outcome)
        _write(outcome, options, shlex.join(["cacheway", "plan", *argv]))
    except (TraceError, SimulationFailed, NoPlan, OSError) as error:
        print(f"cacheway plan: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0 if outcome.found else 1


def _planned(console: Console, options: argparse.Namespace, chosen: ChosenEngine) -> Outcome:
    engine, worker_price = chosen.profile, _worker_price(options, chosen)
    below = can_hold_more(engine)
    workloads = [_workload(options, seed) for seed in range(options.seed, options.seed + options.seeds)]
    base = SimulationConfig(
        engine=engine,
        replicas=options.replicas,
        speed=options.speed,
        warmup_s=options.warmup_s,
        seed=options.seed,
        dp_aware=options.dp_aware,
    )
    question = Question(
        engine=engine,
        slo=Slo(options.ttft_p90_s, options.tpot_p90_s, options.completed_share),
        prices=Prices(
            worker_price * engine.gpus / chosen.profile_gpus,
            *_memory_prices(options, chosen),
        ),
        contenders=options.policy,
        splits={"no": [False], "yes": [True], "try": [False, True]}[options.split],
        host_gib=options.host_gib if below else [0.0],
        pool_gib=options.pool_gib if below else [0.0],
        workers_max=options.workers_max,
        speed=options.speed,
        divisions=divisions(workloads, engine, base.expected_output_tokens, speed=options.speed)
        if options.buckets
        else None,
        tier_rules=options.pool,
        layers=options.model,
    )
    lab = Laboratory(console, workloads, base, question.slo, options.jobs)
    return make_plan(question, workloads, lab, _assumed(options, chosen))


def _worker_price(options: argparse.Namespace, chosen: ChosenEngine) -> float:
    own = EnginePrices() if chosen.given is None else chosen.given.prices
    return _first(options.worker_price, own.worker, PRICES.worker)


def _memory_prices(options: argparse.Namespace, chosen: ChosenEngine) -> tuple[float, float]:
    """Prices of a GiB of host memory and of the pool: of the command line, else of the engine's file."""
    own = EnginePrices() if chosen.given is None else chosen.given.prices
    return (
        _first(options.host_gib_price, own.host_gib, PRICES.host_gib),
        _first(options.pool_gib_price, own.pool_gib, PRICES.pool_gib),
    )


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)


def _workload(options: argparse.Namespace, seed: int) -> Workload:
    if options.lengths is None:
        return read_workload(argparse.Namespace(**vars(options) | {"seed": seed}))
    drawing = Drawing(
        hit_ratio=options.hit_ratio,
        rate_per_s=options.rate,
        requests=options.requests_max or DRAWN_REQUESTS,
        output_tokens=options.output_tokens,
        reuse_s=options.reuse_s,
        seed=seed,
    )
    return draw_workload(options.lengths.name, read_lengths(options.lengths), drawing)


def _assumed(options: argparse.Namespace, chosen: ChosenEngine) -> list[str]:
    engine = chosen.profile
    assumed = [f"{gpus_in_words(engine)}."]
    if engine.gpus != chosen.profile_gpus:
        assumed.append(
            f"A worker of {chosen.profile_gpus} GPUs costs {_worker_price(options, chosen):g} per hour, and "
            "others cost as much per GPU."
        )
    if options.lengths is not None:
        assumed.append(
            "The histogram says nothing about prefixes and arrivals. Lengths are drawn independently, "
            f"arrivals are a Poisson process, and a prompt shares its beginning with one that came about "
            f"{options.reuse_s:g} s before: how much memory is worth depends on that."
        )
    if options.pool != PLAIN:
        assumed.append(f"Host memory and pools work by {options.pool}; disks cost nothing here.")
    if engine.dp_ranks > 1:
        chooser = "The gateway chooses" if options.dp_aware else "Engines choose"
        assumed.append(f"{chooser} among the {engine.dp_ranks} data-parallel ranks of a worker.")
    if options.speed != 1.0:
        assumed.append(f"The workload comes {options.speed:g} times as fast as recorded.")
    if options.warmup_s:
        assumed.append(f"Requests of the first {options.warmup_s:g} s are in no figure.")
    else:
        assumed.append("Caches begin empty, and that is in the figures.")
    return assumed


def _show(console: Console, outcome: Outcome) -> None:
    console.print()
    console.print(outcome.headline, style="bold", highlight=False)
    if outcome.found:
        console.print(_table("fleets that hold it", "fleet", outcome.fleet_rows()))
        console.print(_table("one step from the plan", "change", outcome.step_rows()))
    sections = {
        "What the layers save": outcome.layers.sentences(),
        "Length buckets": outcome.buckets(),
        "How sure": outcome.certainty(),
        "Assumed": outcome.assumptions(),
    }
    for title, sentences in sections.items():
        if not sentences:
            continue
        console.print(title, style="bold")
        for sentence in sentences:
            console.print(f"· {sentence}", highlight=False, markup=False)


def _table(title: str, first: str, rows: Sequence[Sequence[str]]) -> Table:
    table = Table(
        first, *HEADINGS, box=SIMPLE_HEAD, padding=0, pad_edge=False, title=title, title_justify="left"
    )
    for column in table.columns[1:]:
        column.no_wrap = True
        column.justify = "right"
    for row in rows:
        table.add_row(*row)
    return table


def _write(outcome: Outcome, options: argparse.Namespace, command: str) -> None:
    if options.json is not None:
        options.json.write_bytes(_document(outcome, command))
    if options.report is not None:
        facts = _facts(outcome)
        options.report.write_text(plan_page(outcome, facts=facts, command=command), encoding="utf-8")
    if options.curve is not None:
        chart = draw_curve(outcome.curve, outcome.plan_tokens)
        with style():
            chart.figure.suptitle(chart.title, fontsize=8.5, fontweight="bold", wrap=True)
            chart.figure.savefig(options.curve, format="png", dpi=PNG_DPI, metadata={"Software": None})


def _facts(outcome: Outcome) -> dict[str, str]:
    workload, engine = outcome.workload, outcome.engine
    return {
        "workload": f"{workload.request_count:,} requests, {workload.prompt_tokens:,} prompt and "
        f"{workload.output_tokens:,} output tokens",
        "engine": f"{engine.name}: {outcome.curve.worker_tokens:,} tokens of KV cache",
        "GPUs": gpus_in_words(engine),
        "service level": str(outcome.slo),
        "prices": str(outcome.prices),
    }


def _document(outcome: Outcome, command: str) -> bytes:
    document = {
        "command": command,
        "plan": outcome.headline,
        "slo": asdict(outcome.slo),
        "prices": asdict(outcome.prices),
        "fleets": [_fleet(fleet, outcome.trials_of(fleet)) for fleet in outcome.found],
        "steps": [
            {"change": step.name, "load": step.load, **_fleet(step.candidate, trials)}
            for step, _, trials in outcome.steps
        ],
        "curve": asdict(outcome.curve),
        "tiers": asdict(outcome.tiers),
        "layers": {"limit": outcome.layers.limit, "as_run": outcome.layers.as_run}
        | {"told": outcome.layers.sentences()},
        "buckets": outcome.buckets(),
        "certainty": outcome.certainty(),
        "assumptions": outcome.assumptions(),
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _fleet(candidate: Candidate, trials: Sequence[Trial]) -> dict[str, object]:
    return {
        "policy": candidate.family.contender.policy,
        "policy_options": dict(candidate.family.contender.options),
        "workers": candidate.workers,
        "bucket_workers": candidate.bucket_workers,
        "decode_workers": candidate.decode_workers,
        "host_gib": candidate.family.host_gib,
        "pool_gib": candidate.family.pool_gib,
        "seeds": [dict(trial.figures) for trial in trials],
    }


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="cacheway plan",
        description="Find the cheapest fleet that holds a service level on a workload, by simulation.",
    )
    add_workload(parser)
    _add_lengths(parser.add_argument_group("workload from a histogram of lengths"))
    _add_service_level(parser.add_argument_group("service level"))
    _add_fleet(parser.add_argument_group("fleet"))
    _add_run(parser.add_argument_group("run"))
    return parser


def _add_lengths(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--lengths", type=Path, metavar="FILE", help="CSV: prompt_tokens,count and maybe output_tokens"
    )
    _flag(
        group, "hit-ratio", share, None, "share of prompt tokens that an infinite cache would reuse, 0 to 1"
    )
    _flag(group, "rate", positive, None, "requests per second")
    _flag(group, "output-tokens", count, DRAWN_OUTPUT_TOKENS, "answers, where the histogram says nothing")
    _flag(group, "reuse-s", positive, REUSE_S, "mean age of what a prompt shares, seconds")


def _add_service_level(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--ttft-p90-s", type=positive, required=True, metavar="S", help="90 %% get their first token within S"
    )
    _flag(
        group,
        "tpot-p90-s",
        positive,
        None,
        "90 %% get their tokens at this pace or faster, seconds per token",
    )
    _flag(group, "completed-share", not_negative, 1.0, "share of the requests that must be completed")


def _add_fleet(group: argparse._ArgumentGroup) -> None:
    add_engine(group)
    _flag(
        group,
        "worker-price",
        not_negative,
        None,
        "price per hour of a worker with the profile's GPUs, in any currency "
        f"[default: the engine file's, else {PRICES.worker:g}]",
    )
    for tier, name, price in (
        ("host", "host memory", PRICES.host_gib),
        ("pool", "the shared pool", PRICES.pool_gib),
    ):
        _flag(
            group,
            f"{tier}-gib-price",
            not_negative,
            None,
            f"price of a GiB of {name} per hour [default: the engine file's, else {price:g}]",
        )
    group.add_argument(
        "--host-gib",
        type=sizes,
        default="0,1024",
        metavar="A,B,...",
        help="host memory for KV of a worker to consider, GiB (L2) [default 0,1024]",
    )
    group.add_argument(
        "--pool-gib",
        type=sizes,
        default="0,8192",
        metavar="A,B,...",
        help="shared pools to consider, GiB (L3) [default 0,8192]",
    )
    add_pool(group)
    group.add_argument(
        "--model",
        type=_model,
        metavar="FILE",
        help="config.json of a model, to tell what its layers save [default: that of the engine]",
    )
    _flag(group, "workers-max", count, 64, "consider no more workers")
    group.add_argument(
        "--split",
        choices=["no", "yes", "try"],
        default="try",
        help="prefill and decode on workers of their own [default try: whichever is cheaper]",
    )
    group.add_argument(
        "--buckets",
        action="store_true",
        help="try the best fleet divided by the length of requests, too (64K, 256K and 1M tokens of prompt "
        "plus expected output), and keep that if it costs less or needs fewer workers",
    )
    group.add_argument(
        "--policy",
        type=contenders,
        default=DEFAULT_POLICIES,
        metavar="A,B,...",
        help=f"policies to consider [default {DEFAULT_POLICIES}]",
    )
    _flag(group, "replicas", count, 1, "replicas of the gateway")
    add_dp_aware(group)


def _model(text: str) -> DualPools:
    path = Path(text)
    try:
        return DualPools(path.parent.name or path.stem, read_shape(path))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _add_run(group: argparse._ArgumentGroup) -> None:
    _flag(group, "speed", positive, 1.0, "times the load of the trace")
    _flag(group, "warmup-s", not_negative, 0.0, "seconds whose requests are in no figure")
    _flag(group, "seeds", count, 3, "seeds that must agree on the plan")
    add_jobs(group)
    group.add_argument("--json", type=new_file, metavar="FILE", help="write the plan as JSON")
    group.add_argument("--report", type=new_file, metavar="FILE", help="write the plan as an HTML page")
    group.add_argument("--curve", type=new_file, metavar="FILE", help="write hit rate against memory as PNG")


def _flag(
    group: argparse._ArgumentGroup, name: str, kind: Callable[[str], object], default: object, text: str
) -> None:
    """Add a flag whose help ends with its default, if it has one."""
    shown = f"{default:g}" if isinstance(default, float) else default
    suffix = "" if default is None else f" [default {shown}]"
    group.add_argument(f"--{name}", type=kind, default=default, metavar="N", help=text + suffix)
