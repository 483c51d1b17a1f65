"""The report as one HTML file: charts, all figures, and the command that reproduces them.

The file needs no network and no script, and follows the reader's light or dark mode.
"""

from collections.abc import Mapping, Sequence
from html import escape

from loadtest.simulator.charts import draw_all
from loadtest.simulator.figures import best_of, figures_of, shown
from loadtest.simulator.runs import Run
from loadtest.simulator.svg import colour_rules, inline_svg
from loadtest.simulator.theme import FAINT, GRID, INK, PAPER, VARIABLES, Chart

_CSS = f"""
:root{{color-scheme:light dark;--chart-font:inherit;
--ink:var({VARIABLES[INK]});--faint:var({VARIABLES[FAINT]});
--line:var({VARIABLES[GRID]});--paper:var({VARIABLES[PAPER]})}}
*{{box-sizing:border-box}}
body{{margin:0 auto;padding:1.5rem max(1rem,3vw) 4rem;max-width:80rem;background:var(--paper);
color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}}
h1{{font-size:1.6rem;line-height:1.25;margin:0 0 .25rem}}
h2{{font-size:1.25rem;margin:2.5rem 0 .75rem}}
p{{margin:.3rem 0}}
.faint,figcaption{{color:var(--faint)}}
.warning{{border-left:.3rem solid #c62828;padding:.35rem .75rem;font-weight:600;margin:.75rem 0}}
.charts{{display:grid;gap:2.25rem 2.5rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,27rem),1fr));
margin-top:1.75rem;align-items:start}}
figure{{margin:0;max-width:36rem}}
figure h3{{font-size:1rem;line-height:1.35;margin:0 0 .5rem;text-wrap:balance}}
figcaption{{font-size:.85rem;margin-top:.35rem}}
svg{{display:block;width:100%;height:auto}}
svg text{{font-family:inherit}}
svg image{{image-rendering:pixelated}}
.scroll{{overflow-x:auto;border:1px solid var(--line);border-radius:6px}}
table{{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums;width:100%}}
th,td{{padding:.35rem .75rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}}
tbody tr:last-child>*{{border-bottom:0}}
th:first-child{{text-align:left;position:sticky;left:0;background:var(--paper)}}
tbody th{{font-weight:normal}}
@media (max-width:36rem){{tbody th{{white-space:normal;min-width:9.5rem}}}}
td.best{{font-weight:700}}
dl{{display:grid;grid-template-columns:auto 1fr;gap:.15rem 1.25rem;font-size:.9rem;margin:0}}
dt{{color:var(--faint)}}
dd{{margin:0;overflow-wrap:anywhere}}
pre{{border:1px solid var(--line);border-radius:6px;padding:.75rem 1rem;white-space:pre-wrap;
overflow-wrap:anywhere;font-size:.85rem}}
"""


def report_page(
    runs: Sequence[Run],
    *,
    title: str,
    facts: Mapping[str, str],
    notes: Sequence[str],
    command: str,
    warnings: Sequence[str] = (),
) -> str:
    """Make the HTML page of a comparison, runs in the order of the command line.

    ``facts`` say what was simulated, by name; ``notes`` help to judge the figures; ``command`` reproduces
    them; ``warnings`` come first, before any figure.
    """
    lead = f"<p class=faint>{escape(runs[0].result.workload_name)}</p>" + warned(warnings)
    charts = f'<div class="charts">\n{"".join(chart_figure(chart) for chart in draw_all(runs))}</div>'
    figures = f'<h2>All figures</h2>\n<div class="scroll">\n{_table(runs)}</div>'
    remarks = "".join(f"<p class=faint>{escape(note)}</p>\n" for note in notes)
    made = described("What was simulated", facts, command)
    return document(title, "\n".join((lead, charts, figures, remarks, made)))


def warned(sentences: Sequence[str]) -> str:
    """Sentences that a reader must not miss, as HTML."""
    return "".join(f"<p class=warning>{escape(sentence)}</p>" for sentence in sentences)


def document(title: str, body: str) -> str:
    """Put an HTML body into a page with our style; ``title`` is text."""
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>
{colour_rules()}{_CSS}</style>
<h1>{escape(title)}</h1>
{body}
</html>
"""


def described(title: str, facts: Mapping[str, str], command: str) -> str:
    """Subject of the figures and the command that gives them, as HTML."""
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(fact)}</dd>\n" for name, fact in facts.items())
    return f"<h2>{escape(title)}</h2>\n<dl>\n{rows}</dl>\n<pre>{escape(command)}</pre>"


def chart_figure(chart: Chart) -> str:
    """A chart with its title and caption, as HTML."""
    return (
        f"<figure>\n<h3>{escape(chart.title)}</h3>\n{inline_svg(chart)}\n"
        f"<figcaption>{escape(chart.caption)}</figcaption>\n</figure>\n"
    )


def _table(runs: Sequence[Run]) -> str:
    head = "".join(f"<th>{escape(run.label)}</th>" for run in runs)
    rows = []
    for figure in figures_of(runs):
        best = best_of(figure, runs)
        cells = "".join(
            f"<td{' class=best' if run.label in best else ''}>{escape(shown(figure, run))}</td>"
            for run in runs
        )
        rows.append(f"<tr><th>{escape(figure.name)}</th>{cells}</tr>\n")
    return f"<table>\n<thead><tr><th></th>{head}</tr></thead>\n<tbody>\n{''.join(rows)}</tbody>\n</table>\n"
