"""The plan as one HTML file, in the style of the simulator's report."""

from collections.abc import Mapping, Sequence
from html import escape

from loadtest.plan.charts import draw_curve, draw_lifetimes, draw_tiers, draw_trials
from loadtest.plan.outcome import HEADINGS, Outcome
from loadtest.simulator.page import chart_figure, described, document


def plan_page(outcome: Outcome, *, facts: Mapping[str, str], command: str) -> str:
    """Make the HTML page of a plan; ``facts`` are named, ``command`` gives the same plan."""
    charts = (
        draw_trials(outcome.tried, outcome.slo, outcome.plan),
        draw_curve(outcome.curve, outcome.plan_tokens),
        draw_lifetimes(outcome.tiers),
        draw_tiers(outcome.tiers),
    )
    parts = [f'<div class="charts">\n{"".join(chart_figure(chart) for chart in charts)}</div>']
    if outcome.found:
        parts += [_table("Fleets that hold it", "fleet", outcome.fleet_rows())]
        parts += [_table("One step from the plan", "change", outcome.step_rows())]
    if outcome.divisions is not None:
        parts.append(_list("Length buckets", outcome.buckets()))
    parts += [
        _list("What the layers save", outcome.layers.sentences()),
        _list("How sure that is", outcome.certainty()),
        _list("What was assumed", outcome.assumptions()),
    ]
    parts.append(described("What was planned for", facts, command))
    return document(outcome.headline, "\n".join(parts))


def _table(title: str, first: str, rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in (first, *HEADINGS))
    body = "".join(
        f"<tr><th>{escape(row[0])}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in row[1:])}</tr>\n"
        for row in rows
    )
    return (
        f'<h2>{escape(title)}</h2>\n<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}</tbody></table></div>"
    )


def _list(title: str, sentences: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(sentence)}</li>\n" for sentence in sentences)
    return f"<h2>{escape(title)}</h2>\n<ul>\n{items}</ul>"
