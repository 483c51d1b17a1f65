"""Paths that an operator lets clients reach."""

import re
from pathlib import Path

import pytest

from router.pass_through import OWN_ROOTS, PassedPaths, administers, passed_path

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", ["/v1/videos", "/omni/*", "/v1/*", "/api/chat", "/a.b/c-d_e~f"])
def test_paths_of_engines_may_be_named(path: str) -> None:
    assert passed_path(path) == path


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("v1/videos", "is no path"),
        ("/", "is no path"),
        ("/*", "is no path"),
        ("/v1/*/x", "is no path"),
        ("/v1/..", "is no path"),
        ("/v1/%66", "is no path"),
        ("/v1/videos?x", "is no path"),
        ("/workers/*", "gateway's own"),
        ("/v1/models", "gateway's own"),
        ("/health", "gateway's own"),
        ("/v1/load_lora_adapter", "administers"),
        ("/sleep", "administers"),
        ("/collective_rpc/*", "administers"),
    ],
)
def test_others_may_not(path: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        passed_path(path)


def test_below_a_prefix_is_no_way_around() -> None:
    paths = PassedPaths(("/v1/*", "/omni/speak"))
    for path in (b"/v1/videos", b"/v1/a/b", b"/omni/speak"):
        assert path in paths
    for path in (b"/v1/", b"/v1", b"/v1/a/../sleep", b"/v1/Sleep", b"/v1/x/flush_cache", b"/v1/%73leep"):
        assert path not in paths
    for path in (
        b"/v1/models",
        b"/v1/models/m",
        b"/v1/a//b",
        b"/v1/*",
        b"/omni/speak/x",
        b"/omni",
        b"/v1/a;sleep",
    ):
        assert path not in paths
    assert administers("/x;flush_cache")


def test_the_gateways_own_paths_are_all_kept_from_it() -> None:
    made = re.compile(r'\.(?:get|post|put|patch|delete)\(\s*"/([^"/]*)')
    sources = (ROOT / "router" / "admin").glob("*.py")
    roots = {root for source in sources for root in made.findall(source.read_text())}
    assert roots - {"", "v1"} <= OWN_ROOTS
