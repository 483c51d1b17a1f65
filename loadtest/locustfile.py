"""Load for a gateway, or for any OpenAI-compatible server, with locust.

    locust -f loadtest/locustfile.py --host http://127.0.0.1:30000 --preset smoke --headless
    locust -f loadtest/locustfile.py --host http://127.0.0.1:30000             web UI on port 8089
    locust ... --preset overload --users 1000 --run-time 10m                             scaled and stretched
    locust ... AgentUser LongContextUser --users 40 --run-time 5m                        these, at one level
    locust ... --trace traces/toolagent.jsonl --window 0:600 --speed 2                   a recorded trace
    locust ... --preset steady --processes 4                                             on several cores

See `loadtest.locusts.presets` and `loadtest.locusts.users`. A run with a preset writes locust's HTML report,
`cacheway-PRESET.html` unless `--html` names another, prints a summary, and ends with status 1 if it broke a
promise of the preset. On several machines: `--master --expect-workers N` here, `--worker --master-host`
there.
"""

import os
from pathlib import Path
from typing import Any

import requests
from locust import LoadTestShape, events
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.runners import WorkerRunner
from rich.console import Console

from loadtest.locusts.presets import PRESETS, users_at
from loadtest.locusts.streaming import HEADERS, StreamingUser
from loadtest.locusts.summary import Summary
from loadtest.locusts.users import AgentUser, BurstUser, ChatUser, LongContextUser, SessionUser, TraceUser
from loadtest.traces import PromptText, TraceError, cut_window, read_trace, spread_arrivals
from loadtest.workload import MODEL, TracedRequest

__all__ = ["AgentUser", "BurstUser", "ChatUser", "LongContextUser", "PresetShape", "TraceUser"]

SPAWN_S = 2.0
"""In how many seconds the users of a step are there."""

FIRST_USER_S_MAX = 60.0
"""Longest wait of a preset for its first user, which worker processes on a busy machine start late."""

OUTPUT_TOKENS_MAX = 4096


class PresetShape(LoadTestShape):
    """Number of users over time, by the preset; its time begins with the first user."""

    use_common_options = True
    _begun = False

    def reset_time(self) -> None:
        """Wait for a first user again."""
        self._begun = False
        super().reset_time()  # type: ignore[no-untyped-call]

    def tick(self) -> tuple[int, float] | None:
        """Users now, and how fast they come and go; None at the end."""
        assert self.runner is not None
        options = self.runner.environment.parsed_options
        assert options is not None
        preset = PRESETS[options.preset]
        # Locust's default is one user.
        users = options.num_users if (options.num_users or 1) > 1 else preset.users
        elapsed_s = float(self.get_run_time())  # type: ignore[no-untyped-call]
        if not self._begun:
            begun = self.runner.user_count > 0 or elapsed_s > FIRST_USER_S_MAX
            if begun:
                self.reset_time()
            self._begun, elapsed_s = begun, 0.0
        wanted = users_at(preset, elapsed_s, users, float(options.run_time or preset.run_s))
        return None if wanted is None else (wanted, max(1.0, users / SPAWN_S))


class TraceShape(LoadTestShape):
    """One user in each process, until all of them have replayed their share."""

    abstract = True

    def tick(self) -> tuple[int, float] | None:
        """The users; None at the end."""
        assert self.runner is not None
        options = self.runner.environment.parsed_options
        assert options is not None
        processes = TraceUser.fixed_count
        over = StreamingUser.summary.finished >= processes
        if options.run_time:
            elapsed_s = self.get_run_time()  # type: ignore[no-untyped-call]
            over = over or elapsed_s >= options.run_time
        return None if over else (processes, processes)


def add_arguments(parser: LocustArgumentParser, **_: Any) -> None:
    """Add our own options to locust's."""
    parser.add_argument(
        "--preset",
        env_var="LOCUST_PRESET",
        choices=["", *PRESETS],
        default="",
        help="; ".join(f"{name}: {preset.purpose}" for name, preset in PRESETS.items()),
    )
    parser.add_argument("--trace", default="", metavar="FILE", help="replay a trace in the Mooncake format")
    parser.add_argument("--window", default="0:600", metavar="FROM:TO", help="part of it, in seconds")
    parser.add_argument("--speed", type=float, default=1.0, metavar="X", help="X times faster than recorded")
    parser.add_argument(
        "--model", default="", help="model to ask for; the first one that is served if not given"
    )
    parser.add_argument("--seed", type=int, default=1, help="same seed, same prompts")
    parser.add_argument(
        "--api-key",
        default=os.environ.get("OPENAI_API_KEY", ""),
        is_secret=True,
        help="sent as a bearer token; or OPENAI_API_KEY",
    )
    parser.add_argument(
        "--api-key-file",
        default="",
        metavar="FILE",
        help="the same, in a file; none is sent if it is not there",
    )


