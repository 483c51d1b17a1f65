"""The exchange of a request whose client wants its stream to survive the worker.

    answering ──worker breaks off──> `KeptStream.goes_on` ──> BETWEEN: the rest is read, placed and sent
        ^                                                        │ as a request of its own
        └────────── the next worker's events, without their head ┘

All else is `RequestExchange`. The request's body stays, and counts as held, until the stream cannot be
continued any more.
"""

from collections.abc import Sequence

import msgspec

from policies import Decision
from router.continuing.asked import asked_for
from router.continuing.rules import StreamRules
from router.continuing.stream import KeptStream
from router.errors import RouterError, UpstreamError
from router.gateway.answer import crashed, error_event, without_worker
from router.gateway.attempt import Retries, WorkerAttempt
from router.gateway.dispatcher import Dispatcher
from router.gateway.exchange import RequestExchange, ShareRequest
from router.gateway.gateway import Gateway
from router.gateway.parsing import ParsedRequest
from router.gateway.phase import Phase
from router.gateway.step_runner import Steps
from router.proxy import ClientConnection, ClientRequest, Header, UpstreamSink


class KeptExchange(RequestExchange):
    """Serves one request."""

    is_extended = True

    def __init__(
        self,
        rules: StreamRules,
        gateway: Gateway,
        request: ClientRequest,
        client: ClientConnection,
        share: ShareRequest | None = None,
    ) -> None:
        super().__init__(gateway, request, client, share)
        self._rules = rules
        self._kept: KeptStream | None = None
        self._ending = self._paused = False

    def pause(self) -> None:
        """Stop reading the answer, also that of the next worker."""
        self._paused = True
        super().pause()

    def resume(self) -> None:
        """Read on."""
        self._paused = False
        super().resume()

    def _begin_dispatch(self, parsed: ParsedRequest, headers: Sequence[Header]) -> None:
        asked = asked_for(parsed, self._request.body) if self._rules.keep(parsed) else None
        if asked is not None:
            body = self._request.body
            self._kept = KeptStream(self, self._record, parsed, asked, body, self._client, self._rules)
            parsed = self._kept.parsed
        super()._begin_dispatch(parsed, headers)

    # Its attempts.

    def send(self, decision: Decision, dispatcher: Dispatcher) -> None:
        """Send to the chosen worker, and reserve; its answer waits while the client is too slow."""
        super().send(decision, dispatcher)
        if self._paused:
            self.pause()

    def parties_of(self, dispatcher: Dispatcher) -> tuple[ClientConnection, Retries]:
        """Return the client of an attempt, and the rules for further attempts."""
        kept = self._kept
        return (self._client, dispatcher) if kept is None else (kept.client, kept.retries(dispatcher))

    def _sink(self, attempt: WorkerAttempt) -> UpstreamSink:
        return attempt if self._kept is None else self._kept.sink(attempt)

    def prompt_is_sent(self) -> None:
        """Release the body, unless another worker may need it."""
        if self._kept is None or not self._kept.keeps:
            super().prompt_is_sent()

    def break_off(self, attempt: WorkerAttempt, error: RouterError) -> None:
        """End a half-sent answer, unless another worker continues it."""
        kept, dispatcher = self._kept, self._dispatcher
        if (
            kept is None
            or dispatcher is None
            or self._ending
            or not isinstance(error, UpstreamError)
            or not kept.goes_on(attempt, dispatcher, error)
        ):
            if kept is not None and kept.begun and attempt.events is None:  # its answer was no stream
                self._end_with(error)
            else:
                super().break_off(attempt, error)

    def fail(self, error: RouterError) -> None:
        """Answer with an error, or end the stream with it that no worker continues."""
        record = self._record
        if record.phase is Phase.DONE or self._kept is None or not self._kept.begun:
            super().fail(error)
            return
        if self._attempt is not None:
            self._attempt.reservation.release(abandoned=True)
        self._end_with(error)

    def _end_with(self, error: RouterError) -> None:
        record = self._record
        self.finish(error.code, 200, error)
        shown = without_worker(error) if record.hides_workers else error
        self._client.send_body(error_event(record.path, shown, record.request_id))
        self._client.finish()

    def _end_early(self, *, broken: RouterError, unanswered: RouterError) -> None:
        self._ending = True
        super()._end_early(broken=broken, unanswered=unanswered)

    # Its stream (`KeptStream`).

    def go_on(self, body: bytes, error: UpstreamError) -> None:
        """Read a body that continues the answer, and dispatch it; ``error`` is told if no worker takes it."""
        self._request = msgspec.structs.replace(self._request, body=body)
        self._parsing = self._reread(error)
        self._gateway.lane.add(self._parsing)

    def _reread(self, error: UpstreamError) -> Steps:
        record, kept, dispatcher = self._record, self._kept, self._dispatcher
        assert kept is not None
        assert dispatcher is not None
        assert record.endpoint is not None
        sessions, headers = self._gateway.sessions, self._request.head.headers
        made = None if record.parsed is None else record.parsed.choice
        try:
            parsed = yield from self._gateway.reader.parse_in_steps(
                record.endpoint, self._request.body, record.tenant, headers, made
            )
            self._parsing = None
            parsed = kept.reread(parsed)
            record.parsed = dispatcher.parsed = (
                parsed if sessions is None else sessions.named(parsed, headers)
            )
            dispatcher.dispatch_again(error)
        except Exception as failure:  # noqa: BLE001 - the top of a request
            self._parsing = None
            self.fail(error if isinstance(failure, RouterError) else crashed())

    def attempt_broke(self, error: UpstreamError) -> None:
        """Treat the attempt that is answering as failed."""
        attempt = self._attempt
        if attempt is not None and self._record.phase is Phase.ANSWERING:
            attempt.abort()
            attempt.upstream_failed(error)

    def close_well(self) -> None:
        """End an answer that is complete although its worker broke off."""
        self.finish("completed", 200)
        self._client.finish()
        self._record.close("completed", 200, self._gateway.log.now_us())
