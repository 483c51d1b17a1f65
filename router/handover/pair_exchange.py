"""The two legs of one request, as one request: shared by all hand-over protocols.

    prefill leg   sent ──────────────good answer──> over
                    │ refused, broken, 4xx, 5xx       │
                    │              decode leg: sent ──┴──first byte──> answering ──> done
                    v                            │ fails, 4xx, 5xx
          the decode leg is ended                v
          the sink hears of it     the prefill leg is ended, the sink hears of it

The leg that fails first is to blame. A decode engine that waits for a lost prefill fails, too, and may be
heard first. So its error is held back for a moment in which the prefill leg may break off, and the state of
the prefill worker counts. To end a leg is to close its connection, and to do more if the protocol has it.

Nothing of the decode leg's answer passes before its first token, neither head nor opening
(`router.handover.openings`): engines send both before they have begun. So until then a failure of either leg
can be redispatched unseen. The first token also shows that the KV came, and the prefill leg no longer
matters. It is not closed before it has answered, or had time to: engines take that for a client that left,
and stop sending KV.

An error of the decode engine after a good prefill leg, and before the first token, means that the KV did not
come: its partner may be another process by now, or unreachable. This failure (`TransferFailed`) is not passed
on: another pair, or the decode worker alone, may do better.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from router.engines import rank_line
from router.errors import HandoverFailed, StreamBroken, TransferFailed, UpstreamError
from router.handover.course import NEXT_COURSE, Course
from router.handover.fields import Piece
from router.handover.openings import Opening, opening
from router.handover.ports import Leg, Pair, PairSink
from router.proxy import SilentSink, UpstreamRequest

if TYPE_CHECKING:
    from router.fleet import LocalWorker

LINGER_S = 5.0
"""Time for a prefill leg to answer after the decode leg did: its connection can then be kept."""

VERDICT_S = 0.02
"""Time for which an error of the decode engine is held back. A process that dies resets the connections of
all its partners together, but they are not read in the same turn."""

ANSWER_TAIL_BYTES = 16 << 10
"""Bytes of a prefill leg's answer, for its counts; engines write them at the end."""

_ABORTED = re.compile(rb'"finish_reason"\s*:\s*(?:\{\s*"type"\s*:\s*)?"abort"')
"""Sent with status 200 for a request that another client aborted, like an operator before new weights are
loaded. Its partner would wait for the KV for minutes."""


class _SilentPairSink(SilentSink):
    """The sink after its last word."""

    __slots__ = ()

    def prefill_ended(self) -> None:
        """Ignore it."""

    def shipped(self) -> None:
        """Ignore it."""


_SILENT = _SilentPairSink()