def prepare(environment: Environment, **_: Any) -> None:
    """Choose users and shape, and listen for counts."""
    options = environment.parsed_options
    assert options is not None
    summary = StreamingUser.summary = Summary()
    if options.trace:
        TraceUser.abstract = False
        TraceUser.fixed_count = max(1, options.expect_workers) if options.master else 1
        environment.user_classes = [TraceUser]
        environment.shape_class = TraceShape()  # type: ignore[no-untyped-call]
        environment.shape_class.runner = environment.runner
    else:
        environment.user_classes = [each for each in environment.user_classes if each is not TraceUser]
        if not options.preset:
            environment.shape_class = None
        elif not options.html_file and not options.worker:
            options.html_file = f"cacheway-{options.preset}.html"
    told: Any = environment.events
    told.report_to_master.add_listener(lambda client_id, data: summary.report(data))
    told.worker_report.add_listener(lambda client_id, data: summary.heard(client_id, data))


def begin(environment: Environment, **_: Any) -> None:
    """Find out the model, and give all users of this process their requests."""
    options = environment.parsed_options
    assert options is not None
    if options.master:
        return
    headers = dict(HEADERS)
    api_key = options.api_key or _key_in(options.api_key_file)
    if api_key:
        headers["authorization"] = f"Bearer {api_key}"
    StreamingUser.headers = headers
    StreamingUser.model = options.model or _first_model(environment.host or "", headers)
    runner = environment.runner
    process = runner.worker_index if isinstance(runner, WorkerRunner) else 0
    for users in environment.user_classes:
        if issubclass(users, SessionUser):
            users.draw(f"{options.seed}/{process}" if process else str(options.seed))
    if options.trace:
        TraceUser.requests = _trace(options)
        TraceUser.share = (process, max(1, options.expect_workers or 1))


def _key_in(file: str) -> str:
    return Path(file).read_text().strip() if file and Path(file).exists() else ""


def _first_model(host: str, headers: dict[str, str]) -> str:
    try:
        answer = requests.get(f"{host}/v1/models", headers=headers, timeout=10)
        return str(answer.json()["data"][0]["id"])
    except (requests.RequestException, ValueError, LookupError):
        return MODEL


def _trace(options: Any) -> list[TracedRequest]:
    begin_s, _, end_s = options.window.partition(":")
    try:
        rows = spread_arrivals(
            cut_window(read_trace(Path(options.trace)), float(begin_s), float(end_s)), options.seed
        )
    except (TraceError, ValueError) as error:
        raise SystemExit(f"--trace {options.trace} --window {options.window}: {error}") from error
    text = PromptText(options.seed)
    return [TracedRequest(row, options.speed, OUTPUT_TOKENS_MAX, text, StreamingUser.model) for row in rows]


def end(environment: Environment, **_: Any) -> None:
    """Print the summary, and judge a preset."""
    options, summary = environment.parsed_options, StreamingUser.summary
    assert options is not None
    if options.worker:
        return
    console = Console(width=140)
    console.print(summary.table(environment))
    if options.preset and not options.trace:
        broken = summary.broken(PRESETS[options.preset])
        for promise in broken:
            console.print(f"[red]broken:[/] {promise}", highlight=False)
        if not broken:
            console.print(f"{options.preset}: all promises kept", highlight=False)
        environment.process_exit_code = 1 if broken else 0


events.init_command_line_parser.add_listener(add_arguments)  # type: ignore[no-untyped-call]
events.init.add_listener(prepare)  # type: ignore[no-untyped-call]
events.test_start.add_listener(begin)  # type: ignore[no-untyped-call]
events.quitting.add_listener(end)  # type: ignore[no-untyped-call]
