"""``python -m deploy.write``: write those files of ``deploy/`` that are made from others. Tests compare.

grafana/{overview,...}.yaml       ──> grafana/cacheway-{overview,...}.json
prometheus/{rules,alerts}.yaml    ──> prometheus/prometheus-rule.yaml, an object of Prometheus' operator
kubernetes/{base,components}      ──> helm/cacheway/templates, and Chart.yaml (chart.py)
"""

import json
from collections.abc import Mapping
from pathlib import Path

import yaml

from deploy import chart, panels

HERE = Path(__file__).parent

_RULE_HEAD = "# Written by `python -m deploy.write` from rules.yaml and alerts.yaml.\n"


def generated() -> Mapping[Path, str]:
    """All files that are written, with their content."""
    groups = [
        group
        for name in ("rules.yaml", "alerts.yaml")
        for group in yaml.safe_load((HERE / "prometheus" / name).read_text())["groups"]
    ]
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "cacheway", "labels": {"app.kubernetes.io/name": "cacheway"}},
        "spec": {"groups": groups},
    }
    rule_text = _RULE_HEAD + yaml.safe_dump(rule, sort_keys=False, width=110, allow_unicode=True)
    return {
        HERE / "prometheus" / "prometheus-rule.yaml": rule_text,
        **{
            panels.HERE / f"{board.name}.json": json.dumps(panels.dashboard_json(board), indent=1) + "\n"
            for board in panels.dashboards()
        },
        **chart.generated(),
    }


if __name__ == "__main__":
    for path, text in generated().items():
        path.write_text(text)
