"""The limit of open files, which a process may lower and raise again up to the hard limit."""

import logging
import resource
from collections.abc import Iterator

import pytest

from router.open_files import OTHER_FILES, PROBES_MAX, probes_max, raise_open_files

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
    assert raise_open_files(16) == (hard - OTHER_FILES - at_most_probes(hard)) // 2
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


def test_health_checks_have_files_of_their_own(hard: int) -> None:
    """An eighth of the limit, which is 512 here."""
    assert probes_max() == 64
