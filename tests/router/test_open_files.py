"""The limit of open files, which a process may lower and raise again up to the hard limit."""

import logging
import resource
import sys
from collections.abc import Iterator

import pytest

from router.open_files import (
    LISTENER_CONNECTIONS_MAX,
    OTHER_FILES,
    PROBES_MAX,
    UNLIMITED,
    other_files,
    probes_max,
    raise_open_files,
)

SOFT = 512


@pytest.fixture
def hard() -> Iterator[int]:
    """The hard limit, with a soft one far below it."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT, before[1]))
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def at_most_probes(limit: int) -> int:
    return min(limit // 8, PROBES_MAX)


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.event for record in caplog.records]  # type: ignore[attr-defined]


def test_the_soft_limit_becomes_the_hard_one_and_the_log_says_so_once(
    hard: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert raise_open_files(16).requests_max == (hard - OTHER_FILES - at_most_probes(hard)) // 2
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    (said,) = caplog.records
    assert (said.event, said.before, said.limit) == (  # type: ignore[attr-defined]
        "files.raised",
        SOFT,
        hard,
    )
    raise_open_files(16)
    assert len(caplog.records) == 1


@pytest.mark.parametrize(("missing", "warned"), [(0, False), (1, True)])
def test_a_hard_limit_too_low_for_one_worker_is_a_warning(
    hard: int, missing: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Every connection to a worker needs a client's beside it."""
    raise_open_files((hard - OTHER_FILES - at_most_probes(hard)) // 2 + missing)
    assert ("files.scarce" in events(caplog)) == warned


@pytest.mark.parametrize("limit", [200, 256, 500, 1024, 4096, 20_000])
@pytest.mark.parametrize("listeners", [0, 1, 2])
def test_the_bounds_of_all_listeners_together_are_below_the_limit(
    monkeypatch: pytest.MonkeyPatch, limit: int, listeners: int
) -> None:
    """A request takes a file at its worker, too."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    files = raise_open_files(16, listeners)
    assert files.requests_max >= 16
    assert 4 <= files.listener_connections_max <= LISTENER_CONNECTIONS_MAX
    assert 2 * files.requests_max + listeners * files.listener_connections_max + other_files(limit) <= limit


def test_where_files_are_not_limited_further_listeners_are(monkeypatch: pytest.MonkeyPatch) -> None:
    infinite = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _: infinite)
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    assert raise_open_files(16, 2) == UNLIMITED
    assert (UNLIMITED.requests_max, UNLIMITED.listener_connections_max) == (
        sys.maxsize,
        LISTENER_CONNECTIONS_MAX,
    )


def test_health_checks_have_files_of_their_own(hard: int) -> None:
    """An eighth of the limit, which is 512 here."""
    assert probes_max() == 64
