"""Dashboards as values: the panels and their places.

    deploy/grafana/overview.yaml ──read──> Dashboard ── rows ──> Row ── panels ──> Panel ── queries ──> Query
                                               └── `dashboard_json` ──> what Grafana imports

Grafana's own JSON (schema 39: Grafana 10.4 and later) is fifty lines for a panel and says where each stands;
here a panel has only its own values, and none can overlap another: panels of a row stand side by side on
Grafana's 24 columns, and rows below each other.

``{F`` in an expression stands for a selector that begins with the filter by the dashboard's variables.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

COLUMNS = 24
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
FILTER = 'namespace=~"$namespace"'

HERE = Path(__file__).parent / "grafana"
NAMES = ("overview", "workers", "queue", "links", "replicas")


class _Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Query(_Value, frozen=True):
    """One line, or one family of lines, of a panel.

    Attributes:
        expr: PromQL.
        legend: Grafana's name of a line, labels in ``{{}}``; empty for the title of the panel.
        rare: True if a healthy fleet may have no data for it.
    """

    expr: str
    legend: str = ""
    rare: bool = False


class Named(_Value, frozen=True):
    """Text of a panel in place of a value."""

    value: str
    text: str
    color: str


class Panel(_Value, frozen=True):
    """One picture.

    Attributes:
        title: Its subject, in a few words.
        about: Explanation; shown at the (i).
        queries: The drawn lines.
        kind: Grafana's kind of panel.
        unit: Grafana's name of the unit.
        width: Columns of 24.
        stacked: True if lines are added up.
        red_above: A threshold.
        red_below: The same; at most one of the two is set.
        maximum: End of the axis; None for as far as there is data.
        names: Texts for values.
    """

    title: str
    about: str
    queries: tuple[Query, ...]
    kind: Literal["timeseries", "stat", "bargauge", "state-timeline"] = "timeseries"
    unit: str = "short"
    width: int = 8
    stacked: bool = False
    red_above: float | None = None
    red_below: float | None = None
    maximum: float | None = None
    names: tuple[Named, ...] = ()


class Row(_Value, frozen=True):
    """Panels side by side, under a heading."""

    title: str
    panels: tuple[Panel, ...]
    height: int = 8


class Variable(_Value, frozen=True):
    """A choice at the top of the page, of the values of a metric's label."""

    name: str
    label: str
    metric: str


class Dashboard(_Value, frozen=True):
    """One page.

    Attributes:
        name: Name of the file, and of its address in Grafana.
        title: Its entry in Grafana's list.
        about: Its use.
        rows: From top to bottom.
        variables: More than the data source and the namespace.
    """

    name: str
    title: str
    about: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...] = ()


def dashboards() -> Iterator[Dashboard]:
    """Read all of them.

    Raises:
        msgspec.ValidationError: A file has the wrong form.
    """
    for name in NAMES:
        yield msgspec.convert(yaml.safe_load((HERE / f"{name}.yaml").read_text()), Dashboard)


def dashboard_json(board: Dashboard) -> dict[str, Any]:
    """Lay a dashboard out, as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row in board.rows:
        heading = {"type": "row", "title": row.title, "collapsed": False, "panels": []}
        panels.append({**heading, **_place(panels, 0, y, COLUMNS, 1)})
        y += 1
        x = 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y = 0, y + row.height
            panels.append({**_panel(panel), **_place(panels, x, y, panel.width, row.height)})
            x += panel.width
        y += row.height
    return {
        "uid": board.name,
        "title": board.title,
        "description": board.about,
        "tags": ["cacheway"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": list(_variables(board))},
        "links": [
            {
                "type": "dashboards",
                "title": "Cacheway",
                "tags": ["cacheway"],
                "asDropdown": True,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "annotations": {"list": []},
        "panels": panels,
    }


def _place(panels: list[dict[str, Any]], x: int, y: int, width: int, height: int) -> dict[str, Any]:
    return {"id": len(panels) + 1, "gridPos": {"x": x, "y": y, "w": width, "h": height}}


def _panel(panel: Panel) -> dict[str, Any]:
    drawn = panel.kind == "timeseries"
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": DATASOURCE,
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "max": panel.maximum,
                "thresholds": {"mode": "absolute", "steps": _steps(panel)},
                "mappings": _mappings(panel),
                "color": {"mode": "palette-classic" if drawn else "thresholds"},
                "custom": _style(panel),
            },
            "overrides": [],
        },
        "options": _options(panel),
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": DATASOURCE,
                "expr": query.expr.replace("{F", "{" + FILTER),
                "legendFormat": query.legend or panel.title,
            }
            for number, query in enumerate(panel.queries)
        ],
    }


def _steps(panel: Panel) -> list[dict[str, Any]]:
    if panel.red_above is not None:
        return [{"color": "green", "value": None}, {"color": "red", "value": panel.red_above}]
    if panel.red_below is not None:
        return [{"color": "red", "value": None}, {"color": "green", "value": panel.red_below}]
    return [{"color": "green", "value": None}]


def _mappings(panel: Panel) -> list[dict[str, Any]]:
    if not panel.names:
        return []
    options = {
        named.value: {"text": named.text, "color": named.color, "index": number}
        for number, named in enumerate(panel.names)
    }
    return [{"type": "value", "options": options}]


def _style(panel: Panel) -> dict[str, Any]:
    if panel.kind == "state-timeline":
        return {"fillOpacity": 80, "lineWidth": 0}
    if panel.kind != "timeseries":
        return {}
    bounded = panel.red_above is not None or panel.red_below is not None
    return {
        "lineWidth": 1,
        "fillOpacity": 25 if panel.stacked else 5,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        "thresholdsStyle": {"mode": "line" if bounded else "off"},
    }


def _options(panel: Panel) -> dict[str, Any]:
    legend = {"displayMode": "list", "placement": "bottom", "showLegend": True}
    if panel.kind == "timeseries":
        return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
    if panel.kind == "state-timeline":
        return {"mergeValues": True, "showValue": "never", "legend": legend, "tooltip": {"mode": "single"}}
    latest = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    if panel.kind == "bargauge":
        return {"reduceOptions": latest, "orientation": "horizontal", "displayMode": "lcd"}
    return {"reduceOptions": latest, "textMode": "auto", "colorMode": "value", "graphMode": "area"}


def _variables(board: Dashboard) -> Iterator[dict[str, Any]]:
    yield {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
        "current": {},
    }
    yield _choice("namespace", "Fleet (namespace)", "label_values(cacheway_build_info, namespace)")
    for each in board.variables:
        yield _choice(each.name, each.label, f"label_values({each.metric}{{{FILTER}}}, {each.name})")


def _choice(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "refresh": 2,
        "sort": 1,
        "current": {"text": "All", "value": "$__all"},
    }
