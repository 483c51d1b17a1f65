"""``cacheway demo``: the gateway's promise, shown on one machine in 90 seconds.

    Valkey --+-- replica 1 --+
             |               +-- 4 emulated engines (one process)
             +-- replica 2 --+
                   ^
    this process: load client; turns of one session alternate between the replicas

Everything but the engines' compute time is real. Each policy gets engines with empty caches, new replicas, a
namespace of its own, and the same requests. Children write to a temporary directory; they end on success,
failure, Ctrl-C and SIGTERM.
"""

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import uvloop
from rich.console import Console

from loadtest.client import LoadClient
from loadtest.command_line import CommandParser
from loadtest.ideal import IdealCache
from loadtest.processes import Child, ChildFailed, GatewayChild
from loadtest.progress import shown
from loadtest.replay import replay
from loadtest.report import PolicyReport, Tally, report_table, summarize
from loadtest.scenario import (
    ENGINES,
    TRACE_SPEED,
    TRACE_WINDOW_S,
    Scenario,
    agent_scenario,
    engine_flags,
    trace_scenario,
)
from loadtest.traces import TraceError
from loadtest.workload import MODEL
from policies import POLICIES
from router.errors import StateError
from router.shared import EmbeddedValkey

REPLICA_PORTS = (30000, 30001)
"""Taken if they are free, so that the printed commands are the same every time."""

DEFAULT_POLICIES = ("round_robin", "expected_cost")

FLUSH_TIMEOUT_S = 10.0


def main(argv: list[str]) -> int:
    """Run the demo.

    Return 0 if every request was answered, 1 if not or if something did not come up, 2 for a wrong command
    line, 130 after Ctrl-C.
    """
    options = _parser().parse_args(argv)
    console = Console()
    try:
        if options.trace is None:
            scenario = agent_scenario(options.seed, quick=options.quick)
        else:
            scenario = trace_scenario(options.trace, options.window, options.speed, options.seed)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            reports = runner.run(_demo(console, scenario, options.policy, options.json, keep=options.keep))
    except (TraceError, ChildFailed, StateError) as error:
        print(f"cacheway demo: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    return 1 if any(report.failed for report in reports) else 0


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="cacheway demo",
        description="Compare placement policies: two gateway replicas, four emulated engines, one workload.",
    )
    parser.add_argument(
        "--policy",
        nargs="+",
        choices=sorted(POLICIES),
        default=list(DEFAULT_POLICIES),
        metavar="NAME",
        help=f"policies to compare, in this order, of {', '.join(sorted(POLICIES))} "
        f"[default {' '.join(DEFAULT_POLICIES)}]",
    )
    parser.add_argument("--seed", type=int, default=1, help="same seed, same requests [default 1]")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="replay a trace in the Mooncake format instead"
    )
    parser.add_argument(
        "--window",
        type=_window,
        default=TRACE_WINDOW_S,
        metavar="START:END",
        help=f"part of the trace, seconds [default {TRACE_WINDOW_S[0]:g}:{TRACE_WINDOW_S[1]:g}]",
    )
    parser.add_argument(
        "--speed",
        type=_speed,
        default=TRACE_SPEED,
        metavar="X",
        help=f"replay the trace, and run the engines, X times faster [default {TRACE_SPEED:g}]",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures as JSON")
    parser.add_argument("--keep", action="store_true", help="keep the last policy's fleet up until Ctrl-C")
    parser.add_argument("--quick", action="store_true", help="a few seconds of the built-in workload")
    return parser


def _window(text: str) -> tuple[float, float]:
    start, _, end = text.partition(":")
    try:
        window = float(start), float(end)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not START:END in seconds, for example 0:300") from None
    if not 0 <= window[0] < window[1]:
        raise argparse.ArgumentTypeError(f"{text!r}: the end must be after the start, and neither below 0")
    return window


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return speed


async def _demo(
    console: Console, scenario: Scenario, policies: Sequence[str], json_file: Path | None, *, keep: bool
) -> list[PolicyReport]:
    """Run all policies, show the figures and, if asked to, keep the last fleet until cancelled."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    console.print(f"{scenario.title}: {scenario.request_count} requests for each policy\n", highlight=False)
    reports: list[PolicyReport] = []
    async with _engines(scenario) as fleet:
        for policy in policies:
            async with _replicas(fleet, scenario, policy) as replica_urls:
                reports.append(await _measure(console, scenario, policy, fleet, replica_urls))
                if policy != policies[-1]:
                    continue
                _show(console, scenario, reports, replica_urls[0], keep=keep)
                if json_file is not None:
                    _write(json_file, scenario, reports)
                if keep:
                    await asyncio.Event().wait()
    return reports


@dataclass(frozen=True, slots=True)
class _Fleet:
    redis_url: str
    engine_urls: list[str]
    directory: Path
    control: httpx.AsyncClient

    async def flush(self) -> None:
        """Empty the engines' caches; an engine refuses while the last answers leave it."""
        async with asyncio.timeout(FLUSH_TIMEOUT_S):
            for url in self.engine_urls:
                while (await self.control.post(f"{url}/flush_cache")).status_code != 200:  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0.05)

    async def prefill_busy_s(self) -> float:
        """Seconds of prefill that all engines did since they started."""
        answers = [await self.control.get(f"{url}/_stats") for url in self.engine_urls]
        return sum(float(answer.json()["prefill_busy_s"]) for answer in answers)


