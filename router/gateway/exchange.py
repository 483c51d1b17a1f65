"""A client request, from its last byte to the last byte of its answer.

    begin ──parse──> dispatch ──send──> `WorkerAttempt` ──first body byte──> answering ──> done
      │               ^ │ ^                    │ failed, budget left             │
      └── parsing ────┘ │ └─── redispatch ─────┘                                 └ failed: stream ends with
         (a large body, └─ waits in the `RequestQueue`, if it is not its turn        its error
         in steps), or tokenizing (`router.tokenizing`, for models that have a tokenizer)

States: `router.gateway.phase`. Every attempt's `Reservation` is released on every path, and the client gets
exactly one answer. A request is counted out before its answer ends, since a pipelined request behind it
begins then. A request that a prefill and a decode worker share is one attempt, too (`router.pairs`).
"""

from collections.abc import Callable, Sequence

import msgspec

from policies import Decision
from router.engines import DIALECTS, RANKED, rank_line
from router.errors import Overloaded, RequestExpired, RouterError, ShuttingDown, StreamBroken, WorkerSilent
from router.fleet import LocalWorker
from router.gateway.answer import error_event, told, without_worker
from router.gateway.attempt import Owner, Retries, WorkerAttempt
from router.gateway.dispatcher import Dispatcher
from router.gateway.edits import appended
from router.gateway.endpoints import ENDPOINTS, Endpoint
from router.gateway.forwarding import hops_of
from router.gateway.gateway import Gateway, LimiterPort, TokenizingPort
from router.gateway.large import LARGE_BODY_BYTES
from router.gateway.parsing import ParsedRequest
from router.gateway.phase import ANSWERING, TO_DONE, TO_SENT, Phase
from router.gateway.record import Bill, RequestRecord
from router.gateway.reservation import Reservation
from router.gateway.step_runner import Steps
from router.metric_families import CLIENT_DISCONNECTS, WHOLE_AT_DECODE
from router.offsets import edited
from router.proxy import (
    ClientConnection,
    ClientRequest,
    Exchange,
    Header,
    SendRequest,
    StartExchange,
    UpstreamSink,
    error_answer,
)
from router.shared import Charge
from router.tenant import Tenant

ShareRequest = Callable[
    [Gateway, Decision, ClientRequest, RequestRecord, ParsedRequest, ClientConnection, Owner, Retries],
    WorkerAttempt,
]
"""Reserves on two workers, and sends to both (`router.pairs`); nothing stays reserved if it raises."""


