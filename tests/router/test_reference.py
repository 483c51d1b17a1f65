"""The settings as documentation: complete, up to date, and free of secrets."""

from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from policies import POLICIES
from router.catalogue import CATALOGUE
from router.reference import configuration_reference, effective
from router.sources import load

DOCS = Path(__file__).parents[2] / "docs"


def test_the_configuration_page_is_what_the_command_writes() -> None:
    """Mend it with ``make docs``."""
    assert (DOCS / "configuration.md").read_text() == configuration_reference()


@pytest.mark.parametrize("key", CATALOGUE)
def test_every_setting_is_in_the_reference(key: str) -> None:
    row = CATALOGUE[key]
    assert any(
        f"`{key}`" in line and row.flag in line and row.env in line
        for line in configuration_reference().split("\n")
    )


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_is_in_the_reference_with_its_options(name: str) -> None:
    (line,) = [line for line in configuration_reference().splitlines() if line.startswith(f"| `{name}` |")]
    options = POLICIES[name].options
    assert not line.endswith("|  |")
    assert all(f"`{option.name}=" in line for option in (fields(options) if options else ()))


def test_the_effective_settings_can_be_loaded_again(tmp_path: Path) -> None:
    loaded = load(
        {
            "server.port": "1001",
            "fleet.worker_urls": ["http://a:1"],
            "placement.models": ['{"*": {attention: linear}}'],
        }
    )
    file = tmp_path / "saved.yaml"
    file.write_text(effective(loaded))
    assert load(file=str(file)).settings == loaded.settings


def test_each_value_says_where_it_came_from() -> None:
    text = effective(load({"server.port": "1001"}, {"CACHEWAY_POLICY": "random"}))
    lines: dict[str, str] = {}
    for line in text.splitlines():
        lines.setdefault(line.split(":")[0].strip(), line)
    assert lines["port"].split("  ")[-1].strip() == "# flag --port"
    assert lines["policy"].endswith("# environment CACHEWAY_POLICY")
    assert lines["workers"].endswith("# default")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://u:hunter2@h:1/0", "redis://********@h:1/0"),
        ("redis+sentinel://:hunter2@a:1,b:1/main", "redis+sentinel://********@a:1,b:1/main"),
        ("unix:///run/valkey.sock?password=hunter2&db=1", "unix:///run/valkey.sock?password=********&db=1"),
        ("redis://h:1/0", "redis://h:1/0"),
    ],
)
def test_secrets_are_masked_also_within_a_url(url: str, shown: str) -> None:
    text = effective(load({"server.api_key": "hunter2", "shared.redis_url": url}))
    assert "hunter2" not in text
    assert yaml.safe_load(text)["shared"]["redis_url"] == shown