@asynccontextmanager
async def _engines(scenario: Scenario) -> AsyncIterator[_Fleet]:
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cacheway-demo-")))
        valkey = await stack.enter_async_context(EmbeddedValkey())
        arguments = ["engine", "--port", "0", "--engines", str(ENGINES), *engine_flags(scenario.engine)]
        engines = await stack.enter_async_context(Child("engines", arguments, directory))
        ready = await engines.wait_for_line("cacheway engine ready:")
        urls = [word for word in ready.split() if word.startswith("http://")]
        control = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, timeout=FLUSH_TIMEOUT_S))
        yield _Fleet(valkey.url, urls, directory, control)


@asynccontextmanager
async def _replicas(fleet: _Fleet, scenario: Scenario, policy: str) -> AsyncIterator[list[str]]:
    """Two gateways that know nothing yet, before engines that hold nothing yet."""
    await fleet.flush()
    async with AsyncExitStack() as stack:
        flags = ["--policy", policy, "--worker-urls", *fleet.engine_urls, "--redis-url", fleet.redis_url]
        flags += ["--namespace", f"demo-{policy}", "--log-level", "warning", "--shutdown-delay-secs", "0"]
        flags += ["--worker-capacity-tokens", str(scenario.engine.cache_tokens)]
        replicas = []
        for number, port in enumerate(REPLICA_PORTS, start=1):
            child = GatewayChild(f"{policy}-{number}", flags, fleet.directory, preferred_port=port)
            replicas.append(await stack.enter_async_context(child))
        for replica in replicas:
            await replica.wait_until_ready()
        yield [replica.url for replica in replicas]


async def _measure(
    console: Console, scenario: Scenario, policy: str, fleet: _Fleet, replica_urls: list[str]
) -> PolicyReport:
    loop = asyncio.get_running_loop()
    tally = Tally()
    busy_before_s, started_s = await fleet.prefill_busy_s(), loop.time()
    progress = shown(console, policy, scenario.request_count, tally, scenario.time_scale)
    async with progress, LoadClient() as client:
        ideal = IdealCache(scenario.engine.block_tokens)
        unsent = await replay(scenario.scripts, replica_urls, client, ideal, tally.add)
    duration_s = loop.time() - started_s
    busy_s = await fleet.prefill_busy_s() - busy_before_s
    return summarize(
        policy,
        tally,
        unsent=unsent,
        duration_s=duration_s,
        prefill_utilisation=busy_s / (duration_s * len(fleet.engine_urls)),
        time_scale=scenario.time_scale,
    )


def _show(
    console: Console, scenario: Scenario, reports: Sequence[PolicyReport], url: str, *, keep: bool
) -> None:
    ideal = max(report.ideal_hit_ratio for report in reports)
    caption = f"ideal: one infinite cache seen by all requests, hit rate {100 * ideal:.1f} %"
    if scenario.time_scale != 1.0:
        caption += f"; times in the trace's own seconds: measured x {scenario.time_scale:g}"
    console.print()
    console.print(report_table(reports, title=scenario.title, caption=caption))
    for report in reports:
        if report.first_error is not None:
            console.print(f"{report.policy}: first failure: {report.first_error}", markup=False, style="red")
    heading = (
        "The fleet is up until Ctrl-C. Try it:"
        if keep
        else "Try it by hand: run `cacheway demo --keep`, then"
    )
    # Not through the console, which would wrap lines that are there to be copied.
    print(f"\n{heading}\n\n{_by_hand(url)}", flush=True)


def _by_hand(url: str) -> str:
    """A ``curl`` line and an ``openai`` snippet that work as they are."""
    body = json.dumps(
        {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16, "stream": True}
    )
    return f"""\
curl -iN {url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'

from openai import OpenAI

client = OpenAI(base_url="{url}/v1", api_key="none")
answer = client.chat.completions.create(
    model="{MODEL}", messages=[{{"role": "user", "content": "Hello"}}], max_tokens=16
)
print(answer.choices[0].message.content, answer.usage)
"""


def _write(path: Path, scenario: Scenario, reports: Sequence[PolicyReport]) -> None:
    document = {
        "scenario": scenario.title,
        "requests": scenario.request_count,
        "time_scale": scenario.time_scale,
        "policies": [report.as_json() for report in reports],
    }
    path.write_text(json.dumps(document, indent=2) + "\n")
