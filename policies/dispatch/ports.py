"""Ports of decisions, for the options that observe or extend them.

    decide ── weighed ──> ShadowObserver   each request once, when it comes, whether it then waits or not
    lanes  ── open? ────> PartnerRoom      workers that need a partner, where there are some

A shadow policy (`policies.observing.shadow`) and an explanation (`router.explaining.explanation`) observe;
`policies.disaggregation.decode_selection` knows the partners.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from policies.fleet.pairing import Pairing
from policies.pricing.views import Candidates, Chosen, RequestView, Shed, Slots
from policies.scoring import Policy


class ScoredRequest(msgspec.Struct, frozen=True, eq=False):
    """A request as it was weighed when it came.

    Attributes:
        everyone: Workers that may take it.
        candidates: Those that the policy chose among.
        first: Choice of the policy, before its turn was judged.
    """

    model: str
    view: RequestView
    everyone: Candidates
    candidates: Candidates
    policy: Policy
    first: Chosen | Shed
    bucket: int


class ShadowObserver(Protocol):
    """Observer of how requests are weighed."""

    def weighed(self, weighed: ScoredRequest) -> None:
        """Take note of a new request, before anything changes. Must not raise."""


class LinkSide(Protocol):
    """Workers of a lane whose KV crosses one link."""

    @property
    def link(self) -> str:
        """Name of the link."""

    @property
    def slots(self) -> Slots:
        """Workers behind it."""


class LaneSides(Protocol):
    """Workers of a lane by the link that their KV crosses."""

    @property
    def local(self) -> Slots:
        """Workers whose KV crosses none."""

    @property
    def remote(self) -> Sequence[LinkSide]:
        """All others."""


class PartnerRoom(Protocol):
    """Room of the decode workers of split requests (`policies.disaggregation.decode_selection`)."""

    def open(self, pairing: Pairing, slots: Slots, now_us: int) -> NDArray[np.bool_]:
        """Return True for each worker that needs no partner, or has one with room."""

    def is_open(self, pairing: Pairing, slot: int, now_us: int, tokens: float) -> bool:
        """Return the same of one worker, for a request of this length in tokens."""

    def any_room(self, pairing: Pairing, tokens: float, now_us: int) -> bool:
        """Return True if a partner has room for these tokens."""

    def by_site(self, pairing: Pairing, slots: Slots) -> LaneSides | None:
        """Return the workers by the link that their KV crosses; None if none crosses one."""
