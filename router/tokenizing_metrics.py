"""What becomes of prompts of models that have a tokenizer: a part of `router.metrics`."""

from collections.abc import Callable

from router import metric_families as families
from router.metric_families import Family
from router.tallies import Count, Distribution


class TokenizingMetrics:
    """Counts for `router.tokenizing`.

    Args:
        count: Makes a counter.
        distribution: Makes a histogram.
    """

    def __init__(
        self, count: Callable[[Family], Count], distribution: Callable[[Family], Distribution]
    ) -> None:
        self._prompts = count(families.TOKENIZED_PROMPTS)
        self._held_s = distribution(families.TOKENIZING_HELD)
        self._miscounts = count(families.TOKENIZING_MISCOUNTS)

    def tokenized(self, how: str, held_s: float) -> None:
        """A request's prompts got ids, or kept their text, and it was held up for so long."""
        self._prompts.add((how,))
        self._held_s.observe(held_s)

    def miscounted(self, model: str) -> None:
        """An engine counted other tokens than we did, for a model as the settings name it."""
        self._miscounts.add((model,))
