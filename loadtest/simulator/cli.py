"""``cacheway simulate``: policies on recorded traffic, without a GPU and in seconds.

    trace ──> workload ──┬─> simulation under policy A ──┐
                         ├─> simulation under policy B ──┼──> table, JSON, HTML report
                         └─> ...  (in parallel)          ┘

The workload is read once and is the same for every policy. The same command gives the same figures.
"""

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import msgspec
from rich.console import Console

from loadtest.command_line import CommandParser
from loadtest.engine.profiles import PROFILES, EngineProfile
from loadtest.simulator.arguments import (
    DEFAULT_ENGINE,
    add_dp_aware,
    add_engine,
    add_jobs,
    add_pool,
    add_queue,
    add_workload,
    bucket_workers,
    contenders,
    count,
    count_or_none,
    engine_of,
    new_file,
    not_negative,
    positive,
    queue_rules,
    read_workload,
    share,
)
from loadtest.simulator.bars import Bars
from loadtest.simulator.memory import Memory, can_hold_more, device_tokens
from loadtest.simulator.offered import Offered, offered_load
from loadtest.simulator.page import report_page
from loadtest.simulator.parallel import Cell, SimulationFailed, simulate_all
from loadtest.simulator.runs import Run
from loadtest.simulator.setting_words import settings_in_words
from loadtest.simulator.simulation import SimulationConfig
from loadtest.simulator.table import comparison_table
from loadtest.simulator.tier_rules import KEYS, PLAIN, PUBLISHED
from loadtest.simulator.words import percent
from loadtest.simulator.workload import Workload
from loadtest.traces import TraceError
from policies import DECODE_POLICIES, POLICIES

DEFAULT_POLICIES = "expected_cost,cache_aware,least_load,round_robin"

NOTES = (
    "Times are modelled, decisions are not: policies and prefix tree are those of the gateway.",
    "Hit rates count tokens of completed requests. Bold is best.",
)


_COPIED = (
    "workers",
    "bucket_workers",
    "decode_workers",
    "decode_policy",
    "replicas",
    "speed",
    "utilisation",
    "seed",
    "block_tokens",
    "expected_output_tokens",
    "dp_aware",
    "warmup_s",
)
"""Arguments that are called as in `SimulationConfig`."""

_DEFAULT = SimulationConfig(engine=PROFILES[DEFAULT_ENGINE])