class PairExchange:
    """A request with two legs: the `router.handover.ports.PairedRequest`, and the sink of its decode leg.

    A protocol's own class sends the legs, and handles the end of the prefill leg.
    """

    __slots__ = (
        "_answering",
        "_head",
        "_held",
        "_linger",
        "_opening",
        "_paused",
        "_prefill",
        "_prefill_worker",
        "_sink",
        "_verdict",
        "course",
        "leg",
        "usage",
    )

    linger_s = LINGER_S
    verdict_s = VERDICT_S

    def __init__(self, sink: PairSink, prefill_worker: "LocalWorker") -> None:
        self.course = Course.SENT
        self.leg = Leg.DECODE
        self.usage = b""
        self._prefill_worker = prefill_worker
        self._sink = sink
        self._prefill: UpstreamRequest | None = None
        self._answering: UpstreamRequest | None = None  # its answer goes to the sink
        self._head: tuple[int, bytes, int | None] | None = None
        self._opening = b""  # held back with the head
        self._paused = False  # by the client
        self._linger: asyncio.TimerHandle | None = None
        self._held: list[Callable[[], None]] = []  # the decode engine's events since its error
        self._verdict: asyncio.TimerHandle | None = None

    # The client's side (`router.proxy.UpstreamRequest`): only the answering leg is slowed down.

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
        self._end_legs()

    def fail_leg(self, leg: Leg, error: UpstreamError) -> None:
        """End both legs, and tell the sink that this one failed."""
        sink = self._end_legs()
        self.leg = leg
        sink.upstream_failed(error)

    # The prefill leg, by its `PrefillSink`.

    def prefill_refused(self) -> PairSink | None:
        """Return the sink for the prefill leg's error; None if the client has a better answer already."""
        if self.course is Course.HELD:  # both failed: the first to report did
            self._release_held()
        if self.course >= Course.ANSWERING:
            self._end_prefill()
            return None
        prefill, self._prefill = self._prefill, None
        self._end_answering(Leg.DECODE)
        self.leg = Leg.PREFILL
        self.course = NEXT_COURSE[self.course][Course.PREFILL_REFUSED]
        self._answer_with(prefill)
        return self._sink

    def prefill_data(self, data: bytes) -> None:
        """Keep the end of a good answer."""
        self.usage = (self.usage + data)[-ANSWER_TAIL_BYTES:]

    def prefill_end(self) -> None:
        """Go on: the prefill leg has answered well."""
        self._forget_prefill()
        if self.course is Course.HELD:
            self._release_held()
        elif self.course < Course.ANSWERING and _ABORTED.search(self.usage):
            self.fail_leg(Leg.PREFILL, HandoverFailed("The prefill engine aborted its leg."))
        elif self.course is not Course.OVER:
            self.prefilled(self._sink)

    def prefill_failed(self, error: UpstreamError) -> None:
        """Fail, unless the KV is there."""
        self._forget_prefill()
        if self.course < Course.ANSWERING:
            self.fail_leg(Leg.PREFILL, error)

    def passing_ended(self, error: UpstreamError | None) -> None:
        """End: the error answer that was passed on is over, or broke off."""
        self._answering = None
        if error is not None:
            self.fail_leg(Leg.PREFILL, error)
        else:
            self._over().upstream_end()

    # The decode leg (`router.proxy.UpstreamSink`).

    def upstream_head(self, status: int, lines: bytes, length: int | None) -> None:
        """Hold it back until there is more, unless it is an error."""
        if status < 400:
            self._head = (status, lines, length)
        elif status < 500:
            self._pass_error(status, lines, length)
        elif status == 500 and self.course is Course.PREFILLED:
            self._hold(lambda: self._fail_decode(f"The decode engine answered {status}."))
        else:
            self._hold(lambda: self._pass_error(status, lines, length))

    def upstream_data(self, data: bytes) -> None:
        """Pass bytes on; the first ones show that the KV is there."""
        if self.course is Course.HELD:
            self._held.append(lambda: self.upstream_data(data))
            return
        head = self._head
        if head is not None:
            data = self._opening + data
            match opening(data):
                case Opening.SILENT:
                    self._opening = data
                    return
                case Opening.FAILED:
                    self._hold(lambda: self._fail_decode("The decode leg's stream began with an error."))
                    return
                case Opening.BEGUN:
                    self._begin(head)
        self._sink.upstream_data(data)

    def upstream_end(self) -> None:
        """End the answer."""
        if self.course is Course.HELD:
            self._held.append(self.upstream_end)
            return
        if self._head is not None:
            opened = self._opening
            self._begin(self._head)
            if opened:
                self._sink.upstream_data(opened)
        self._answering = None
        self._over().upstream_end()

    def upstream_failed(self, error: UpstreamError) -> None:
        """Fail."""
        if self.course is Course.HELD:
            self._held.append(lambda: self.upstream_failed(error))
            return
        self._answering = None
        self.fail_leg(Leg.DECODE, error)

    # For protocols to override.

    def prefilled(self, sink: PairSink) -> None:
        """Handle the good answer of the prefill leg."""
        self._say_prefilled(sink)

    def ended(self, leg: Leg) -> None:
        """Help to end a leg whose connection was closed."""

    # For protocols to call.

    def begin(
        self, pair: Pair, prefill: Sequence[Piece], decode: Sequence[Piece], lines: bytes = b""
    ) -> None:
        """Send both legs at once; ``lines`` are more header lines for the prefill leg."""
        self._send_prefill(pair, prefill, lines)
        self._send_decode(pair, decode)

    def _send_prefill(self, pair: Pair, body: Sequence[Piece], lines: bytes = b"") -> None:
        self._prefill = pair.prefill.pool.send(
            pair.head,
            pair.lines + lines + rank_line(pair.prefill_rank),
            body,
            PrefillSink(self),
            resend=pair.resend,
        )

    def _send_decode(self, pair: Pair, body: Sequence[Piece]) -> None:
        self._answer_with(
            pair.decode.pool.send(
                pair.head,
                pair.lines + rank_line(pair.decode_rank),
                body,
                self,
                patient=not pair.parsed.stream,
                resend=pair.resend,
            )
        )

    def _say_prefilled(self, sink: PairSink) -> None:
        if self.course is Course.SENT:
            self.course = NEXT_COURSE[self.course][Course.PREFILLED]
            sink.prefill_ended()

    def _say_shipped(self, sink: PairSink) -> None:
        self._say_prefilled(sink)
        if self.course is Course.PREFILLED:
            self.course = NEXT_COURSE[self.course][Course.SHIPPED]
            sink.shipped()

    # Inside.

    def _over(self) -> PairSink:
        sink, self._sink = self._sink, _SILENT
        self.course = NEXT_COURSE[self.course][Course.OVER]
        return sink

    def _blamed(self) -> Leg:
        """Return the leg to blame for the decode engine's error: it fails, too, if its partner is gone."""
        worker = self._prefill_worker
        gone = worker.refused_us or worker.health == "unhealthy" or not worker.pool.open
        return Leg.PREFILL if gone else Leg.DECODE

    def _fail_decode(self, message: str) -> None:
        """Fail before the first token, of the decode engine's own or for want of the KV."""
        leg = self._blamed()
        lost = leg is Leg.DECODE and self.course is Course.PREFILLED
        self.fail_leg(leg, TransferFailed(message) if lost else HandoverFailed(message))

    def _hold(self, report: Callable[[], None]) -> None:
        if self._prefill is None:
            report()
        else:
            self.course = NEXT_COURSE[self.course][Course.HELD]
            self._held = [report]
            self._verdict = asyncio.get_running_loop().call_later(self.verdict_s, self._release_held)

    def _release_held(self) -> None:
        """Report all that was held back: the prefill leg did not break off."""
        held = self._held
        self.course = NEXT_COURSE[self.course][Course.SENT]
        self._let_go()
        for report in held:
            if self.course is not Course.OVER:
                report()

    def _let_go(self) -> None:
        self._held = []
        if self._verdict is not None:
            self._verdict.cancel()
            self._verdict = None

    def _pass_error(self, status: int, lines: bytes, length: int | None) -> None:
        self.leg = self._blamed() if status >= 500 else Leg.DECODE
        self.course = NEXT_COURSE[self.course][Course.DECODE_REFUSED]
        self._end_prefill()
        self._sink.upstream_head(status, lines, length)

    def _answer_with(self, request: UpstreamRequest | None) -> None:
        self._answering = request
        if self._paused and request is not None:
            request.pause()

    def _begin(self, head: tuple[int, bytes, int | None]) -> None:
        self._head = None
        self._opening = b""
        self.leg = Leg.DECODE
        if self._prefill is not None:
            self._linger = asyncio.get_running_loop().call_later(self.linger_s, self._end_prefill)
        sink = self._sink
        self._say_shipped(sink)
        self.course = NEXT_COURSE[self.course][Course.ANSWERING]
        sink.upstream_head(*head)

    def _forget_prefill(self) -> None:
        self._prefill = None
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None

    def _end_prefill(self) -> None:
        prefill = self._prefill
        self._forget_prefill()
        if prefill is not None:
            prefill.abort()
            self.ended(Leg.PREFILL)

    def _end_legs(self) -> PairSink:
        answering = Leg.PREFILL if self.course is Course.PREFILL_REFUSED else Leg.DECODE
        sink = self._over()
        self._end_prefill()
        self._end_answering(answering)
        return sink

    def _end_answering(self, leg: Leg) -> None:
        request, self._answering = self._answering, None
        self._head = None
        self._opening = b""
        self._let_go()
        if request is not None:
            request.abort()
            self.ended(leg)


