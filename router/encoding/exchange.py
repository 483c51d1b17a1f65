"""One call of a language worker to an encoder, from its last byte to the last byte of its answer.

    begin ──/encode──> choose ──> send ──────────────────────────> answering ──> done
      │                  ^           │ failed, nothing answered: the next encoder, with all registrations
      │                  └───────────┘
      └──the others──> where its part is ──> send ───────────────> answering ──> done
                        └─ not placed yet: waits until it is, for `WAIT_S` at most

In any case the part's reservation is released, and the worker gets exactly one answer.
"""

import asyncio
import logging
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from router.encoding.calls import decoded
from router.errors import (
    ClientError,
    Overloaded,
    RouterError,
    ShuttingDown,
    UpstreamError,
    WorkerSilent,
)
from router.fleet import LocalWorker
from router.gateway.answer import answered_error, crashed, told, without_worker
from router.gateway.blame import Blame, Failure
from router.gateway.endpoints import EncoderPath
from router.gateway.forwarding import hops_of
from router.metric_families import ENCODER_PARTS, REDISPATCHES, REQUESTS_AT_FAULT, UPSTREAM_ERRORS
from router.proxy import (
    ClientConnection,
    ClientRequest,
    SilentSink,
    UpstreamRequest,
    UpstreamSink,
    error_answer,
)

if TYPE_CHECKING:
    from router.encoding.encoding import Encoding

logger = logging.getLogger(__name__)

ATTEMPTS_MAX = 3


class PartEnd(StrEnum):
    """Outcome of a part."""

    COMPLETED = "completed"
    FAILED = "failed"
    REJECTED = "rejected"
    CLIENT_LEFT = "client_left"


WAIT_S = 5.0
"""Seconds that a call waits for its part, which its language worker sends at about the same time."""


