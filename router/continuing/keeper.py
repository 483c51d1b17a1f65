"""The exchange of each request: one that keeps its stream if the setting or the client asks for that."""

from collections.abc import Callable, Sequence
from functools import partial

from router.continuing.exchange import KeptExchange
from router.continuing.rules import StreamRules
from router.gateway.exchange import RequestExchange
from router.gateway.reader import RequestReader
from router.proxy import Header
from router.settings import Settings

CONTINUE_HEADER = b"x-cacheway-continue"
"""``true`` asks for a stream that another worker continues, anything else for one that is not."""


class StreamKeeper:
    """One of each process."""

    def __init__(self, settings: Settings, reader: RequestReader) -> None:
        self._rules = StreamRules(settings.upstream)
        self._make = partial(KeptExchange, self._rules)
        self.use(settings)
        reader.note(CONTINUE_HEADER)

    def use(self, settings: Settings) -> None:
        """Apply new settings."""
        self._rules.use(settings.upstream)
        self._usual = self._make if self._rules.mode == "all" else RequestExchange

    def maker_of(self, headers: Sequence[Header]) -> Callable[..., RequestExchange]:
        """Return the maker of a request's exchange, by its relevant headers; most are the ordinary ones."""
        if headers and self._rules.mode != "off":
            for name, value in headers:
                if name == CONTINUE_HEADER:
                    return self._make if value.strip().lower() in (b"true", b"1") else RequestExchange
        return self._usual
