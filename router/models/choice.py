"""The decision on the model of one request, for its worker, the log and the views."""

import msgspec

from policies import Attempt, Slots
from router.errors import NoWorker
from router.models.splits import Drawn
from router.shared import Use

RETRY_AFTER_S = 5.0


class AdapterUse(msgspec.Struct, frozen=True):
    """A declared adapter that serves a request; ``reason`` says why no worker has it.

    ``use`` marks the request as in flight; None if it is only explained.
    """

    name: str
    reason: str = ""
    use: Use | None = None


class Choice(msgspec.Struct, frozen=True, gc=False):
    """A decision (`router.gateway.parsing.ModelChoice`).

    Attributes:
        asked: Name that the client asked for, if another one serves it.
        alias: Alias that led from it to its model.
        drawn: Part of a split; None if its model has none.
        adapter: None if its model is no declared adapter.
    """

    asked: str = ""
    alias: str = ""
    drawn: Drawn | None = None
    adapter: AdapterUse | None = None

    def missing(self) -> NoWorker | None:
        """Return the error if no worker serves it; None: the usual one."""
        if self.adapter is None:
            return None
        reason = self.adapter.reason or f"The adapter {self.adapter.name} has just been unloaded; ask again."
        return NoWorker(reason, retry_after_s=RETRY_AFTER_S)

    def among(self, slots: Slots) -> Slots:
        """Return the slots that should serve it; never none of some."""
        return slots if self.drawn is None else self.drawn.among(slots)

    def ended(self, attempt: Attempt | None) -> dict[str, str]:
        """Count the request, and return the decision for views."""
        if self.drawn is not None:
            self.drawn.ended(-1 if attempt is None else attempt.chosen.slot)
        if self.adapter is not None and self.adapter.use is not None:
            self.adapter.use.in_flight = False
        return self.told()

    def told(self) -> dict[str, str]:
        """Return it for logs and views."""
        told = {"asked_model": self.asked, "alias": self.alias}
        if self.drawn is not None:
            told |= self.drawn.told()
        if self.adapter is not None:
            told["adapter"] = self.adapter.name
        return {name: value for name, value in told.items() if value}
