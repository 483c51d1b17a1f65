"""A WebSocket: a worker is chosen once, and bytes pass both ways, unread, until one side closes.

    GET, upgrade ──> placed ──101──> open ──worker closes──> ended well
                       │              ├────client closes───> ended well
                       └──any other   ├────silence, time, the process ends──> both closed
                          status: an answer as any other

Its model is the query's (``?model=``), and is replaced there for an alias; frames pass unread.

It counts as a request in flight for all of its life, here and in the log. The worker may be silent for
`upstream.idle_timeout_s` if the client is, too (engines send a ping every 20 s), and all of it lasts
`server.request_timeout_s` at most. When the process ends, a tunnel closes after `server.shutdown_delay_s`.
"""

from collections.abc import Sequence

from policies import Decision
from router.errors import ClientError, RouterError, UpstreamError
from router.gateway.attempt import WorkerAttempt
from router.gateway.dispatcher import Dispatcher
from router.gateway.phase import NEXT, Phase
from router.gateway.reservation import Reservation
from router.proxy import Header, Upload
from router.relaying.model_query import ModelQuery
from router.relaying.relay import header_of, keep_apart, listed, without_prompt
from router.relaying.upload import StreamingExchange
from router.tenant import Tenant

SWITCHED = 101

KEY_PROTOCOL = "openai-insecure-api-key."
"""Subprotocol in which browsers send a key (OpenAI's realtime API). It is for the gateway, not a worker."""

EARLY_BYTES_MAX = 256 * 1024
"""Bytes that a client may send before the worker has accepted."""


class TunnelExchange(StreamingExchange):
    """Serves one WebSocket."""

    def _read_otherwise(self, tenant: Tenant, headers: Sequence[Header]) -> None:
        self._record.endpoint = self._endpoint
        request, head = self._request, self._request.head
        key = header_of(head.headers, b"sec-websocket-key")
        if not key or header_of(head.headers, b"upgrade").strip().lower() != b"websocket":
            raise ClientError(
                f"{self._endpoint} is a WebSocket: ask for it with an upgrade.",
                code="upgrade_required",
                status=426,
            )
        keep_apart(self._endpoint, tenant)
        self._early = bytearray()
        reader, query = self._gateway.reader, ModelQuery(head.query)
        parsed = without_prompt(self._endpoint, query.model, tenant, self._record.worker_request_id)
        parsed = reader.chosen(parsed, headers)
        self._request = query.renamed_in(request, parsed.model)
        self._client.read_body(self)
        if self._record.phase is not Phase.DONE:
            self._begin_dispatch(listed(reader, parsed), headers)

    def client_left(self) -> None:
        """Free the worker; that the client closes is how a tunnel ends."""
        if self._record.phase is Phase.ANSWERING and self._attempt is not None:
            attempt = self._attempt
            attempt.abort()
            assert isinstance(attempt, TunnelAttempt)
            attempt.ended()
        else:
            super().client_left()

    # From the client's side (`router.proxy.BodySink`).

    def body_data(self, data: bytes) -> None:
        """Pass bytes on."""
        if self._record.phase is Phase.ANSWERING and self._upstream is not None:
            self._record.request_bytes += len(data)
            self._upstream.write(data)
        elif self._record.phase is not Phase.DONE:
            self._early += data
            if len(self._early) > EARLY_BYTES_MAX:
                self.fail(ClientError("Bytes came before the WebSocket was accepted.", code="too_early"))

    def body_end(self) -> None:
        """A tunnel has no end but that of its connection."""

    # From its dispatcher and its worker.

    def send(self, decision: Decision, dispatcher: Dispatcher) -> None:
        """Reserve, and ask the chosen worker for the WebSocket."""
        keeps_keys = self._gateway.reader.forwarding.passes_keys
        lines = offer(self._request.head.headers, keeps_keys=keeps_keys)
        self.send_streaming(decision, dispatcher, Upload(self, tunnels=True), lines)

    def make_attempt(self, dispatcher: Dispatcher, reservation: Reservation) -> WorkerAttempt:
        """Return the attempt that passes bytes on."""
        return TunnelAttempt(
            self._gateway, self._record, dispatcher.parsed, self._client, self, dispatcher, reservation
        )

    def worker_connected(self) -> None:
        """Nothing is sent before the worker accepts."""

    def opened(self, lines: bytes) -> None:
        """The worker accepted: switch, and pass on the bytes that came early."""
        self.streaming = True
        record = self._record
        record.phase = NEXT[record.phase][Phase.ANSWERING]
        record.first_byte_s = self._gateway.now_s()
        self._client.switch_protocols(lines + record.lines())
        early, self._early = bytes(self._early), bytearray()
        self.body_data(early)

    def break_off(self, attempt: WorkerAttempt, error: RouterError) -> None:
        """End a tunnel that is open: there is no place for an error."""
        if attempt.head.status != SWITCHED:
            super().break_off(attempt, error)
            return
        self.finish(error.code, SWITCHED, error)
        self._client.finish()


class TunnelAttempt(WorkerAttempt):
    """Passes a worker's bytes on, or its answer if it does not accept."""

    def upstream_head(self, status: int, lines: bytes, length: int | None) -> None:
        """Open the tunnel, or pass the answer on as any other."""
        super().upstream_head(status, lines, length)
        if status == SWITCHED:
            assert isinstance(self.owner, TunnelExchange)
            self.owner.opened(lines)
            self.reservation.prefill_ended()

    def upstream_data(self, data: bytes) -> None:
        """Pass bytes on."""
        if self.head.status != SWITCHED:
            super().upstream_data(data)
            return
        self.record.bytes_sent += len(data)
        self.client.send_body(data)

    def upstream_end(self) -> None:
        """The worker closed."""
        if self.head.status != SWITCHED:
            super().upstream_end()
            return
        self.ended()
        self.client.finish()

    def upstream_failed(self, error: UpstreamError) -> None:
        """The worker is gone: close, if the tunnel was open."""
        if self.head.status == SWITCHED:
            self.retries.failed_at(self.reservation.worker_failed(error), last=True)
            self.reservation.release(abandoned=False)
            self.owner.break_off(self, error)
        else:
            super().upstream_failed(error)

    def ended(self) -> None:
        """Count the tunnel out, which ended well."""
        gateway, reservation = self.gateway, self.reservation
        now_us = gateway.log.now_us()
        gateway.registry.circuits.succeeded(reservation.local, now_us, reservation.attempt.placed_us)
        reservation.release(abandoned=False, prefilled_us=now_us)
        self.owner.finish("completed", SWITCHED)
        self.record.close("completed", SWITCHED, now_us)


def offer(headers: Sequence[Header], *, keeps_keys: bool) -> bytes:
    """Return the header lines of a WebSocket's offer for a worker (RFC 6455 section 4.1)."""
    lines = []
    for name, value in headers:
        if name == b"sec-websocket-protocol" and not keeps_keys:
            names = [each.strip() for each in value.decode("latin-1").split(",")]
            value = ", ".join(each for each in names if not each.startswith(KEY_PROTOCOL)).encode("latin-1")
        if name in _OFFER and value:
            lines.append(b"%b: %b\r\n" % (name, value))
    return b"".join(lines)


_OFFER = frozenset(
    (
        *(b"sec-websocket-extensions", b"sec-websocket-key", b"sec-websocket-protocol"),
        b"sec-websocket-version",
    )
)
