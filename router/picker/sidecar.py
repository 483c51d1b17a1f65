"""A request that two workers share, in the hands of llm-d's sidecar beside the decode worker.

    picker ──decode worker, x-prefiller-host-port: the prefill worker──> proxy ──> sidecar ──> prefill worker
                                                                                     └───────> decode worker

The sidecar sends both legs and answers as the decode worker (llm-d-router, ``pkg/sidecar/proxy``; header:
``pkg/common/routing/common.go``). So neither the end of the prefill nor a failure of one leg alone is seen
here: the first byte ends the prefill, of an answer that is not streamed its predicted end.
"""

from collections.abc import Sequence
from typing import Protocol
from urllib.parse import urlsplit

from policies import Decision
from router.errors import UpstreamError
from router.gateway import Gateway
from router.gateway.attempt import Owner, Retries, WorkerAttempt
from router.gateway.parsing import ParsedRequest
from router.gateway.record import RequestRecord
from router.handover import Leg, Pair, PairedRequest, PairSink
from router.proxy import ClientConnection, ClientRequest, SendRequest, UpstreamRequest

PREFILLER = b"x-prefiller-host-port"

SIDECAR_HEADERS = frozenset((PREFILLER, b"x-encoder-hosts-ports", b"x-data-parallel-host-port"))
"""Headers that direct a sidecar; never a client's (``pkg/common/routing/common.go``)."""

SHARED_PATHS = frozenset(("/v1/chat/completions", "/v1/completions"))
"""Paths that the sidecar (``pkg/sidecar/proxy/proxy.go``) and the hand-over protocols here both split. The
decode worker does all of other requests."""


class SendPair(Protocol):
    """Sends a request that two workers share."""

    def __call__(self, pair: Pair, sink: PairSink, /) -> PairedRequest:
        """Send it; the sink hears nothing before this returns."""


class SharePair(Protocol):
    """Reserves on two workers and sends by a given function (`router.pairs.PairPlugin.share`)."""

    def __call__(
        self,
        gateway: Gateway,
        decision: Decision,
        request: ClientRequest,
        record: RequestRecord,
        parsed: ParsedRequest,
        client: ClientConnection,
        owner: Owner,
        retries: Retries,
        /,
        *,
        send: SendPair,
    ) -> WorkerAttempt:
        """Reserve on both, and send; nothing stays reserved if it raises."""


class SidecarRequest:
    """A request on its way to a sidecar (`router.handover.PairedRequest`)."""

    __slots__ = ("_carried", "_sink", "leg", "usage")

    def __init__(self, carried: UpstreamRequest, sink: PairSink) -> None:
        self._carried, self._sink = carried, sink
        self.leg = Leg.DECODE
        self.usage = b""

    def pause(self) -> None:
        """Stop reading the answer."""
        self._carried.pause()

    def resume(self) -> None:
        """Read on."""
        self._carried.resume()

    def abort(self) -> None:
        """Hear nothing more of it."""
        self._carried.abort()

    def fail_leg(self, leg: Leg, error: UpstreamError) -> None:
        """Let the request fail as if a leg had."""
        self._carried.abort()
        self.leg = leg
        self._sink.upstream_failed(error)


def send_to_sidecar(
    way: SendRequest, body: Sequence[bytes | memoryview], pair: Pair, sink: PairSink
) -> SidecarRequest:
    """Send a request to the decode worker's sidecar, and name the prefill worker if the sidecar splits it."""
    lines = pair.lines
    if pair.parsed.endpoint in SHARED_PATHS:
        prefill = urlsplit(pair.prefill.worker.url).netloc.encode()
        lines = b"%b%b: %b\r\n" % (lines, PREFILLER, prefill)
    carried = way(pair.head, lines, body, sink, patient=not pair.parsed.stream)
    return SidecarRequest(carried, sink)
