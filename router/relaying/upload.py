"""A form with files: streamed to its worker while it comes in from the client.

    head ──> looking for ``model`` ──found, or not needed──> placed ──connected──> streaming ──> answered
             `── held, `SPOOL_BYTES_MAX` at most              `── client paused     `── worker slow: it too

OpenAI's SDKs write ``model`` before the file; others may not. Where the fleet serves one model under any name
the worker is chosen without it. Where it serves several, the part before ``model`` is held, and counted
among the bodies that a process holds. Until the connection is made another worker may take the request; from
then on that worker alone has its body, so a failure is the answer.
"""

from collections.abc import Iterable, Sequence

from policies import Decision
from router.errors import ClientError, RouterError, UpstreamError
from router.fleet import LocalWorker
from router.gateway.attempt import WorkerAttempt
from router.gateway.dispatcher import Dispatcher
from router.gateway.endpoints import Endpoint
from router.gateway.exchange import RequestExchange
from router.gateway.gateway import Gateway
from router.gateway.phase import NEXT, Phase
from router.gateway.reservation import Reservation
from router.offsets import Edit, edited
from router.proxy import ClientRequest, Header, StreamingConnection, Upload, UpstreamUpload
from router.relaying.forms import FormReader, boundary_of
from router.relaying.relay import header_of, keep_apart, listed, renamed, without_prompt
from router.tenant import Tenant

SPOOL_BYTES_MAX = 32 * 1024 * 1024
"""Bytes of a form before its ``model``. OpenAI's audio API takes files of 25 MB."""


class StreamingDispatcher(Dispatcher):
    """Takes a request to a worker, and to another one while nothing of its body is gone."""

    def redispatched(self, attempt: WorkerAttempt, error: UpstreamError, status: int | None) -> bool:
        """Make another attempt if nothing was streamed yet; True if one has taken over."""
        assert isinstance(self.sender, StreamingExchange)
        if not self.sender.streaming:
            return super().redispatched(attempt, error, status)
        if status is None:
            self.failed_at(attempt.reservation.worker_failed(error), last=True)
        return False


class StreamingExchange(RequestExchange):
    """A request whose body comes while it is served; `UploadExchange` or `TunnelExchange`.

    Attributes:
        streaming: True once its worker gets the body.
    """

    dispatcher_type = StreamingDispatcher
    _client: StreamingConnection

    def __init__(
        self, gateway: Gateway, request: ClientRequest, client: StreamingConnection, endpoint: Endpoint
    ) -> None:
        super().__init__(gateway, request, client)
        self._endpoint = endpoint
        self._upstream: UpstreamUpload | None = None
        self.streaming = False

    def prompt_is_sent(self) -> None:
        """Nothing is held: the worker has it."""

    def send_streaming(
        self, decision: Decision, dispatcher: Dispatcher, upload: Upload, lines: bytes
    ) -> None:
        """Reserve, and send the head to the chosen worker."""
        gateway, request, record = self._gateway, self._request, self._record
        chosen = decision.attempt
        local = gateway.registry.at_slot(chosen.chosen.slot)
        record.phase = NEXT[record.phase][Phase.SENT]
        record.attempts += 1
        record.attempt, record.pair, record.tail = chosen, None, None
        reservation = Reservation(gateway, dispatcher.parsed, local, chosen, decision.placed)
        self._attempt = attempt = self.make_attempt(dispatcher, reservation)
        reservation.make(gateway.now_s())
        context = b""
        if record.spans is not None:
            workers = {"cacheway.worker": chosen.worker_id}
            context = record.spans.sent(chosen, workers, gateway.now_s())
        forwarding = gateway.reader.forwarding
        attempt.upstream = self._upstream = local.pool.send(
            head=request.head,
            lines=forwarding.lines(request, record.worker_request_id, context, record.hops) + lines,
            body=(),
            sink=attempt,
            patient=True,
            resend=False,
            upload=upload,
        )

    def make_attempt(self, dispatcher: Dispatcher, reservation: Reservation) -> WorkerAttempt:
        """Return the attempt that passes the answer on."""
        return WorkerAttempt(
            self._gateway, self._record, dispatcher.parsed, self._client, self, dispatcher, reservation
        )

    def left(self) -> None:
        """Forget the attempt that failed; another follows."""
        super().left()
        self._upstream = None

    def finish(self, outcome: str, status: int, error: RouterError | None = None) -> None:
        """Count the request out; nothing of its body is wanted any more."""
        self._upstream = None
        super().finish(outcome, status, error)

    # From the client's side (`router.proxy.BodySink`).

    def body_failed(self, error: RouterError) -> None:
        """The rest of the body is not accepted: free the worker, and answer."""
        self._end_early(broken=error, unanswered=error)

    # From the worker's side (`router.proxy.BodySource`).

    def worker_slow(self) -> None:
        """Read no more from the client: the worker takes no more."""
        self._client.pause_body()

    def worker_ready(self) -> None:
        """Read on."""
        self._client.resume_body()