class RequestExchange:
    """Serves one request through the `router.proxy` ports."""

    dispatcher_type: Callable[..., Dispatcher] = Dispatcher
    is_extended = False
    """True for a subclass with parties, a way or a sink of its own."""
    _parsing: Steps | None = None
    _dispatcher: Dispatcher | None = None
    _attempt: WorkerAttempt | None = None

    def __init__(
        self,
        gateway: Gateway,
        request: ClientRequest,
        client: ClientConnection,
        share: ShareRequest | None = None,
    ) -> None:
        self._gateway = gateway
        self._request = request
        self._client = client
        self._share = share
        self._record = RequestRecord(
            request.head.path, request.client, request.received_s, len(request.body), gateway=gateway
        )

    @property
    def received_s(self) -> float:
        """Monotonic seconds when the request was complete."""
        return self._record.received_s

    # From the client's side (`router.proxy.Exchange`).

    def begin(self, headers: Sequence[Header], endpoint: Endpoint | None) -> None:
        """Parse, place and send, or answer with the error; ``headers`` are `RequestReader.relevant`."""
        gateway, record, request = self._gateway, self._record, self._request
        reader, sending = gateway.reader, gateway.sending
        exchanges = sending.exchanges
        exchanges[self] = None
        if exchanges.timer is None:
            exchanges.watch()
        if not sending.retry_budget.full:
            sending.retry_budget.deposit()
        try:
            record.request_id = record.worker_request_id = reader.next_request_id()
            if headers or reader.identifies:
                self._identify(headers)
            tenant = record.tenant
            if request.refusal is not None or sending.full or len(exchanges) > sending.requests_max:
                sending.admit(request.refusal)
            if headers:
                record.hops = hops_of(headers)
                self._set_deadline(headers)
            if endpoint is None:
                self._read_otherwise(tenant, headers)
                return
            record.endpoint = endpoint
            if record.request_bytes >= LARGE_BODY_BYTES:
                self._parsing = self._parse_large(endpoint, tenant, headers)
                gateway.lane.add(self._parsing)
                return
            parsed = reader.parse(endpoint, request.body, tenant, headers)
            if gateway.tokenizing is None:
                self._begin_dispatch(parsed, headers)
            else:
                self._begin_tokenizing(gateway.tokenizing, parsed, headers)
        except Exception as error:  # noqa: BLE001 - the top of a request
            self.fail(told(error))

    def pause(self) -> None:
        """Stop reading the answer: the client is too slow."""
        if self._attempt is not None and self._attempt.upstream is not None:
            self._attempt.upstream.pause()

    def resume(self) -> None:
        """Read on."""
        if self._attempt is not None and self._attempt.upstream is not None:
            self._attempt.upstream.resume()

    def client_left(self) -> None:
        """Free the worker at once, unless the client already has the last event of its stream."""
        record, attempt = self._record, self._attempt
        if record.phase is Phase.DONE:
            return
        if attempt is not None:
            if attempt.said_all():
                self.resume()
                return
            attempt.abort()
            reservation = attempt.reservation
            reservation.release(abandoned=not (reservation.prefilled or record.first_byte_s))
        self._gateway.metrics.sums[CLIENT_DISCONNECTS].add(1)
        self.finish("client_left", 499)

    def interrupt(self) -> None:
        """End the request because the process ends."""
        error = ShuttingDown()
        self._end_early(broken=error, unanswered=error)

    # From its attempt (`router.gateway.attempt.Owner`).

    def prompt_is_sent(self) -> None:
        """Release the body: no other worker will get it."""
        self._request = msgspec.structs.replace(self._request, body=b"")
        self._client.release_body()

    # From the gateway.

    def renew(self, left_us: int, now_us: int) -> None:
        """Reserve again, at ``now_us``, what the fleet dropped up to ``left_us`` of this live replica."""
        if self._dispatcher is not None:
            self._dispatcher.renew(left_us, now_us)
        if self._attempt is not None:
            self._attempt.reservation.renew(left_us, now_us)

    def out_of_time(self) -> None:
        """End the request: it took longer than the gateway allows."""
        timeout_s = self._gateway.sending.exchanges.timeout_s
        message = f"The request took longer than {timeout_s:g} s."
        self._end_early(
            broken=StreamBroken(message, code="request_timeout"),
            unanswered=RequestExpired(timeout_s)
            if self._record.phase is Phase.QUEUED
            else WorkerSilent(message, code="request_timeout"),
        )

    # Inside.

    def _read_otherwise(self, tenant: Tenant, headers: Sequence[Header]) -> None:
        """Find out about a request without a JSON body, and dispatch it (`router.relaying`)."""
        raise NotImplementedError

    def _identify(self, headers: Sequence[Header]) -> None:
        """Find out who asks: the client's id, its tenant, and whether it may know the workers."""
        gateway, record, reader = self._gateway, self._record, self._gateway.reader
        record.is_named = True
        record.request_id = reader.clients_id(headers) or record.worker_request_id
        record.hides_workers = reader.hides_workers(headers)
        if gateway.spans is not None:
            record.spans = gateway.spans.begin(
                self._request.head.method, record.path, headers, record.request_id, record.received_s
            )
        record.tenant = reader.door.tenant_of(headers)

    def _set_deadline(self, headers: Sequence[Header]) -> None:
        gateway, record = self._gateway, self._record
        record.timeout_s = timeout_s = gateway.reader.timeout_s_of(headers)
        if timeout_s:
            left_s = timeout_s - (gateway.now_s() - record.received_s)
            record.deadline_timer = gateway.loop.call_later(left_s, self._deadline_passed)

    def _begin_tokenizing(
        self, tokenizing: TokenizingPort, parsed: ParsedRequest, headers: Sequence[Header]
    ) -> None:
        def tokenized(parsed: ParsedRequest) -> None:
            self._go_on(lambda: self._begin_dispatch(parsed, headers))

        self._record.parsed = parsed
        found = tokenizing.begin(parsed, self._request.body, tokenized)
        if found is not None:
            self._begin_dispatch(found, headers)

    def _go_on(self, step: Callable[[], None]) -> None:
        """Take the next step of a request that had to wait for some milliseconds, if it has not ended."""
        if self._record.phase is Phase.DONE:
            return
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the top of a request
            self.fail(told(error))

    def _begin_dispatch(self, parsed: ParsedRequest, headers: Sequence[Header]) -> None:
        """Dispatch the parsed request for the first time, within its tenant's limits."""
        gateway, record, tenant = self._gateway, self._record, self._record.tenant
        if (headers or parsed.session or parsed.session_hints) and gateway.sessions is not None:
            parsed = gateway.sessions.named(parsed, headers)
        record.parsed = parsed
        record.flow = gateway.reader.flow_of(parsed, tenant, headers)
        self._dispatcher = dispatcher = self.dispatcher_type(gateway, record, parsed, self)
        if gateway.limiter is None or tenant.limits.unlimited:
            dispatcher.dispatch()
        else:
            self._charge(gateway.limiter, parsed, dispatcher)

    def _charge(self, limiter: LimiterPort, parsed: ParsedRequest, dispatcher: Dispatcher) -> None:
        """Dispatch as soon as the limits of the tenant allow it."""

        def charged(charge: Charge) -> None:
            self._go_on(lambda: admitted(charge))

        def admitted(charge: Charge) -> None:
            if charge.refusal is not None:
                raise limiter.rejection(charge)
            dispatcher.dispatch()

        record, expected_tokens = self._record, self._gateway.placing.expected_tokens(parsed)
        charge = limiter.admit(record.tenant, expected_tokens, charged)
        record.bill = Bill(limiter, charge)
        if charge.granted or charge.refusal is not None:
            admitted(charge)

    def _parse_large(self, endpoint: Endpoint, tenant: Tenant, headers: Sequence[Header]) -> Steps:
        """Do the rest of `begin` in steps; `finish` closes this if the request ends meanwhile."""
        try:
            body, reader = self._request.body, self._gateway.reader
            parsed = yield from reader.parse_in_steps(endpoint, body, tenant, headers)
            self._parsing = None
            if self._gateway.tokenizing is None:
                self._begin_dispatch(parsed, headers)
            else:
                self._begin_tokenizing(self._gateway.tokenizing, parsed, headers)
        except Exception as error:  # noqa: BLE001 - the top of a request
            self._parsing = None
            self.fail(told(error))

    # From its dispatcher (`router.gateway.dispatcher.Sender`).

    def send(self, decision: Decision, dispatcher: Dispatcher) -> None:
        """Send to the chosen worker, and reserve: the worker begins while this process counts the request."""
        gateway, request, record, parsed = self._gateway, self._request, self._record, dispatcher.parsed
        chosen, decided_s = decision.attempt, gateway.now_s()
        record.phase = TO_SENT[record.phase]
        record.attempts = attempts = record.attempts + 1
        record.attempt = chosen
        if attempts > 1:
            record.pair = record.tail = None
        if parsed.session and gateway.sessions is not None:
            gateway.sessions.placed(parsed, chosen.worker_id)
        if decision.decode is not None:
            assert self._share is not None
            client, retries = self.parties_of(dispatcher)
            self._attempt = self._share(gateway, decision, request, record, parsed, client, self, retries)
            return
        local, rank = gateway.registry.at_slot(chosen.chosen.slot), -1
        body: Sequence[bytes | memoryview] = (request.body,)
        if parsed.edits or not local.as_written:
            rank = gateway.fleet.at_slot(chosen.chosen.slot).rank
            body = self._edited(parsed, local, rank)
        reservation = Reservation(gateway, parsed, local, chosen, decision.placed)
        self._attempt = attempt = WorkerAttempt(
            gateway, record, parsed, self._client, self, dispatcher, reservation
        )
        send: SendRequest = local.pool.send
        sink: UpstreamSink = attempt
        if self.is_extended:
            attempt.client, attempt.retries = self.parties_of(dispatcher)
            send, sink = self.way_to(local), self._sink(attempt)
        context = b""
        if record.spans is not None:
            workers = {"cacheway.worker": chosen.worker_id}
            context = record.spans.sent(chosen, workers, gateway.now_s())
        lines = gateway.reader.forwarding.lines(request, record.worker_request_id, context, record.hops)
        if rank >= 0:
            lines += rank_line(rank)
        attempt.upstream = send(
            request.head, lines, body, sink, patient=not parsed.stream, resend=attempts == 1
        )
        try:
            reservation.make(decided_s)
        except BaseException:  # nothing must be at a worker without a reservation
            attempt.upstream.abort()
            raise

    def _edited(self, parsed: ParsedRequest, local: LocalWorker, rank: int) -> Sequence[bytes | memoryview]:
        """Return the body as a worker gets it, or one of its ranks."""
        gateway, body, edits = self._gateway, self._request.body, parsed.edits
        names = DIALECTS[local.engine].rank_fields if rank >= 0 and local.engine else ()
        if names and parsed.paths and parsed.endpoint in RANKED:
            edits = (*edits, appended(body, names, rank))
        pieces: Sequence[bytes | memoryview] = edited(body, edits) if edits else (body,)
        if local.worker.role == "decode":
            gateway.metrics.counts[WHOLE_AT_DECODE].add((local.worker.worker_id,))
            if gateway.pairs is not None:
                return gateway.pairs.alone(local.protocol, pieces)
        return pieces

    # Asked of an exchange that `is_extended`.

    def way_to(self, local: LocalWorker) -> SendRequest:
        """Return the function that sends to a worker; `router.picker` leaves that to a proxy."""
        return local.pool.send

    def parties_of(self, dispatcher: Dispatcher) -> tuple[ClientConnection, Retries]:
        """Return the client of an attempt, and the rules for further attempts."""
        return self._client, dispatcher

    def _sink(self, attempt: WorkerAttempt) -> UpstreamSink:
        return attempt

    def left(self) -> None:
        """Forget the attempt that failed; another follows."""
        self._attempt = None

    # How it ends.

    def fail(self, error: RouterError) -> None:
        """Answer with an error; nothing was sent yet."""
        record = self._record
        if record.phase is Phase.DONE:
            return
        if self._attempt is not None:
            self._attempt.reservation.release(abandoned=True)
        shown = without_worker(error) if record.hides_workers else error
        lines, body = error_answer(shown, record.path, record.request_id)
        if isinstance(error, Overloaded):
            self._gateway.reports.refusals.add(error.code, record.flow, error.retry_after_s)
        self._client.send_head(error.status, lines + record.lines(), length=len(body), body=body)
        self.finish(error.code, error.status, error)
        self._client.finish()

    def break_off(self, attempt: WorkerAttempt, error: RouterError) -> None:
        """End a half-sent answer: an event stream with an error event, any other by closing."""
        record = self._record
        self.finish(error.code, attempt.head.status, error)
        if attempt.events is not None and not attempt.events.torn:
            shown = without_worker(error) if record.hides_workers else error
            self._client.send_body(error_event(record.path, shown, record.request_id))
            self._client.finish()
        else:
            self._client.abort()

    def _deadline_passed(self) -> None:
        timeout_s = self._record.timeout_s
        message = f"The answer did not end within the {timeout_s:g} s that its request allowed."
        self._end_early(
            broken=StreamBroken(message, code="request_timeout"), unanswered=RequestExpired(timeout_s)
        )

    def _end_early(self, *, broken: RouterError, unanswered: RouterError) -> None:
        """End without the worker: a begun answer with ``broken``, otherwise with ``unanswered``."""
        phase, attempt = self._record.phase, self._attempt
        if phase is Phase.DONE:
            return
        if attempt is None:
            self.fail(unanswered)
            return
        attempt.abort()
        if phase is Phase.ANSWERING:
            attempt.reservation.release(abandoned=not self._record.first_byte_s)
            self.break_off(attempt, broken)
        else:
            self.fail(unanswered)

    def finish(self, outcome: str, status: int, error: RouterError | None = None) -> None:
        """Count the request out, release everything, and report."""
        record = self._record
        before = record.phase
        record.phase = TO_DONE[before]
        if record.deadline_timer is not None:
            record.deadline_timer.cancel()
            record.deadline_timer = None  # which refers to this
        if self._parsing is not None:
            self._parsing.close()
            self._parsing = None
        del self._gateway.sending.exchanges[self]
        if before is not ANSWERING and self._dispatcher is not None:
            self._dispatcher.end()
        self._dispatcher = self._attempt = None  # which refer to this
        record.ended(outcome, status, error)


def starting(
    gateway: Gateway,
    otherwise: StartExchange,
    share: ShareRequest | None = None,
    *,
    others: frozenset[bytes] = frozenset(),
    maker_of: Callable[[Sequence[Header]], Callable[..., RequestExchange]] = lambda _: RequestExchange,
) -> StartExchange:
    """Return the function that starts a gateway's exchanges; ``otherwise`` those of all ``others``' paths.

    ``maker_of`` sees the headers that `RequestReader.relevant` returns.
    """
    endpoint_of = {path: endpoint for path, endpoint in ENDPOINTS.items() if path not in others}.get

    def start(request: ClientRequest, connection: ClientConnection) -> Exchange:
        endpoint = endpoint_of(request.head.path)
        if endpoint is None:
            return otherwise(request, connection)
        headers = gateway.reader.relevant(request.head.headers)
        exchange = maker_of(headers)(gateway, request, connection, share)
        exchange.begin(headers, endpoint)
        return exchange

    return start
