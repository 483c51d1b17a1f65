"""``python -m loadtest.plan.prfaas --simulate``: the case study's fleets with queues, in virtual time.

It shows its progress, prints tables, and with ``--out`` writes them with all figures and the charts.
"""

import argparse
from pathlib import Path

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

from loadtest.plan.prfaas.matrix import FLEETS, cases, matrix_table, run_matrix
from loadtest.plan.prfaas.pictures import draw_study
from loadtest.plan.prfaas.study import FULL, QUICK, Study, agents_study, lognormal_study
from loadtest.plan.prfaas.study import Progress as Told
from loadtest.plan.prfaas.tables import Table, study_tables
from loadtest.plan.prfaas.trials import Figures
from loadtest.simulator.arguments import add_jobs, count

SEEDS = 3


def add_simulate(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a simulation."""
    group = parser.add_argument_group("with --simulate")
    group.add_argument(
        "--traffic",
        choices=["lognormal", "agentic", "all", "matrix"],
        default="lognormal",
        help="the paper's independent prompts, sessions of coding agents, who reuse what they sent, both, or "
        "a matrix of both with bursts, link drops and scarce links, which says whether ours is ever worse; "
        "with --out a matrix goes on where it was cut off [default lognormal]",
    )
    group.add_argument(
        "--seeds", type=count, default=SEEDS, metavar="N", help=f"seeds to average over [default {SEEDS}]"
    )
    group.add_argument("--quick", action="store_true", help="a tenth of the requests: minutes become seconds")
    group.add_argument("--out", type=Path, metavar="DIR", help="write tables, figures and charts there")
    add_jobs(group)


def simulate_study(console: Console, options: argparse.Namespace) -> Study:
    """Simulate, print, and write the requested files."""
    size = QUICK if options.quick else FULL
    seeds = range(1, options.seeds + 1)
    study = Study(size, list(seeds))
    tables: list[Table] = []
    with _Shown(console) as progress:
        if options.traffic in ("lognormal", "all"):
            lognormal_study(study, options.jobs, progress)
        if options.traffic in ("agentic", "all"):
            agents_study(study, options.jobs, progress)
        if options.traffic == "matrix":
            kept = None
            if options.out is not None:
                options.out.mkdir(parents=True, exist_ok=True)
                kept = options.out / "matrix.jsonl"
            asked = cases(size.requests // 2, size.users[0])
            progress.begins("matrix", len(asked) * len(study.seeds) * len(FLEETS))
            found = run_matrix(asked, study.seeds, size.warmup_s, options.jobs, kept, progress.told)
            progress.ended("matrix")
            tables.append(matrix_table(found))
    if options.traffic != "matrix":
        tables = study_tables(study)
    for table in tables:
        console.print(_rich(table))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        page = "matrix.md" if options.traffic == "matrix" else "tables.md"
        text = "\n".join(table.markdown() for table in tables)
        (options.out / page).write_text(text, encoding="utf-8")
        if options.traffic != "matrix":
            (options.out / "figures.json").write_bytes(_document(study))
            for path in draw_study(study, options.out):
                console.print(f"wrote {path}", highlight=False)
    return study


class _Shown(Told):
    """Bars on a terminal, and a line for each part elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (
            TextColumn("{task.description:<32}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._bars = Progress(*columns, console=console)
        self._bar = self._bars.add_task("", total=0)
        self._done = 0

    def __enter__(self) -> "_Shown":
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def begins(self, what: str, simulations: int) -> None:
        self._done = 0
        self._bars.reset(self._bar, total=simulations, description=what)

    def told(self, number: int, done: int, total: int) -> None:
        if done == total:
            self._done += 1
            self._bars.update(self._bar, completed=self._done)

    def ended(self, what: str) -> None:
        if not self._console.is_terminal:
            self._console.print(f"{what}: {self._done} simulations", highlight=False)


def _rich(table: Table) -> RichTable:
    shown = RichTable(*table.headings, box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False, title=table.title)
    shown.title_justify = "left"
    for column in shown.columns:
        column.no_wrap = True
    for column in shown.columns[1:]:
        column.justify = "right"
    for row in table.rows:
        shown.add_row(*row)
    return shown


def _document(study: Study) -> bytes:
    document = {
        "seeds": list(study.seeds),
        "requests": study.size.requests,
        "highest_rates_per_s": {
            arrivals: {name: study.best(arrivals, name) for name in sorted({one.contender for one in trials})}
            for arrivals, trials in study.trials.items()
        },
        "trials": [
            {
                "arrivals": arrivals,
                "fleet": one.contender,
                "rate_per_s": one.rate_per_s,
                "seed": one.seed,
                **one.figures.document(),
            }
            for arrivals, trials in (*study.trials.items(), ("Poisson", study.curve))
            for one in trials
        ],
        "bad_link": {name: Figures.of(result).document() for name, result in study.storm.items()},
        "agents": [
            {"fleet": name, "users": users, **Figures.of(result).document()}
            for (name, users), result in study.agents.items()
        ],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
