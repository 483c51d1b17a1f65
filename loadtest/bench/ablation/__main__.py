"""Compare arms on real engines, and write the results.

    python -m loadtest.bench.ablation                             two kinds of model, about 40 minutes
    python -m loadtest.bench.ablation --kinds qwen3 --rounds 1    some of it
    python -m loadtest.bench.ablation --running qwen3=http://127.0.0.1:18300,http://127.0.0.1:18301
    python -m loadtest.bench.ablation --report-only               tables and chart of existing results

Two engines serve each kind of model (`python -m loadtest.vllm install` once), and all arms run, round by
round. The arms of a round get the same bytes, empty caches and a new gateway; each round begins with another
arm, against drifting noise. Engines, gateway and client share the machine: compare arms, not machines. A kind
that is measured again replaces its old results.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import httpx
import msgspec
import uvloop
from rich.console import Console
from tokenizers import Tokenizer

from loadtest.bench.ablation import report
from loadtest.bench.ablation.arms import ARMS
from loadtest.bench.ablation.chart import draw
from loadtest.bench.ablation.conversations import Shape, agents, tokens_per_word
from loadtest.bench.ablation.engines import SETTINGS, two_engines
from loadtest.bench.ablation.results import Results, read, write
from loadtest.bench.ablation.stage import Stage, run_arm
from loadtest.bench.peers.machine import Machine
from loadtest.processes import ChildFailed
from loadtest.vllm import MODEL_NAME, EngineFailed, EnginesHome, VllmEngine
from loadtest.vllm.models import tiny_model

DOCUMENT = Path(__file__).parents[3] / "docs" / "policy-study.md"
OUT = DOCUMENT.with_suffix("")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments say; the status is 1 if something could not be measured or written."""
    options = _parser().parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 140)
    path = options.out / "engines.json"
    try:
        if not options.report_only:
            uvloop.run(_measure(options, path, console))
        results = read(path)
        for kind in dict.fromkeys(run.model for run in results.runs):
            console.print(report.shown(kind, results.runs))
        if results.runs:
            draw(results.runs, options.out / "engines.png")
        if options.out == OUT:
            DOCUMENT.write_text(report.fill(DOCUMENT.read_text(), results.runs))
    except KeyboardInterrupt:
        print(f"interrupted; --report-only shows what was measured so far, from {path}")
        return 130
    except (EngineFailed, ChildFailed, httpx.HTTPError, OSError, msgspec.DecodeError) as error:
        print(str(error) or type(error).__name__, file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.ablation", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    more, arms = parser.add_argument, [arm.key for arm in ARMS]
    more("--kinds", nargs="+", choices=list(SETTINGS), default=list(SETTINGS), metavar="KIND", help="[all]")
    more("--arms", nargs="+", choices=arms, default=arms, metavar="ARM", help=f"of {' '.join(arms)} [all]")
    more("--rounds", type=int, default=3, help="[%(default)s]")
    more("--first-round", type=int, default=0, help="number of the first, which is its seed [%(default)s]")
    more("--agents", type=int, default=Shape().agents, help="at work at the same time [%(default)s]")
    more("--conversations", type=int, default=Shape().conversations, help="of each [%(default)s]")
    more("--think-s", type=float, default=Shape().think_s, help="median pause of an agent [%(default)s]")
    more(
        "--running",
        nargs="+",
        type=_running,
        default=[],
        metavar="KIND=URL,URL",
        help="engines that run already, in place of new ones",
    )
    more("--out", type=Path, default=OUT, help="folder [docs/policy-study]")
    more("--report-only", action="store_true", help="measure nothing")
    more("flags", nargs="*", default=[], help="flags of `cacheway serve` for all arms, behind --")
    return parser


def _running(text: str) -> tuple[str, list[str]]:
    kind, _, urls = text.partition("=")
    if kind not in SETTINGS or not urls:
        raise argparse.ArgumentTypeError(f"{text!r} is not KIND=URL,URL with a kind of {' '.join(SETTINGS)}")
    return kind, urls.split(",")


async def _measure(options: argparse.Namespace, path: Path, console: Console) -> None:
    shape = replace(
        Shape(), agents=options.agents, conversations=options.conversations, think_s=options.think_s
    )
    arms = [arm for arm in ARMS if arm.key in options.arms]
    running, home = dict(options.running), EnginesHome.usual()
    options.out.mkdir(parents=True, exist_ok=True)
    for kind in options.kinds:
        tokenizer = await asyncio.to_thread(tiny_model, home.models, kind)
        per_word = tokens_per_word(Tokenizer.from_file(str(tokenizer / "tokenizer.json")))
        runs = [run for run in read(path).runs if run.model != kind]
        machine = Machine.here()
        versions = {
            **home.installed(),
            "cpu": machine.cpu,
            "cpus": str(machine.cpus),
            "kernel": machine.kernel,
        }
        async with AsyncExitStack() as stack:
            if kind in running:
                engines = [await VllmEngine.at(url) for url in running[kind]]
            else:
                engines = await stack.enter_async_context(two_engines(kind))
            stage = Stage(kind, engines, tokenizer, options.flags)
            for number in range(options.first_round, options.first_round + options.rounds):
                scripts = agents(shape, number, MODEL_NAME, per_word)
                turn = number % len(arms)
                for arm in (*arms[turn:], *arms[:turn]):
                    run = await run_arm(stage, arm, scripts, number, console)
                    runs.append(run)
                    write(path, Results(versions, runs))
                    console.print(f"{kind}, round {number}, {arm.title}: {report.line(run)}", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