class UploadExchange(StreamingExchange):
    """Serves one form."""

    def __init__(
        self, gateway: Gateway, request: ClientRequest, client: StreamingConnection, endpoint: Endpoint
    ) -> None:
        super().__init__(gateway, request, client, endpoint)
        self._held = bytearray()
        self._is_complete = self._placed = False
        self._edits: tuple[Edit, ...] = ()

    def _read_otherwise(self, tenant: Tenant, headers: Sequence[Header]) -> None:
        self._record.endpoint = self._endpoint
        keep_apart(self._endpoint, tenant)
        boundary = boundary_of(header_of(self._request.head.headers, b"content-type"))
        if not boundary:
            raise ClientError(
                f"{self._endpoint} takes a form: content-type: multipart/form-data; boundary=...",
                code="unsupported_media_type",
                status=415,
            )
        self._tenant, self._headers = tenant, headers
        allowed = self._gateway.reader.identifier.handover_allowed
        self._form = FormReader(boundary, handover_allowed=allowed)
        self._client.read_body(self)

    # From the client's side (`router.proxy.BodySink`).

    def body_data(self, data: bytes) -> None:
        """Pass a piece on, or hold it until it is known where to."""
        if self._record.phase is Phase.DONE:
            return
        self._record.request_bytes += len(data)
        try:
            self._form.feed(data)
        except ClientError as error:
            self.body_failed(error)
            return
        if self.streaming and self._upstream is not None:
            self._upstream.write(data)
            return
        self._held += data
        if not self._placed:
            self._go_on(self._look)

    def body_end(self) -> None:
        """The form is complete."""
        self._is_complete = True
        if self._record.phase is Phase.DONE:
            return
        if not self._placed:
            self._go_on(self._place)
        elif self.streaming and self._upstream is not None:
            self._upstream.end()

    def _look(self) -> None:
        form = self._form
        registry = self._gateway.registry
        one_model = (
            not self._gateway.reader.renames
            and registry.rules.unlisted_models != "refuse"
            and serves_one_model(registry.all())
        )
        if form.model is not None or form.ended or one_model:
            self._place()
        elif len(self._held) > SPOOL_BYTES_MAX:
            raise ClientError(
                f"The form has no model in its first {SPOOL_BYTES_MAX} bytes. Write it before the file.",
                code="model_too_late",
                param="model",
                status=413,
            )
        else:
            self._client.hold_body(len(self._held))

    def _place(self) -> None:
        """Choose a worker; the rest of the form waits at the client until it is connected."""
        self._placed = True
        self._client.pause_body()
        model, request_id = self._form.model, self._record.worker_request_id
        parsed = without_prompt(self._endpoint, model, self._tenant, request_id)
        parsed = renamed(self._form, self._gateway.reader.chosen(parsed, self._headers))
        self._edits = parsed.edits
        self._begin_dispatch(listed(self._gateway.reader, parsed), self._headers)

    # From its dispatcher and its worker.

    def send(self, decision: Decision, dispatcher: Dispatcher) -> None:
        """Reserve, and send the head to the chosen worker."""
        length = int(header_of(self._request.head.headers, b"content-length") or b"0")
        if length:
            length += sum(len(value) - (end - start) for start, end, value in self._edits)
        self.send_streaming(decision, dispatcher, Upload(self, length or None), b"")

    def worker_connected(self) -> None:
        """Send the held part, then let the client go on."""
        self.streaming = True
        held, self._held = b"".join(edited(bytes(self._held), self._edits)), bytearray()
        assert self._attempt is not None
        upstream = self._upstream
        if upstream is None:
            return
        upstream.write(held)
        self._client.hold_body(0)
        if self._is_complete:
            upstream.end()
        self._client.resume_body()


def serves_one_model(workers: Iterable[LocalWorker]) -> bool:
    """Return True if all workers that reported their models serve the same one, adapters not counted."""
    names = {served.model_id for local in workers for served in local.models or () if not served.parent}
    return len(names) <= 1
