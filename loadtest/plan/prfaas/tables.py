"""The study's figures as tables, for the terminal and as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.plan.prfaas.case_study import GBPS
from loadtest.plan.prfaas.fleets import CONTENDERS
from loadtest.plan.prfaas.study import STORM_LOAD, Study
from loadtest.plan.prfaas.sustained import TTFT_P90_S_MAX
from loadtest.plan.prfaas.trials import Figures
from loadtest.study.tables import table

HEADINGS = ("mean", "P50", "P90", "P99", "queue", "remote", "egress", "1 s max", "unanswered")


@dataclass(frozen=True, slots=True)
class Table:
    """A titled table of cells as text."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """For a page."""
        return f"**{self.title}**\n\n{table(self.headings, self.rows)}"


def study_tables(study: Study) -> list[Table]:
    """All tables that a study has."""
    tables = [_rates(study, arrivals) for arrivals in study.trials]
    if study.curve:
        tables.append(_curve(study))
    if study.storm:
        tables.append(_storm(study))
    if study.agents:
        tables.append(_agents(study))
    return tables


def _rates(study: Study, arrivals: str) -> Table:
    base = {name: study.mean_best(arrivals, name) for name in CONTENDERS}
    rows = [
        [
            name,
            f"{base[name]:.2f}",
            " ".join(f"{rate:.2f}" for rate in study.best(arrivals, name)),
            f"{base[name] / base['homogeneous']:.2f}",
            f"{base[name] / base['naive']:.2f}",
        ]
        for name in CONTENDERS
    ]
    return Table(
        f"Highest rate with P90 of TTFT within {TTFT_P90_S_MAX:g} s, requests/s, {arrivals}",
        ("fleet", "mean", "by seed", "to homogeneous", "to naive"),
        rows,
    )


def _curve(study: Study) -> Table:
    trials = sorted(study.curve, key=lambda trial: trial.rate_per_s)
    rows = [[f"{one.contender} at {one.rate_per_s:g}/s", *cells(one.figures)] for one in trials]
    return Table("Time to first token, Poisson", ("fleet", *HEADINGS), rows)


def _storm(study: Study) -> Table:
    rows = [[name, *cells(Figures.of(result))] for name, result in study.storm.items()]
    return Table(f"A bad link at {STORM_LOAD:.0%} of the highest rate", ("fleet", *HEADINGS), rows)


def _agents(study: Study) -> Table:
    rows = []
    for (name, users), result in study.agents.items():
        figures = Figures.of(result)
        hit_ratio = result.summary()["hit_ratio"]
        assert isinstance(hit_ratio, float)
        rows.append(
            [f"{name}, {users} users", f"{figures.completed_per_s:.2f}", f"{hit_ratio:.1%}", *cells(figures)]
        )
    return Table("Coding agents", ("fleet", "requests/s", "reused", *HEADINGS), rows)


def cells(figures: Figures) -> list[str]:
    """Figures in the order of `HEADINGS`: seconds, shares, Gbit/s and requests."""
    times_s = (
        figures.ttft_mean_s,
        figures.ttft_p50_s,
        figures.ttft_p90_s,
        figures.ttft_p99_s,
        figures.wait_mean_s,
    )
    egress = (figures.egress_mean_bytes_per_s, figures.egress_max_bytes_per_s)
    return [
        *(f"{value:.2f}" for value in times_s),
        f"{figures.remote_share:.0%}",
        *(f"{value / GBPS:.1f}" for value in egress),
        str(figures.rejected + figures.lost),
    ]
