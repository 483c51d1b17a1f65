"""docs/discovery.md names all that exists, and only that."""

import re
from pathlib import Path

from router.discovery.pods import Refusal
from router.metric_families import FAMILIES

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "discovery.md").read_text()
SOURCE = "".join(path.read_text() for path in (ROOT / "router" / "discovery").glob("*.py"))


def test_every_state_of_a_pod_is_explained() -> None:
    assert [refusal.value for refusal in Refusal if f"`{refusal.value}`" not in PAGE] == []


def test_every_metric_of_discovery_is_named_and_every_name_is_one() -> None:
    names = {family.exposed_name for family in FAMILIES}
    assert set(re.findall(r"\bcacheway_[a-z_]+", PAGE)) <= names
    assert {name for name in names if name.startswith("cacheway_discovery")} <= {
        *re.findall(r"\bcacheway_[a-z_]+", PAGE),
        "cacheway_discovery_watch_restarts_total",
    }


def test_every_event_that_the_page_names_is_logged() -> None:
    events = set(re.findall(r"`(discovery\.[a-z_]+)`", PAGE))
    assert len(events) >= 5
    assert [event for event in events if f'"event": "{event}"' not in SOURCE] == []


def test_every_name_of_a_peer_that_is_read_is_in_the_page() -> None:
    names = re.findall(r'"((?:sglang|smg|llm-d)\.ai/[a-z-]+)"', SOURCE)
    assert len(names) == 4
    assert [name for name in names if f"`{name}`" not in PAGE] == []


def test_the_rights_that_the_page_grants_are_those_that_are_used() -> None:
    """An API server is asked only through `list_pods` and `watch_pods`."""
    assert 'verbs: ["list", "watch"]' in PAGE
    assert 'verbs: ["list", "watch"]' in SOURCE
    assert set(re.findall(r"async def (\w+_pods)\(", SOURCE)) == {"list_pods", "watch_pods"}
