"""The two legs of one request, as one request: what all hand-over protocols share.

    prefill leg   sent ──────────────good answer──> over: read to its end, and dropped
                    │ refused, broken, 4xx, 5xx                       │
                    │                              decode leg: sent ──┴──first byte──> answering ──> done
                    v                                │ fails, 4xx, 5xx
              the decode leg is ended                v
              the sink hears of it         the prefill leg is ended, the sink hears of it

Whoever fails first is to blame, and what the other one would have said is not heard: a decode engine that
waits for a prefill that is gone fails, too, after seconds or minutes. To end a leg is to close its
connection, and whatever else the protocol has for it.

Until the first byte of the decode leg's answer nothing of it is passed on, not even its head (engines send
that before they have begun), so that until then a failure of either leg can be redispatched unseen. That
first byte also shows that the KV is there; from then on the prefill leg's fate changes nothing. Nor is its
connection closed before: engines take that for a client that left, and stop sending KV.
"""

import asyncio
import re

from router.errors import HandoverFailed, StreamBroken, UpstreamError
from router.handover.port import Leg, PairSink
from router.proxy import UpstreamRequest

LINGER_S = 1.0
"""How long a prefill leg may take to end by itself after the decode leg: then its connection can be kept."""

ANSWER_TAIL_BYTES = 16 << 10
"""What is kept of a prefill leg's answer for its counts; engines write them at the end."""

_FAILED_EVENT = re.compile(
    rb'(?:event: error\s+)?data: ?\{(?=\s*"error"|\s*"type"\s*:\s*"error")(?!.{0,2000}"code"\s*:\s*4)',
    re.DOTALL,
)
"""How a stream begins whose engine said 200 before it failed, and not by the client's fault (a code of 4xx).
vLLM sends the head of a stream at once (``create_streaming_error_response`` in its ``entrypoints/``)."""

_Head = tuple[int, bytes, int | None]


