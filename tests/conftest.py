"""One real Valkey for the whole test session, and a namespace of its own for every test.

No example of a property test has a deadline: its duration depends on the machine more than on the code. In
the quick profile and in CI (the variable ``CI``) the examples are the same every time, so that a change is
judged by itself. The deep profile looks for new ones, and keeps those that fail.
"""

import gc
import logging
import os
import signal
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, is_hypothesis_test, settings

from router import logs
from router.shared import EmbeddedValkey

for profile, examples in (("quick", 40), ("deep", 300)):
    same = profile == "quick" or "CI" in os.environ
    settings.register_profile(
        profile,
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=same,
        database=None if same else settings.default.database,
    )
settings.load_profile("quick")  # unless pytest's --hypothesis-profile names the other

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # The background of a shell ignores SIGINT, and every process that a test interrupts would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Exclude collected tests from garbage collections: ten thousand tests cost a second in each."""
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Trace no property test for coverage: tables reach nearly all lines, and a tracer doubles the time."""
    for item in items:
        if is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker("no_cover")


@pytest.fixture(autouse=True)
def _logs_end_with_the_test() -> Iterator[None]:
    """Restore the logs and their level, which a gateway configures at its start, after each test."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)
    if logs._logs is not None:
        root.removeHandler(logs._logs.handler)
        logs._logs.close()
        logs._logs = None


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def valkey() -> AsyncIterator[EmbeddedValkey]:
    """A Valkey server on a Unix socket, removed without a trace after the session."""
    async with EmbeddedValkey() as server:
        yield server


@pytest.fixture
def redis_url(valkey: EmbeddedValkey) -> str:
    """The address of the session's Valkey."""
    return valkey.url


@pytest.fixture
def namespace() -> str:
    """A namespace that no other test uses."""
    return f"test-{uuid.uuid4().hex[:12]}"
