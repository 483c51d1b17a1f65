"""The declarations: named by the rules, and documented."""

from pathlib import Path

import pytest

from router.metric_families import FAMILIES, Family, metrics_reference

DOCS = Path(__file__).parents[2] / "docs"


def test_the_metrics_page_is_what_the_command_writes() -> None:
    """Mend it with ``make docs``."""
    assert (DOCS / "metrics.md").read_text() == metrics_reference()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_metric_is_in_the_reference_with_its_labels(family: Family) -> None:
    (line,) = [line for line in metrics_reference().splitlines() if f"`{family.exposed_name}` |" in line]
    assert all(f"`{label}`" in line for label in family.labels)
    assert family.about in line


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_names_follow_the_house_rules(family: Family) -> None:
    assert family.exposed_name.startswith("cacheway_")
    assert family.exposed_name.endswith("_total") == (family.kind == "counter")
    assert bool(family.buckets) == (family.kind == "histogram")
    assert list(family.buckets) == sorted(set(family.buckets))
    assert not family.exposed_name.endswith("_ms")


def test_no_name_is_used_twice() -> None:
    names = [family.exposed_name for family in FAMILIES]
    assert len(names) == len(set(names))