class Legs:
    """A request with two legs; the `router.handover.port.PairedRequest`, and the sink of its decode leg.

    A protocol's own class sends the legs (`_prefill`, `_answering`) and says what happens in between.

    Args:
        sink: Who waits for the answer.

    Attributes:
        leg: Whose answer or failure the sink hears now.
        usage: The end of the prefill leg's answer.
    """

    __slots__ = (
        "_answering",
        "_begun",
        "_head",
        "_linger",
        "_paused",
        "_prefill",
        "_prefilled",
        "_shipped",
        "_sink",
        "leg",
        "usage",
    )

    def __init__(self, sink: PairSink) -> None:
        self.leg = Leg.DECODE
        self.usage = b""
        self._sink: PairSink | None = sink
        self._prefill: UpstreamRequest | None = None
        self._answering: UpstreamRequest | None = None
        self._head: _Head | None = None
        self._begun = self._prefilled = self._shipped = self._paused = False
        self._linger: asyncio.TimerHandle | None = None

    # The client's side (`router.proxy.UpstreamRequest`): only who answers is slowed down.

    def pause(self) -> None:
        """Stop reading the answer."""
        self._paused = True
        if self._answering is not None:
            self._answering.pause()

    def resume(self) -> None:
        """Read on."""
        self._paused = False
        if self._answering is not None:
            self._answering.resume()

    def abort(self) -> None:
        """End both legs now; the sink hears nothing more. Idempotent."""
        self._sink = None
        self._end_prefill()
        self._end_answering()

    # The prefill leg.

    def prefill_head(self, status: int, lines: bytes, length: int | None) -> None:
        """An error is the answer, unless the client has a better one already."""
        if status < 400:
            return
        if self._begun or self._sink is None:
            self._end_prefill()
            return
        prefill, self._prefill = self._prefill, None
        self._end_answering()
        self.leg = Leg.PREFILL
        self._begun = True
        self._answering = prefill
        if self._paused and prefill is not None:
            prefill.pause()
        self._sink.upstream_head(status, lines, length)

    def prefill_data(self, data: bytes) -> None:
        """Pass an error on; of a good answer its end is kept."""
        if self.leg is Leg.PREFILL and self._begun:
            if self._sink is not None:
                self._sink.upstream_data(data)
        else:
            self._collect(data)

    def prefill_end(self) -> None:
        """The prefill leg is over."""
        if self.leg is Leg.PREFILL and self._begun:
            sink, self._sink, self._answering = self._sink, None, None
            if sink is not None:
                sink.upstream_end()
            return
        self._prefill = None
        if self._linger is not None:
            self._linger.cancel()
        if self._sink is not None:
            self._prefill_over(self._sink)

    def prefill_failed(self, error: UpstreamError) -> None:
        """The request fails with it, unless the KV is there."""
        if self.leg is Leg.PREFILL and self._begun:
            self._answering = None
        else:
            self._prefill = None
            if self._linger is not None:
                self._linger.cancel()
            if self._begun:
                return
            if isinstance(error, StreamBroken):  # of an answer that is not the client's
                error = HandoverFailed(f"The prefill leg broke off: {error.message}")
        self._fail(Leg.PREFILL, error)

    # The decode leg (`router.proxy.UpstreamSink`).

    def upstream_head(self, status: int, lines: bytes, length: int | None) -> None:
        """Hold it back until there is more, unless it is an error."""
        if status < 400:
            self._head = (status, lines, length)
            return
        assert self._sink is not None
        self.leg = Leg.DECODE
        self._begun = True
        self._end_prefill()
        self._sink.upstream_head(status, lines, length)

    def upstream_data(self, data: bytes) -> None:
        """Pass bytes on; the first ones show that the KV is there."""
        if self._head is not None:
            if _FAILED_EVENT.match(data):
                self._fail(Leg.DECODE, HandoverFailed("The decode leg's stream began with an error."))
                return
            self._begin()
        if self._sink is not None:
            self._sink.upstream_data(data)

    def upstream_end(self) -> None:
        """The answer is complete; the prefill leg's own is as good as over."""
        if self._head is not None:
            self._begin()
        sink, self._sink, self._answering = self._sink, None, None
        if self._prefill is not None:
            self._linger = asyncio.get_running_loop().call_later(LINGER_S, self._end_prefill)
        if sink is not None:
            sink.upstream_end()

    def upstream_failed(self, error: Exception) -> None:
        """The request fails with it."""
        self._answering = None
        self._fail(Leg.DECODE, error)

    # What protocols differ in.

    def _collect(self, data: bytes) -> None:
        """Keep what is needed of the prefill leg's good answer."""
        self.usage = (self.usage + data)[-ANSWER_TAIL_BYTES:]

    def _prefill_over(self, sink: PairSink) -> None:
        """The prefill leg has answered well, all of it."""
        self._say_prefilled(sink)

    def _ended(self, leg: Leg) -> None:
        """A leg was ended by closing its connection: do what else helps."""

    # Inside.

    def _say_prefilled(self, sink: PairSink) -> None:
        if not self._prefilled:
            self._prefilled = True
            sink.prefill_ended()

    def _say_shipped(self, sink: PairSink) -> None:
        self._say_prefilled(sink)
        if not self._shipped:
            self._shipped = True
            sink.shipped()

    def _begin(self) -> None:
        """The first bytes of the decode leg's answer are here, or its end."""
        head, self._head = self._head, None
        assert head is not None
        assert self._sink is not None
        self._begun = True
        self.leg = Leg.DECODE
        self._say_shipped(self._sink)
        self._sink.upstream_head(*head)

    def _fail(self, leg: Leg, error: Exception) -> None:
        sink, self._sink = self._sink, None
        self.leg = leg
        self._end_prefill()
        self._end_answering()
        if sink is not None:
            sink.upstream_failed(error)

    def _end_prefill(self) -> None:
        prefill, self._prefill = self._prefill, None
        if prefill is not None:
            prefill.abort()
            self._ended(Leg.PREFILL)

    def _end_answering(self) -> None:
        request, self._answering = self._answering, None
        self._head = None
        if request is not None:
            request.abort()
            self._ended(Leg.PREFILL if self.leg is Leg.PREFILL and self._begun else Leg.DECODE)


class PrefillSink:
    """Where the prefill leg's answer goes."""

    __slots__ = ("_legs",)

    def __init__(self, legs: Legs) -> None:
        self._legs = legs

    def upstream_head(self, status: int, lines: bytes, length: int | None) -> None:
        """See `UpstreamSink`."""
        self._legs.prefill_head(status, lines, length)

    def upstream_data(self, data: bytes) -> None:
        """See `UpstreamSink`."""
        self._legs.prefill_data(data)

    def upstream_end(self) -> None:
        """See `UpstreamSink`."""
        self._legs.prefill_end()

    def upstream_failed(self, error: Exception) -> None:
        """See `UpstreamSink`."""
        assert isinstance(error, UpstreamError)
        self._legs.prefill_failed(error)
