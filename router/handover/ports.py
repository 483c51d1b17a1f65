"""Ports between the gateway and a hand-over protocol.

    Gateway ──send(pair, sink)──> Handover ──two requests──> prefill worker, decode worker
       ^                             │
       └── answer or failure, once ──┘   `PairedRequest.leg` names its leg

A request that is handed over has a *leg* at two workers: one prefills, the other decodes. To the gateway both
are one request with one answer, the decode leg's; so it implements the ports of `router.proxy` on both sides.
The laws:

* the sink hears one answer or one failure, as of any request, and after `abort` nothing;
* the first leg that fails ends the other one at once;
* only the protocol's fields of a client's body are rewritten (`router.handover.fields`): a client cannot
  forge them, also where a decode worker does all of its request, and a long prompt is not copied.
"""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import msgspec

from router.errors import UpstreamError
from router.proxy import RequestHead, UpstreamRequest, UpstreamSink

if TYPE_CHECKING:
    from router.fleet import LocalWorker


class Leg(StrEnum):
    """The half of a request at one worker."""

    PREFILL = "prefill"
    DECODE = "decode"


class RequestFacts(Protocol):
    """The facts of a request that a protocol reads; see `router.gateway.parsing.ParsedRequest`."""

    @property
    def endpoint(self) -> str:
        """Path."""

    @property
    def stream(self) -> bool:
        """True for a streamed answer."""

    @property
    def n(self) -> int:
        """Answers to each prompt."""

    @property
    def paths(self) -> Sequence[bytes]:
        """Its prompts."""

    @property
    def computes_all(self) -> bool:
        """True if the whole prompt must be computed, cached or not."""


class Pair(msgspec.Struct, frozen=True, gc=False):
    """A request with its two workers.

    Attributes:
        lines: Header lines for the workers, our id of the request among them.
        body: A JSON object, in flat pieces that are never changed.
        resend: A leg that met a stale connection is sent once more.
        prefill_rank: Data-parallel rank of the prefill worker; -1 leaves the choice to its engine.
        decode_rank: The same of the decode worker.
    """

    parsed: RequestFacts
    head: RequestHead
    lines: bytes
    body: Sequence[bytes | memoryview]
    request_id: bytes
    prefill: "LocalWorker"
    decode: "LocalWorker"
    resend: bool = True
    prefill_rank: int = -1
    decode_rank: int = -1


class PairSink(UpstreamSink, Protocol):
    """The sink of a pair: of the decode leg's answer, or of an error answer of the prefill leg.

    Its own two calls come at most once each, in this order, before the decode leg's answer if at all; a
    failure or an error answer stands for those that are missing.
    """

    def prefill_ended(self) -> None:
        """The prefill worker computes nothing for this request any more."""

    def shipped(self) -> None:
        """The KV has arrived at the decode worker."""


class PairedRequest(UpstreamRequest, Protocol):
    """A request on its way to its two workers; ``leg`` is the one whose answer or failure the sink hears now.

    ``usage`` is the end of the prefill leg's answer, with the engine's counts; empty before.
    """

    leg: Leg
    usage: bytes

    def fail_leg(self, leg: Leg, error: UpstreamError) -> None:
        """Let the request fail as if a leg had: both are ended, and the sink hears of it."""


class Handover(Protocol):
    """A protocol by which a prefill worker hands KV to a decode worker.

    ``name`` is a key of `policies.HAND_OVERS`, which has its properties; ``counts`` has events beside answers
    and failures.
    """

    name: str
    counts: Counter[str]

    def splits(self, parsed: RequestFacts) -> bool:
        """Return True if a request may have two legs; if not, one worker does all of it."""

    def alone(self, body: Sequence[bytes | memoryview]) -> Sequence[bytes | memoryview]:
        """Return the body for a decode worker that does all of a request, without the protocol's fields."""

    def send(self, pair: Pair, sink: PairSink) -> PairedRequest:
        """Send a request; the sink hears nothing before this returns."""
