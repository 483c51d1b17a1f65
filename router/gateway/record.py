"""The record of one request, and its reports when the request ends.

The exchange (`router.gateway.exchange`) notes here what happens; nothing here decides anything. Reports go to

    the client     `lines`, with the head of its answer
    metrics        `Metrics.ended`, for all outcomes, and the times of a stream
    its tenant     real use is settled with its limits (`router.tenants.Limiter`)
    the trace      a line for replay, if it had a prompt (`router.request_trace`)
    the log        one line
    feedback       `answered`, of completed requests only: the engine's counts
    the views      the newest requests are kept for a while (`router.gateway.recent_decisions`)

A completed request is settled and traced in `answered`, with the engine's own counts, when its answer has
left.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from policies import Attempt, Slots, Usage
from router.errors import RequestExpired, RouterError
from router.gateway.gateway import Gateway, LimiterPort
from router.gateway.parsing import ParsedRequest
from router.gateway.phase import Phase
from router.gateway.recent_decisions import TEXT_CHARS_MAX, RecentDecision
from router.gateway.reservation import SharedReservation
from router.gateway.usage import find_usage
from router.request_trace import TraceLine
from router.shared import Charge
from router.tail_buffer import TailBuffer

if TYPE_CHECKING:
    from router.gateway.spans import RequestSpans

logger = logging.getLogger(__name__)

CLIENTS_DOING = ("client_left", RequestExpired.code)
"""Ends of a request that are no fault of its worker."""

REQUESTS_FAULT = frozenset((400, 404, 405, 409, 413, 415, 422))
"""Statuses with which an engine refuses what a client wrote. 401, 403 and 429 are matters of the fleet."""


_LINES = b"x-request-id: %b\r\nx-cacheway-worker: %b\r\nx-cacheway-cached-tokens: %d\r\n"


def outcome_of(status: int) -> str:
    """Return how a request ended that a worker answered to the end."""
    if status < 400:
        return "completed"
    return "worker_refused" if status in REQUESTS_FAULT else "worker_error"


class Bill(NamedTuple):
    """A tenant's charge for a request."""

    limiter: LimiterPort
    charge: Charge