class EncoderExchange:
    """Serves one call through the `router.proxy` ports."""

    def __init__(self, encoding: "Encoding", request: ClientRequest, client: ClientConnection) -> None:
        self._encoding = encoding
        self._gateway = encoding.gateway
        self._request = request
        self._client = client
        self._path = EncoderPath(request.head.path.decode())
        self._part, self._key, self._media = "", 0, 0
        self._local: LocalWorker | None = None
        self._upstream: UpstreamRequest | None = None
        self._release: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tried: list[int] = []
        self._blame: Blame | None = None
        self._request_id = self._gateway.reader.next_request_id()
        self._hops = 0
        self._hides_workers = False
        self._sent_us = 0
        self._status = 0
        self._sending = False
        self._done = False

    @property
    def received_s(self) -> float:
        """Monotonic seconds when the call was complete."""
        return self._request.received_s

    # From the client's side (`router.proxy.Exchange`).

    def begin(self) -> None:
        """Find the encoder and send; or answer with the error at once."""
        gateway = self._gateway
        gateway.sending.exchanges[self] = None
        gateway.sending.exchanges.watch()
        try:
            headers = gateway.reader.relevant(self._request.head.headers)
            self._hides_workers = gateway.reader.hides_workers(headers)
            tenant = gateway.reader.door.tenant_of(headers)
            gateway.sending.admit(self._request.refusal)
            self._hops = hops_of(headers)
            self._encoding.check()
            call = decoded(self._request.body)
            self._part = call.part(tenant.name)
            if self._path is EncoderPath.ENCODE:
                self._key, self._media = call.key, len(call.mm_items)
                self._encode()
            else:
                if self._path is EncoderPath.RECEIVE_URL:
                    self._encoding.registrations.add(self._part, self._request)
                self._follow()
        except Exception as error:  # noqa: BLE001 - the top of a request
            self._fail(told(error))

    def pause(self) -> None:
        """The language worker reads too slowly."""
        if self._upstream is not None:
            self._upstream.pause()

    def resume(self) -> None:
        """It caught up."""
        if self._upstream is not None:
            self._upstream.resume()

    def client_left(self) -> None:
        """Drop the answer: the client left."""
        if not self._done:
            self._abort()
            self._finish(PartEnd.CLIENT_LEFT)

    def interrupt(self) -> None:
        """The process ends before the answer does."""
        self._end_early(ShuttingDown())

    # From the encoder's side (`router.proxy.UpstreamSink`).

    def upstream_head(self, status: int, lines: bytes, length: int | None) -> None:
        """Pass the head on, unless another encoder may do better."""
        assert self._local is not None
        if status >= 500:
            error = answered_error(status)
            self._failed_at(self._local, error)
            if self._again(self._local, error):
                return
        else:
            now_us = self._gateway.log.now_us()
            self._gateway.registry.circuits.succeeded(self._local, now_us, self._sent_us)
            if self._blame is not None and status < 400:
                self._blame.answered(now_us)
        self._sending, self._status = True, status
        if not self._hides_workers:
            lines += b"x-cacheway-worker: %b\r\n" % self._local.worker.worker_id.encode()
        self._client.send_head(status, lines, length=length)

    def upstream_data(self, data: bytes) -> None:
        """Pass bytes on."""
        self._client.send_body(data)

    def upstream_end(self) -> None:
        """The answer is complete."""
        self._finish(PartEnd.COMPLETED if self._status < 400 else PartEnd.FAILED)
        self._client.finish()

    def upstream_failed(self, error: UpstreamError) -> None:
        """Ask another encoder if nothing was answered yet."""
        assert self._local is not None
        self._failed_at(self._local, error)
        if self._sending:
            self._finish(PartEnd.FAILED)
            self._client.abort()
        elif not self._again(self._local, error):
            self._fail(error)

    # From the gateway.

    def out_of_time(self) -> None:
        """It took longer than the gateway allows."""
        self._end_early(
            WorkerSilent(
                f"The encoder took longer than {self._gateway.sending.exchanges.timeout_s:g} s.",
                code="request_timeout",
            )
        )

    def renew(self, _left_us: int, _now_us: int) -> None:
        """This replica was given up although it lives; a part in flight weighs too little to say it again."""

    # Inside.

    def _encode(self) -> None:
        """Choose an encoder for the part; raise NoWorker if there is none."""
        local = self._encoding.choose(self._key, np.array(self._tried, dtype=np.intp))
        self._release = self._encoding.place(self._part, len(self._tried), local)
        for registration in self._encoding.registrations.of(self._part) if self._tried else ():
            # Its first answer has been passed on; if the part fails again, its own exchange reports that.
            self._forward(registration, local, SilentSink())
        self._send(local)

    def follow(self, local: LocalWorker) -> None:
        """The part has been placed: send the call there."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            self._send(local)
        except Exception:  # noqa: BLE001 - the top of a turn of the loop
            self._fail(crashed())

    def _follow(self) -> None:
        """Send the call to its part's encoder, or let it wait; raise RequestRejected if too many do."""
        local = self._encoding.whereabouts(self._part)
        if local is not None:
            self._send(local)
            return
        self._encoding.wait(self._part, self)
        self._timer = self._gateway.loop.call_later(WAIT_S, self._waited_in_vain)

    def _waited_in_vain(self) -> None:
        self._timer = None
        error = ClientError(
            "No encoder has this part of a request: its /encode did not come.",
            code="unknown_part",
            param="req_id",
            status=404,
        )
        self._fail(error)

    def _send(self, local: LocalWorker) -> None:
        self._local = local
        self._sent_us = self._gateway.log.now_us()
        self._upstream = self._forward(self._request, local, self)

    def _forward(self, request: ClientRequest, local: LocalWorker, sink: UpstreamSink) -> UpstreamRequest:
        return local.pool.send(
            head=request.head,
            lines=self._gateway.reader.forwarding.lines(request, self._request_id, hops=self._hops),
            body=(request.body,),
            sink=sink,
            patient=True,
        )

    def _failed_at(self, local: LocalWorker, error: UpstreamError) -> None:
        """Decide whether the encoder or the call is at fault (`router.gateway.blame`)."""
        gateway, now_us = self._gateway, self._gateway.log.now_us()
        gateway.registry.noticed(local, error, now_us)
        gateway.metrics.counts[UPSTREAM_ERRORS].add((local.worker.worker_id, error.code))
        if self._blame is None:
            self._blame = Blame(gateway.registry, self._request_id)
        failure = Failure(local, self._sent_us, error.code, error.asked)
        if self._blame.failed(failure, now_us, last=self._sending or not self._may_go_on):
            gateway.metrics.sums[REQUESTS_AT_FAULT].add(1)

    @property
    def _may_go_on(self) -> bool:
        """Return True if another encoder may be asked."""
        return self._path is EncoderPath.ENCODE and len(self._tried) + 1 < ATTEMPTS_MAX

    def _again(self, local: LocalWorker, error: UpstreamError) -> bool:
        """Send the part to another encoder, if allowed; return True if that has taken over."""
        if not self._may_go_on:
            return False
        self._abort()
        self._released()
        self._tried += local.slots
        self._gateway.metrics.counts[REDISPATCHES].add((error.code,))
        logger.info(
            "part redispatched",
            extra={
                "event": "part.redispatched",
                "worker_id": local.worker.worker_id,
                "reason": error.code,
                "detail": error.message,
            },
        )
        try:
            self._encode()
        except RouterError:
            self._fail(error)
        except Exception:  # noqa: BLE001 - the top of a turn of the loop
            self._fail(crashed())
        return True

    def _fail(self, error: RouterError) -> None:
        """Answer with an error; nothing was sent yet."""
        if self._done:
            return
        self._sending = True
        lines, body = error_answer(without_worker(error) if self._hides_workers else error)
        self._client.send_head(error.status, lines, length=len(body), body=body)
        rejected = isinstance(error, ClientError | Overloaded)
        self._finish(PartEnd.REJECTED if rejected else PartEnd.FAILED)
        self._client.finish()

    def _end_early(self, error: RouterError) -> None:
        if self._done:
            return
        self._abort()
        if self._sending:
            self._finish(PartEnd.FAILED)
            self._client.abort()
        else:
            self._fail(error)

    def _abort(self) -> None:
        if self._upstream is not None:
            self._upstream.abort()
            self._upstream = None

    def _released(self) -> None:
        if self._release is not None:
            self._release()
            self._release = None

    def _finish(self, end: PartEnd) -> None:
        """Release everything, and report the end."""
        self._done = True
        if self._timer is not None:
            self._timer.cancel()
        self._encoding.wait_no_more(self)
        self._upstream = None
        self._released()
        self._gateway.sending.exchanges.pop(self, None)
        if self._path is EncoderPath.ENCODE:
            self._gateway.metrics.counts[ENCODER_PARTS].add((end.value,))
        if self._path is EncoderPath.ENCODE and self._part:
            self._encoding.registrations.discard(self._part)
            logger.info(
                "part encoded" if end is PartEnd.COMPLETED else "part not encoded",
                extra={
                    "event": "part.ended",
                    "outcome": end.value,
                    "worker_id": self._local.worker.worker_id if self._local is not None else None,
                    "media": self._media,
                    "attempts": len(self._tried) + 1,
                    "duration_s": self._gateway.now_s() - self.received_s,
                },
            )
