"""Requests that may be continued, and how often; the settings may change."""

from router.gateway.parsing import ParsedRequest
from router.settings import UpstreamSettings

REFUSED_MODELS_MAX = 1000
"""Models of which it is known that engines refuse to continue a message; then none is added."""


class StreamRules:
    """The rules of one process; see `router.settings.UpstreamSettings`."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self.use(settings)

    def use(self, settings: UpstreamSettings) -> None:
        """Apply new settings, to streams that break off from now on; ask engines again that refused."""
        self.mode = settings.continue_streams
        self.times_max = settings.continuations_max
        self._models = frozenset(settings.continue_models)
        self._refused: set[str] = set()

    def keep(self, parsed: ParsedRequest) -> bool:
        """Return True if the answer is a stream of a model that may be continued."""
        model = parsed.model or ""
        return parsed.stream and model not in self._refused and (not self._models or model in self._models)

    def refused(self, model: str) -> None:
        """Note that an engine of a model takes no message to continue."""
        if len(self._refused) < REFUSED_MODELS_MAX:
            self._refused.add(model)
