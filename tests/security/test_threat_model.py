"""The threat model: every threat names a test that exists, and what the page names does, too."""

import re
from pathlib import Path

import pytest

from router.catalogue import CATALOGUE
from router.metric_families import FAMILIES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "security.md").read_text()

_HEAD = "| threat | what stops it | test | what remains |"


def threats() -> list[list[str]]:
    """The rows of all tables of threats, as cells."""
    rows = []
    for part in TEXT.split(_HEAD)[1:]:
        table = part.split("\n\n")[0].strip().splitlines()[1:]
        rows += [[cell.strip() for cell in row.strip("|").split("|")] for row in table]
    return rows


@pytest.mark.parametrize("row", threats(), ids=lambda row: row[0][:60])
def test_each_threat_is_stopped_by_something_that_a_test_proves(row: list[str]) -> None:
    threat, stops, test, _ = row
    assert threat
    assert stops
    file, _, name = test.strip("`").partition("::")
    path = ROOT / file
    assert path.is_file(), file
    assert re.search(rf"^(async )?def {name}\(", path.read_text(), re.MULTILINE), test


def test_each_file_of_attacks_belongs_to_a_threat() -> None:
    named = {row[2].strip("`").partition("::")[0] for row in threats()}
    attacks = {f"tests/security/{path.name}" for path in Path(__file__).parent.glob("test_*.py")}
    assert attacks - named == {"tests/security/test_threat_model.py"}
    assert len(threats()) > 50


def test_the_settings_and_metrics_that_the_page_names_exist() -> None:
    settings = set(CATALOGUE)
    sections = {name.partition(".")[0] for name in settings}
    named = {
        name for name in re.findall(r"`([a-z]+\.[a-z0-9_]+)", TEXT) if name.partition(".")[0] in sections
    }
    assert len(named) > 20
    assert named - settings == set()
    assert set(re.findall(r"cacheway_[a-z_]+", TEXT)) <= {family.exposed_name for family in FAMILIES}


def test_the_events_and_files_that_the_page_names_exist() -> None:
    source = "".join(path.read_text() for path in (ROOT / "router").rglob("*.py"))
    for event in ("tls.loaded", "tls.refused", "clients.refused"):
        assert f'"{event}"' in source
    for link in re.findall(r"\]\(([^)]+)\)", TEXT):
        assert (ROOT / "docs" / link).exists(), link