class RequestRecord(RecentDecision, eq=False, kw_only=True):
    """A request, without the prompt's text.

    Attributes:
        is_named: True if its headers may give it an id or a tenant.
        hops: Gateways passed before this one.
        flow: ``CLASS/TENANT``, the unit of fairness.
        arrived_us: Log time when it was complete; 0 until it is placed for the first time.
        waits_since_s: Monotonic seconds when it last began to wait; 0 if it never did.
        pieces: Pieces of the answer's body.
        tail: End of the answer, with the engine's counts.
        only: Slots of the workers that may serve it; None for any.
        timeout_s: The client's own timeout; 0 without one.
    """

    gateway: Gateway
    is_named: bool = False
    hops: int = 0
    hides_workers: bool = False
    flow: str = ""
    phase: Phase = Phase.READING
    bill: Bill | None = None
    pair: SharedReservation | None = None
    arrived_us: int = 0
    waits_since_s: float = 0.0
    bytes_sent: int = 0
    pieces: int = 0
    tail: TailBuffer | bytes | None = None
    spans: "RequestSpans | None" = None
    only: Slots | None = None
    timeout_s: float = 0.0
    deadline_timer: asyncio.TimerHandle | None = None

    def waited(self) -> None:
        """Add a wait that ended."""
        now_s = self.gateway.now_s()
        self.wait_s += now_s - self.waits_since_s
        if self.spans is not None:
            self.spans.waited(self.waits_since_s, now_s)

    def lines(self) -> bytes:
        """Return header lines of the answer, in place of the worker's of these names."""
        attempt, pair = self.attempt, self.pair
        if attempt is not None and pair is None and self.bill is None and not self.hides_workers:
            return _LINES % (self.request_id, attempt.worker_id.encode(), attempt.chosen.safe_tokens)
        shown: Callable[[str], bytes] = str.encode
        if self.hides_workers:
            reader = self.gateway.reader
            if not reader.shows_names:
                return b"x-request-id: %b\r\n%b" % (self.request_id, self._limit_lines())
            shown = reader.names.name_of
        answering = attempt if pair is None else pair.decode_attempt
        worker = shown(answering.worker_id) if answering else b"none"
        lines = _LINES % (self.request_id, worker, attempt.chosen.safe_tokens if attempt else 0)
        if pair is not None:
            lines += b"x-cacheway-prefill-worker: %b\r\n" % shown(pair.attempt.worker_id)
        return lines if self.bill is None else lines + self._limit_lines()

    def _limit_lines(self) -> bytes:
        return b"" if self.bill is None else self.bill.limiter.lines(self.bill.charge)

    def ended(self, outcome: str, status: int, error: RouterError | None = None) -> None:
        """Count and log; ``error`` is told to the client, if it was ours.

        ``outcome`` is that of `outcome_of`, ``client_left`` or the code of the error, ``status``
        the HTTP status that the client saw or would have seen.
        """
        gateway = self.gateway
        self.ended_s = gateway.now_s()
        reports = gateway.reports
        if reports.logs_all or reports.logs(outcome):
            reports.request_log(self._log_fields(outcome, status, error))
        if outcome != "completed":  # otherwise once the engine's counts are known
            if error is not None:
                self.detail = error.message[:TEXT_CHARS_MAX]
            self.close(outcome, status, gateway.log.now_us())

    def _log_fields(self, outcome: str, status: int, error: RouterError | None) -> dict[str, object]:
        parsed, attempt = self.parsed, self.attempt
        fields: dict[str, object] = {
            "event": "request.finished",
            "request_id": self.request_id.decode("latin-1"),
            "endpoint": self.endpoint or self.path.decode("latin-1")[:200],
            "client": self.client,
            "status": status,
            "outcome": outcome,
            "duration_s": int((self.ended_s - self.received_s) * 1e6) / 1e6,  # a third of rounding's cost
            "request_bytes": self.request_bytes,
            "answer_bytes": self.bytes_sent,
            "attempts": self.attempts,
        }
        if self.is_named:
            if self.attempts and self.request_id is not self.worker_request_id:
                fields["worker_request_id"] = self.worker_request_id.decode("latin-1")
            if self.tenant.name:
                fields["tenant"] = self.tenant.name
        if parsed is not None:
            fields["model"] = parsed.model
            fields["stream"] = parsed.stream
            if parsed.session:
                fields["session"] = parsed.session[:TEXT_CHARS_MAX]
            if parsed.choice is not None:
                fields |= parsed.choice.told()
        if attempt is not None:
            chosen = attempt.chosen
            fields |= {
                "worker_id": attempt.worker_id,
                "reason": chosen.reason,
                "cached_tokens": chosen.safe_tokens,
                "uncached_tokens": chosen.uncached_tokens,
                "estimated_ttft_s": int(chosen.estimated_ttft_s * 1e6) / 1e6,
            }
            if answered_s := self.began_s or self.first_byte_s:
                fields["ttft_s"] = int((answered_s - self.received_s) * 1e6) / 1e6
        if self.continued:
            fields["continued"] = self.continued
        if self.pair is not None:
            fields |= self.pair.log_fields()
        if self.waits_since_s:
            fields["flow"] = self.flow
            fields["wait_s"] = int(self.wait_s * 1e6) / 1e6
        if error is not None:
            fields["detail"] = error.message
        return fields

    def answered(self, status: int, now_us: int, parsed: ParsedRequest, attempt: Attempt) -> None:
        """Learn from a completed answer that ended at log time ``now_us``, and settle and trace it."""
        gateway, pair, feedback = self.gateway, self.pair, self.gateway.placing.feedback
        usage = find_usage(parsed.endpoint, self.tail or b"")
        if pair is not None:
            usage = pair.understood(find_usage(parsed.endpoint, pair.usage), usage)
        elif usage is not None:
            usage = feedback.understood(attempt.worker_id, usage)
        self.close("completed", status, now_us, usage)
        prefill_s, decode_s = None, 0.0
        if parsed.stream:
            decode_s = self.ended_s - self.first_byte_s
            tokens = (usage.completion_tokens if usage is not None else 0) or self.pieces
            error_s = None
            if attempt.started_s:  # otherwise the start of its prefill is not known
                prefill_s = self.first_byte_s - attempt.started_s
                error_s = prefill_s - attempt.chosen.estimated_ttft_s
            gateway.metrics.streamed(self.answered_s - self.received_s, error_s, decode_s, tokens)
        if usage is None:
            return
        if gateway.tokenizing is not None and parsed.tokenized_bytes and len(parsed.paths) == 1:
            gateway.tokenizing.answered(parsed, usage.prompt_tokens)
        if pair is not None:
            flushed = pair.learn(usage, self.first_byte_s, now_us)
        else:
            flushed = feedback.answered(parsed, attempt, usage, prefill_s, now_us, decode_s)
        if flushed:
            logger.warning(
                "worker has lost its cache: what was believed to be cached there is forgotten",
                extra={"event": "worker.flushed", "worker_id": attempt.worker_id},
            )

    def close(self, outcome: str, status: int, now_us: int, usage: Usage | None = None) -> None:
        """Report the end to its tenant's limits, the trace, the spans and the views, and keep no more."""
        parsed, reports = self.parsed, self.gateway.reports
        self.outcome = outcome
        self.status = status
        self.ended_us = now_us
        self.usage = usage
        self.tail = None
        if self.bill is not None:
            self._settle(self.bill, outcome, usage)
            self.bill = None
        if self.spans is not None:
            self._end_spans(self.spans, outcome, status, usage)
            self.spans = None
        if parsed is not None:
            if reports.trace_request is not None and parsed.paths:
                reports.trace_request(self._traced(parsed, outcome, status, usage))
            if parsed.choice is not None:
                self.model_choice = parsed.choice.ended(self.attempt)
        if self.pair is not None:
            self.decode_worker, self.offload = self.pair.decode_attempt.worker_id, self.pair.offload
            self.pair = None
        self.gateway.metrics.ended(self)
        reports.decisions.add(self)

    def _settle(self, bill: Bill, outcome: str, usage: Usage | None = None) -> None:
        """Settle the tokens really used; a client that ends its request used the prompt and its pieces."""
        (limiter, charge), attempt = bill, self.attempt
        if attempt is None:
            limiter.withdraw(charge)
            return
        tokens = 0
        if usage is not None:
            output_tokens = usage.completion_tokens
            tokens = usage.prompt_tokens + (self.pieces if output_tokens is None else output_tokens)
        elif outcome == "completed":
            tokens = charge.tokens
        elif outcome not in ("worker_error", "worker_refused") and (
            self.answered_s or outcome in CLIENTS_DOING
        ):
            tokens = round(attempt.chosen.safe_tokens + attempt.chosen.uncached_tokens) + self.pieces
        limiter.settle(charge, tokens)

    def _end_spans(
        self, spans: "RequestSpans", outcome: str, status: int, usage: Usage | None = None
    ) -> None:
        fields: dict[str, str | int | bool] = {"cacheway.attempts": self.attempts}
        if self.continued:
            fields["cacheway.continued"] = self.continued
        if self.attempts:
            fields["cacheway.worker_request_id"] = self.worker_request_id.decode("latin-1")
        parsed = self.parsed
        if parsed is not None:
            fields["gen_ai.request.model"] = (parsed.model or "")[:TEXT_CHARS_MAX]
            fields["gen_ai.request.stream"] = parsed.stream
            if parsed.session:
                fields["gen_ai.conversation.id"] = parsed.session[:TEXT_CHARS_MAX]
        if self.tenant.configured:
            fields["cacheway.tenant"] = self.tenant.name
        spans.ended(
            outcome,
            status,
            self.gateway.now_s(),
            first_byte_s=self.first_byte_s,
            streamed=parsed is not None and parsed.stream,
            fields=fields,
            usage=usage,
        )

    def _traced(self, parsed: ParsedRequest, outcome: str, status: int, usage: Usage | None) -> TraceLine:
        gateway, attempt, hasher = self.gateway, self.attempt, self.gateway.reader.hasher
        duration_s = gateway.now_s() - self.received_s
        if usage is not None:
            prompt_tokens, output_tokens = usage.prompt_tokens, usage.completion_tokens
        else:
            text_tokens = parsed.prompt_bytes / gateway.placing.feedback.bytes_per_token(parsed.model or "")
            prompt_tokens, output_tokens = max(round(parsed.prompt_token_ids + text_tokens), 1), None
        if output_tokens is None and parsed.stream:
            output_tokens = self.pieces
        session = ""
        if parsed.session:
            session = f"{hasher.session_hash(parsed.tenant.encode(), parsed.session):016x}"
        blocks = parsed.prompt_bytes / hasher.block_bytes + parsed.prompt_token_ids / hasher.block_tokens
        return TraceLine(
            arrived_unix_s=round(gateway.log.now_us() / 1e6 - duration_s, 6),
            duration_s=round(duration_s, 6),
            ttft_s=round(self.answered_s - self.received_s, 6) if self.answered_s else None,
            status=status,
            outcome=outcome,
            endpoint=parsed.endpoint,
            model=parsed.model or "",
            stream=parsed.stream,
            session=session,
            prompt_tokens=prompt_tokens,
            estimated=usage is None,
            output_tokens=output_tokens,
            cached_tokens=None if usage is None else usage.cached_tokens,
            predicted_tokens=0 if attempt is None else attempt.chosen.safe_tokens,
            worker_id="" if attempt is None else attempt.worker_id,
            attempts=self.attempts,
            block_tokens=hasher.block_tokens,
            prompt_blocks=round(blocks, 3),
            blocks=parsed.paths[0],
        )