def main(argv: list[str]) -> int:
    """Compare policies on a workload.

    Return 0, 1 if the trace cannot be read or nothing can be written, 2 for a wrong command line, 130 after
    Ctrl-C.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        chosen = engine_of(options)
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        return 130
    engine = chosen.profile
    if chosen.given is not None:
        options.host_tokens = options.host_tokens or chosen.given.host.tokens
        options.pool_tokens = options.pool_tokens or chosen.given.pool.tokens
    below = options.host_tokens or options.pool_tokens
    if below and not can_hold_more(engine):
        parser.error(
            f"host memory and pools are not modelled for {engine.name} by {engine.rules.match_rule}'s rules"
        )
    if options.pool != PLAIN and not below:
        parser.error("--pool says how they work: give --host-tokens or --pool-tokens, too")
    divided = sum(workers for _, workers in options.bucket_workers)
    if options.queue_k is None and (options.ttft_slo_s or options.ttft_slo_s_per_1k_tokens):
        parser.error("requests are rejected early only where they wait: give --queue-k")
    if options.bucket_workers and divided != options.workers:
        parser.error(f"--buckets has {divided} workers and --workers {options.workers}: they must be as many")
    console = Console()
    try:
        workload = read_workload(options)
        runs = _simulated(console, workload, _configs(options, engine), options)
        offered = offered_load(runs, workload)
        _show(console, runs, workload, offered)
        _write(runs, workload, offered, options, shlex.join(["cacheway", "simulate", *argv]))
    except (TraceError, SimulationFailed, OSError) as error:
        print(f"cacheway simulate: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _configs(options: argparse.Namespace, engine: EngineProfile) -> list[SimulationConfig]:
    memory = Memory(options.host_tokens, options.pool_tokens, options.pool)
    common = SimulationConfig(
        engine=engine,
        host=memory.host(engine),
        l3=memory.pool(),
        log_delay_s=options.log_delay_ms / 1000.0,
        queue=queue_rules(options),
        **{name: getattr(options, name) for name in _COPIED},
    )
    return [
        replace(common, policy=contender.policy, policy_options=contender.options)
        for contender in options.policy
    ]


def _simulated(
    console: Console, workload: Workload, configs: Sequence[SimulationConfig], options: argparse.Namespace
) -> list[Run]:
    labels = [contender.label for contender in options.policy]
    cells = [Cell(workload, config) for config in configs]
    runs: dict[int, Run] = {}
    with Bars(console, labels) as bars:
        for number, result in simulate_all(cells, min(options.jobs, len(cells)), bars.told):
            runs[number] = Run.of(labels[number], result)
    return [runs[number] for number in range(len(labels))]


def _show(console: Console, runs: Sequence[Run], workload: Workload, offered: Offered) -> None:
    bounds = runs[0].result.bounds
    caption = f"bounds of the hit rate: infinite cache {percent(bounds.infinite_hit_ratio)}"
    if bounds.pooled_tokens:
        caption += f", one LRU cache of all workers' size {percent(bounds.pooled_lru_hit_ratio)}"
    floor = runs[0].figures["floor_ttft_mean_s"]
    if floor is not None:
        caption += f"; TTFT with infinite caches and no queue: mean {floor:.3g} s"
    console.print(comparison_table(runs, title=_title(runs, workload), caption=caption))
    for sentence in offered.sentences():
        console.print(sentence, style="bold red", highlight=False, markup=False)


def _title(runs: Sequence[Run], workload: Workload) -> str:
    config = runs[0].result.config
    decode = f" and {config.decode_workers} for decode" if config.decode_workers else ""
    fleet = f"{config.workers} × {config.engine.name}{decode}"
    return f"{workload.name}: {workload.request_count:,} requests, {fleet}"


def _write(
    runs: Sequence[Run], workload: Workload, offered: Offered, options: argparse.Namespace, command: str
) -> None:
    config = runs[0].result.config
    if options.json is not None:
        document = {
            "command": command,
            "workload": {"name": workload.name, "requests": workload.request_count, "notes": workload.notes},
            "config": {
                name: value for name, value in _plain(config).items() if not name.startswith("policy")
            },
            "offered_load": {
                "prefill": offered.prefill,
                "decode": offered.decode,
                "prefill_done": dict(offered.by_policy),
                "told": offered.sentences(),
            },
            "runs": [
                {"label": run.label, "policy_options": dict(run.result.config.policy_options), **run.figures}
                for run in runs
            ],
        }
        text = msgspec.json.format(msgspec.json.encode(document), indent=2)
        options.json.write_bytes(text + b"\n")
    if options.report is not None:
        page = report_page(
            runs,
            title=_title(runs, workload),
            facts=settings_in_words(config, workload),
            notes=NOTES,
            command=command,
            warnings=offered.sentences(),
        )
        options.report.write_text(page, encoding="utf-8")


def _plain(config: SimulationConfig) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(config, enc_hook=dict)
    return plain


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="cacheway simulate",
        description="Compare placement policies on recorded traffic: the gateway's decisions, modelled "
        "engines, virtual time.",
    )
    parser.add_argument("--list", action=_List, nargs=0, help="show engines, pools and policies, and end")
    add_workload(parser)
    _add_fleet(parser.add_argument_group("fleet"))
    _add_gateway(parser.add_argument_group("gateway"))
    add_queue(parser)
    _add_run(parser.add_argument_group("run"))
    return parser


def _add_fleet(group: argparse._ArgumentGroup) -> None:
    add_engine(group)
    _flag(group, "workers", count, "workers that take requests")
    group.add_argument(
        "--buckets",
        type=bucket_workers,
        default=(),
        dest="bucket_workers",
        metavar="TOKENS=N,...",
        help="divide them by the length of requests, prompt plus expected output, as in 64K=5,256K=2,1M=1; "
        "longer requests are rejected [default: all take any length]",
    )
    group.add_argument(
        "--host-tokens",
        type=count_or_none,
        default=0,
        metavar="N",
        help="tokens of KV in the host memory of a worker; 0: none [default 0]",
    )
    group.add_argument(
        "--pool-tokens",
        type=count_or_none,
        default=0,
        metavar="N",
        help="tokens of KV in a pool that all workers share (L3), read into host memory; 0: none [default 0]",
    )
    add_pool(group)
    _flag(group, "decode_workers", count_or_none, "workers that only decode; 0: all do both")


def _add_gateway(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--policy",
        type=contenders,
        default=DEFAULT_POLICIES,
        metavar="A,B,...",
        help="policies to compare, with options as in affinity:match_weight=2, or all "
        f"[default {DEFAULT_POLICIES}]",
    )
    group.add_argument(
        "--decode-policy",
        choices=DECODE_POLICIES,
        default=_DEFAULT.decode_policy,
        help=f"chooses the worker that decodes [default {_DEFAULT.decode_policy}]",
        metavar="NAME",
    )
    _flag(group, "replicas", count, "replicas of the gateway")
    group.add_argument(
        "--log-delay-ms",
        type=not_negative,
        default=1000.0 * _DEFAULT.log_delay_s,
        metavar="MS",
        help=f"until replicas hear of each other, milliseconds [default {1000.0 * _DEFAULT.log_delay_s:g}]",
    )
    _flag(group, "block_tokens", count, "tokens of the gateway's blocks")
    _flag(group, "expected_output_tokens", count, "answer length that the gateway assumes")
    add_dp_aware(group)


def _add_run(group: argparse._ArgumentGroup) -> None:
    _flag(group, "speed", positive, "times the load of the trace")
    group.add_argument(
        "--utilisation",
        type=share,
        metavar="U",
        help="slow the engines down, or speed them up, until the least possible work keeps the fleet so "
        "busy, 0 to 1 [default: as fast as they are]",
    )
    _flag(group, "warmup_s", not_negative, "seconds whose requests are in no figure")
    add_jobs(group)
    group.add_argument("--json", type=new_file, metavar="FILE", help="write the figures as JSON")
    group.add_argument("--report", type=new_file, metavar="FILE", help="write a page with charts, as HTML")


def _flag(group: argparse._ArgumentGroup, name: str, kind: Callable[[str], Any], text: str) -> None:
    """Add a flag with the name and the default of a field of `SimulationConfig`."""
    value = getattr(_DEFAULT, name)
    shown = f"{value:g}" if isinstance(value, float) else value
    option = f"--{name.replace('_', '-')}"
    group.add_argument(option, type=kind, default=value, metavar="N", help=f"{text} [default {shown}]")


class _List(argparse.Action):
    """``--list``: ends the program as ``--help`` does, with or without other arguments."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print("Engines")
        for name, profile in PROFILES.items():
            default = " (default)" * (name == DEFAULT_ENGINE)
            print(f"  {name}: {device_tokens(profile):,} tokens of KV cache{default}")
        print("Pools")
        for name, rules in PUBLISHED.items():
            print(f"  {name}{' (default)' if not rules else ''}")
        print(f"  their keys: {', '.join(KEYS)}")
        print("Policies")
        for name, rule in POLICIES.items():
            options = () if rule.options is None else fields(rule.options)
            defaults = ", ".join(f"{option.name}={option.default:g}" for option in options)
            print(f"  {name}{': ' if defaults else ''}{defaults}")
        parser.exit()
