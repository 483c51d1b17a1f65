"""What the gateway and a hand-over protocol say to each other about one request.

    Gateway ──send(pair, sink)──> Handover ──two requests──> prefill worker, decode worker
       ^                             │
       └── answer or failure, once ──┘   `PairedRequest.leg` says whose

A request that is handed over has a *leg* at two workers: one prefills, the other decodes. To the gateway
both are one request with one answer, which is the decode leg's; so it implements the ports of
`router.proxy` on both sides. What differs between engines, and nothing else, is in one file per protocol.

The laws, for every protocol:

* the sink hears one answer or one failure, as of any request, and after `abort` nothing;
* the first leg that fails ends the other one at once;
* nothing of a body that a client sent is written anew but the fields of the protocol: neither can a client
  forge these, also where a decode worker does all of its request, nor is a long prompt copied
  (`router.handover.fields`).
"""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import msgspec

from router.errors import UpstreamError
from router.proxy import UpstreamRequest, UpstreamSink

if TYPE_CHECKING:
    from router.fleet import LocalWorker


class Leg(StrEnum):
    """The half of a request at one worker."""

    PREFILL = "prefill"
    DECODE = "decode"


class RequestFacts(Protocol):
    """What a protocol asks of a request."""

    @property
    def endpoint(self) -> str:
        """Path that it was sent to."""

    @property
    def stream(self) -> bool:
        """Whether its answer is streamed."""

    @property
    def n(self) -> int:
        """Answers to each prompt."""

    @property
    def paths(self) -> Sequence[bytes]:
        """Its prompts."""

    @property
    def computes_all(self) -> bool:
        """Whether the whole prompt must be computed, whatever is cached of it."""


class Pair(msgspec.Struct, frozen=True, gc=False):
    """One request with its two workers.

    Attributes:
        parsed: What is known of it.
        method: In upper case.
        path: Raw path.
        query: Raw query without ``?``.
        lines: Header lines for the workers, our id of the request among them.
        body: A JSON object, in flat pieces that are never changed.
        request_id: The request's id for the log.
        prefill: Who prefills.
        decode: Who decodes.
        resend: Whether a leg that met a stale connection is sent once more.
    """

    parsed: RequestFacts
    method: bytes
    path: bytes
    query: bytes
    lines: bytes
    body: Sequence[bytes | memoryview]
    request_id: bytes
    prefill: "LocalWorker"
    decode: "LocalWorker"
    resend: bool = True


class PairSink(UpstreamSink, Protocol):
    """What the answer to a pair is delivered to: the decode leg's, or an error answer of the prefill leg.

    The two calls of its own come at most once each, in this order, and before the decode leg's answer if they
    come at all; a failure or an error answer stands for those that are missing.
    """

    def prefill_ended(self) -> None:
        """The prefill worker computes nothing for this request any more."""

    def shipped(self) -> None:
        """The KV has arrived at the decode worker."""


class PairedRequest(UpstreamRequest, Protocol):
    """A request on its way to its two workers.

    Attributes:
        leg: Whose answer or failure the sink hears now: who is to blame.
        usage: The end of the prefill leg's answer, with what the engine counted; empty without one.
    """

    leg: Leg
    usage: bytes

    def fail_leg(self, leg: Leg, error: UpstreamError) -> None:
        """Let the request fail as if a leg had: both are ended, and the sink hears of it."""


class Handover(Protocol):
    """A protocol by which a prefill worker hands KV to a decode worker.

    Attributes:
        name: Key of `policies.HAND_OVERS`, which has its properties.
        counts: What happened beside answers and failures, by name, since the start.
    """

    name: str
    counts: Counter[str]

    def splits(self, parsed: RequestFacts) -> bool:
        """Whether a request may have two legs; if not, one worker does all of it."""

    def alone(self, body: Sequence[bytes | memoryview]) -> Sequence[bytes | memoryview]:
        """The body for a decode worker that does all of a request, without what only this protocol may say.

        Args:
            body: As in `Pair`.
        """

    def send(self, pair: Pair, sink: PairSink) -> PairedRequest:
        """Send a request; returns at once. The sink hears nothing before this returns."""
