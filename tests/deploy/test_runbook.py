"""``docs/alerts.md``: what an operator is told to look at at 3 a.m. is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_dashboards_and_panels_that_the_runbook_names_exist() -> None:
    """In italics: the title of a panel or a dashboard, or how both are told apart."""
    text = (ROOT / "docs" / "alerts.md").read_text()
    titles = "\n".join(path.read_text() for path in (ROOT / "deploy" / "grafana").glob("*.yaml"))
    shown = set(re.findall(r"(?<![*\w])\*([A-Z][A-Za-z /0-9]+)\*(?!\*)", text))
    assert len(shown) >= 10
    assert {name for name in shown if name not in titles} == set()
