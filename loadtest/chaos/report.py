"""Results of a chaos run: lines for a terminal, figures as JSON, a page with the timeline."""

import html
import json
import statistics
from collections.abc import Iterator
from typing import Any

from loadtest.chaos.record import ActSeen, Record
from loadtest.chaos.schedule import RECOVERY_S

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }
body { max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { text-align: left; vertical-align: top; padding: .25rem .8rem .25rem 0 }
th, td { border-bottom: 1px solid #8884 }
.wide { overflow-x: auto } .broken { color: light-dark(#b00020, #ff8a80); font-weight: 600 }
.kept { color: light-dark(#11652e, #7ddc97); font-weight: 600 }
svg { width: 100%; height: auto } svg text { font-size: 11px; fill: currentColor }
"""


def lines(record: Record) -> Iterator[str]:
    """Lines for a terminal at the end."""
    figures = as_figures(record)
    yield ""
    yield (
        f"seed {record.seed}: {record.seconds / 60:.1f} minutes, {record.clients} clients, "
        f"{figures['requests_per_s']:.1f} requests/s, {len(record.acts)} acts"
    )
    yield f"requests    {record.sent:,}: " + _listed(record.ends)
    yield f"faults      {record.faults.total()}: " + _listed(record.faults)
    yield f"redispatches {figures['redispatches']}, operations dropped {figures['ops_dropped']}"
    yield (
        f"affinity    {record.warm_ratio:.3f} at first, {figures['worst_ratio']:.3f} at the worst; "
        f"worst recovery {_recovery(record)}"
    )
    for name, memory in figures["memory"].items():
        yield (
            f"memory      {name}: {memory['first_mb']:.0f} MB at first, {memory['last_mb']:.0f} MB "
            f"at the end, {memory['lives']} lives, at most {memory['open_files_max']} open files"
        )
    if not record.cabled:
        yield "network     only proxies before two workers: no namespaces could be had here"
    for act in record.acts:
        struck = ", ".join(f"{each.strike.kind} ({each.strike.target})" for each in act.struck)
        back = "not back in time" if act.recovery_s is None else f"back after {act.recovery_s:.1f} s"
        yield (
            f"act {act.act.number:<3} {struck}: {_listed(act.ends)}; "
            f"affinity {act.hit_ratio:.3f}, then {act.worst_ratio:.3f}, {back}"
        )
    broken = record.all_broken
    for each in broken:
        at = f" at {each.at_s - record.began_s:.1f} s" if each.at_s else ""
        yield f"BROKEN{at}: {each.promise}: {each.seen}"
    yield f"{len(broken)} promises were broken" if broken else "all promises were kept"


def as_figures(record: Record) -> dict[str, Any]:
    """Everything that counts, ready for JSON."""
    memory = {}
    for name in sorted({sample.replica for sample in record.samples}):
        samples = [sample for sample in record.samples if sample.replica == name]
        part = max(1, len(samples) // 4)
        memory[name] = {
            "first_mb": statistics.median(each.rss_bytes for each in samples[:part]) / 1e6,
            "last_mb": statistics.median(each.rss_bytes for each in samples[-part:]) / 1e6,
            "max_mb": max(each.rss_bytes for each in samples) / 1e6,
            "lives": max(each.life for each in samples),
            "open_files_max": max(each.open_files for each in samples),
        }
    return {
        "seed": record.seed,
        "cabled": record.cabled,
        "clients": record.clients,
        "seconds": record.seconds,
        "requests": record.sent,
        "requests_per_s": record.sent / max(record.seconds, 1e-9),
        "ends": dict(record.ends),
        "faults": dict(record.faults),
        "redispatches": _sum(record, "cacheway_redispatches_total"),
        "ops_dropped": _sum(record, "cacheway_ops_dropped_total"),
        "warm_ratio": record.warm_ratio,
        "worst_recovery_s": record.worst_recovery_s,
        "worst_ratio": min((act.worst_ratio for act in record.acts), default=record.warm_ratio),
        "memory": memory,
        "acts": [_act(act, record) for act in record.acts],
        "broken": [
            {"promise": each.promise, "seen": each.seen, "at_s": _since(each.at_s, record)}
            for each in record.all_broken
        ],
    }


def as_json(record: Record) -> str:
    """The figures as a JSON document."""
    return json.dumps(as_figures(record), indent=1)


def as_page(record: Record) -> str:
    """A page that needs nothing else."""
    figures = as_figures(record)
    broken = record.all_broken
    verdict = (
        f'<p class="broken">{len(broken)} promises were broken.</p>'
        if broken
        else '<p class="kept">All promises were kept.</p>'
    )
    facts = [
        (
            "Requests",
            f"{record.sent:,} in {record.seconds / 60:.1f} minutes, {figures['requests_per_s']:.1f}/s",
        ),
        ("How they ended", _listed(record.ends)),
        ("Faults", f"{record.faults.total()}: {_listed(record.faults)}"),
        ("Redispatches", f"{figures['redispatches']}"),
        ("Affinity", f"{record.warm_ratio:.1%} at first; worst recovery {_recovery(record)}"),
        *(
            (f"Memory of {name}", f"{each['first_mb']:.0f} MB at first, {each['last_mb']:.0f} MB at the end")
            for name, each in figures["memory"].items()
        ),
    ]
    if not record.cabled:
        facts.append(("Network", "only proxies before two workers: no namespaces could be had"))
    rows = "".join(f"<tr><th>{_safe(name)}<td>{_safe(value)}" for name, value in facts)
    acts = "".join(_row(act, record) for act in record.acts)
    found = "".join(
        f'<li class="broken">{_safe(f"{_since(each.at_s, record):.1f} s: {each.promise}: {each.seen}")}'
        for each in broken
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>Chaos, seed {record.seed}</title>'
        f"<style>{_STYLE}</style><h1>Chaos suite, seed {record.seed}</h1>{verdict}<ul>{found}</ul>"
        f"<table>{rows}</table><h2>Affinity over the run</h2>{_timeline(record)}"
        '<h2>Acts</h2><div class="wide"><table><tr><th>Act<th>At<th>What struck<th>Answers<th>Back after'
        f"{acts}</table></div></html>\n"
    )


def _timeline(record: Record) -> str:
    """Each act as a bar of its recovery time, red if a promise was broken in it."""
    width = max(record.seconds, 1.0)
    bars = []
    for act in record.acts:
        x = 1000 * _since(act.began_s, record) / width
        recovery_s = RECOVERY_S if act.recovery_s is None else act.recovery_s
        height = 4 + 90 * recovery_s / RECOVERY_S
        colour = "#d32f2f" if act.broken else "#2e7d32"
        title = _safe("; ".join(str(each.strike) for each in act.struck))
        bars.append(
            f'<rect x="{x:.1f}" y="{100 - height:.1f}" width="{max(3.0, 6000 / width):.1f}" '
            f'height="{height:.1f}" fill="{colour}"><title>{title}</title></rect>'
        )
    return (
        '<svg viewBox="0 0 1000 125" role="img" aria-label="Seconds until sessions found their caches again, '
        f'after each act">{"".join(bars)}<line x1="0" x2="1000" y1="100" y2="100" stroke="currentColor"/>'
        f'<text x="0" y="118">0 s</text><text x="1000" y="118" text-anchor="end">{width:.0f} s</text>'
        f'<text x="0" y="10">{RECOVERY_S:g} s until affinity was back</text></svg>'
    )


def _row(act: ActSeen, record: Record) -> str:
    struck = "<br>".join(
        _safe(f"{each.strike.kind}: {each.strike.target}, {each.ended_s - each.began_s:.1f} s")
        for each in act.struck
    )
    back = "not in time" if act.recovery_s is None else f"{act.recovery_s:.1f} s"
    mark = ' class="broken"' if act.broken else ""
    return (
        f"<tr><td{mark}>{act.act.number}<td>{_since(act.began_s, record):.0f} s<td>{struck}"
        f"<td>{_safe(_listed(act.ends))}<td>{back}"
    )


def _act(act: ActSeen, record: Record) -> dict[str, Any]:
    return {
        "number": act.act.number,
        "at_s": _since(act.began_s, record),
        "struck": [
            {
                "kind": each.strike.kind,
                "target": each.strike.target,
                "at_s": _since(each.began_s, record),
                "lasted_s": each.ended_s - each.began_s,
            }
            for each in act.struck
        ],
        "ends": dict(act.ends),
        "hit_ratio": act.hit_ratio,
        "worst_ratio": act.worst_ratio,
        "recovery_s": act.recovery_s,
        "late_s": act.late_s,
    }


def _since(at_s: float, record: Record) -> float:
    return max(0.0, at_s - record.began_s)


def _recovery(record: Record) -> str:
    worst_s = record.worst_recovery_s
    return "not in time" if worst_s is None else f"{worst_s:.1f} s"


def _sum(record: Record, metric: str) -> int:
    return sum(value for name, value in record.counters.items() if name.partition("{")[0] == metric)


def _listed(counts: Any) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.most_common()) or "none"


def _safe(text: str) -> str:
    return html.escape(text)
