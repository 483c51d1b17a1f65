"""A gateway without sockets, for the tests of its parts."""

from collections.abc import Callable, Iterator

import pytest
from fakes.gateway import Bench

from router.settings import Settings
from router.shared import StoredResponses
from router.shared.keys import Keys


class KnownResponses(StoredResponses):
    """The memory alone; ``elsewhere`` is what other replicas know, and None if Redis is away."""

    def __init__(self) -> None:
        placement = Settings().placement
        super().__init__(placement, "redis://127.0.0.1:1", Keys("test"), "r1", now_s=lambda: 0.0)
        self.elsewhere: str | None = ""

    def find(self, tenant: str, response_id: str, found: Callable[[str | None], None]) -> None:
        here: list[str | None] = []
        if self.knows(tenant, response_id):
            super().find(tenant, response_id, here.append)
        found(here[0] if here else self.elsewhere)


@pytest.fixture
def bench() -> Iterator[Bench]:
    """Checked at the end: nothing is left reserved, open or unanswered."""
    bench = Bench()
    yield bench
    bench.check()


@pytest.fixture
def responses() -> KnownResponses:
    return KnownResponses()
