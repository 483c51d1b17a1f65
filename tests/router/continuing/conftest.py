"""A gateway without sockets, for the tests of its parts."""

from collections.abc import Iterator

import pytest
from fakes.gateway import Bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    """Checked at the end: nothing is left reserved, open or unanswered."""
    bench = Bench(workers=3)
    yield bench
    bench.check()