class PrefillSink:
    """The sink of the prefill leg: `PairExchange`, or the client's sink for an error answer."""

    __slots__ = ("_legs", "_passing")

    def __init__(self, legs: PairExchange) -> None:
        self._legs = legs
        self._passing: PairSink | None = None

    def upstream_head(self, status: int, lines: bytes, length: int | None) -> None:
        """See `UpstreamSink`."""
        if status >= 400:
            self._passing = self._legs.prefill_refused()
            if self._passing is not None:
                self._passing.upstream_head(status, lines, length)

    def upstream_data(self, data: bytes) -> None:
        """See `UpstreamSink`."""
        if self._passing is not None:
            self._passing.upstream_data(data)
        else:
            self._legs.prefill_data(data)

    def upstream_end(self) -> None:
        """See `UpstreamSink`."""
        if self._passing is not None:
            self._legs.passing_ended(None)
        else:
            self._legs.prefill_end()

    def upstream_failed(self, error: UpstreamError) -> None:
        """See `UpstreamSink`."""
        if self._passing is not None:
            self._legs.passing_ended(error)
            return
        if isinstance(error, StreamBroken):  # of an answer that is not the client's
            error = HandoverFailed(f"The prefill leg broke off: {error.message}")
        self._legs.prefill_failed(error)
