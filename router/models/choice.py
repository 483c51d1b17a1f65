"""The decision on the model of one request, for its worker, the log and the views."""

import msgspec

from policies import Slots


class Choice(msgspec.Struct, frozen=True, gc=False):
    """A decision (`router.gateway.parsing.ModelChoice`).

    Attributes:
        asked: Name that the client asked for, if another one serves it.
        alias: Alias that led from it to its model.
    """

    asked: str = ""
    alias: str = ""

    def among(self, slots: Slots) -> Slots:
        """Return the slots that should serve it; never none of some."""
        return slots

    def told(self) -> dict[str, str]:
        """Return it for logs and views."""
        return {"asked_model": self.asked, "alias": self.alias}
