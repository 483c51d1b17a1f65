"""OpenTelemetry spans: the time of a request, for the operator's tracing system.

    POST /v1/chat/completions     server; a child of the client's traceparent, if it sent one
    ├── queue                     each wait for a worker with room
    ├── decision                  the choice of a worker, with its predictions
    └── dispatch                  client; one for each attempt: the traceparent that its worker gets
        ├── prefill               sent ──> first byte; of a pair, ──> end of the prefill leg
        ├── hand-over             of a pair: ──> the KV is at the decode worker
        └── decode                ──> last byte; an answer that is not streamed has the legs of a pair only

Spans hold ids, names and numbers, never text. The client's traceparent decides whether its request is traced,
else its trace id is drawn. While tracing is off nothing of this is imported. A thread sends spans in batches
over OTLP/HTTP and drops them if the collector does not answer. Names follow the semantic conventions for HTTP
and generative AI.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from threading import Thread

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from policies import Attempt, Usage
from router.gateway.forwarding import CONTEXT_HEADERS
from router.proxy import Header

CLOSE_TIMEOUT_S = 2.0
"""Longest wait for the last spans at the end of the process."""

_PROPAGATOR = TraceContextTextMapPropagator()


class RequestSpans:
    """The spans of one request. Times are monotonic seconds; ``origin_ns`` is the Unix time of their zero."""

    __slots__ = ("_attempt", "_context", "_legs_s", "_origin_ns", "_root", "_sent_s", "_tracer")

    def __init__(self, tracer: Tracer, root: Span, origin_ns: int) -> None:
        self._tracer = tracer
        self._root = root
        self._context = set_span_in_context(root)
        self._origin_ns = origin_ns
        self._attempt: Span | None = None
        self._sent_s = 0.0
        self._legs_s: list[float] = []

    def waited(self, since_s: float, until_s: float) -> None:
        """Add a wait for a worker with room."""
        self._add("queue", self._root, since_s, until_s)

    def sent(self, attempt: Attempt, workers: Mapping[str, str], now_s: float) -> bytes:
        """Begin an attempt at ``workers`` (by attribute); return header lines for them."""
        chosen = attempt.chosen
        predicted: dict[str, str | int | float] = {
            "cacheway.reason": chosen.reason,
            "cacheway.cached_tokens": int(chosen.safe_tokens),
            "cacheway.uncached_tokens": int(chosen.uncached_tokens),
            "cacheway.estimated_ttft_s": float(chosen.estimated_ttft_s),
        }
        self._add("decision", self._root, attempt.started_s, now_s, {**predicted, **workers})
        self._attempt = self._tracer.start_span(
            "dispatch", self._context, SpanKind.CLIENT, dict(workers), start_time=self._ns(now_s)
        )
        self._sent_s = now_s
        self._legs_s.clear()
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, set_span_in_context(self._attempt))
        return b"".join(b"%b: %b\r\n" % (name.encode(), value.encode()) for name, value in carrier.items())

    def leg_over(self, now_s: float) -> None:
        """End the prefill leg of a pair, or after it the hand-over."""
        if len(self._legs_s) < 2:
            self._legs_s.append(now_s)

    def left(self, code: str, now_s: float) -> None:
        """End a failed attempt."""
        if self._attempt is not None:
            self._attempt.set_status(StatusCode.ERROR, code)
            self._attempt.end(self._ns(now_s))
            self._attempt = None

    def ended(
        self,
        outcome: str,
        status: int,
        now_s: float,
        *,
        first_byte_s: float = 0.0,
        streamed: bool = False,
        fields: Mapping[str, str | int | bool] | None = None,
        usage: Usage | None = None,
    ) -> None:
        """End all spans, at the time of the last byte; ``first_byte_s`` is 0 if there was none.

        ``outcome`` and ``status`` are those of the request's log line, ``fields`` more attributes.
        """
        root, failed = self._root, outcome != "completed"
        if self._attempt is not None:
            self._tell_legs(self._attempt, now_s, first_byte_s if streamed else 0.0)
            if failed:
                self._attempt.set_status(StatusCode.ERROR, outcome)
            self._attempt.end(self._ns(now_s))
        root.set_attributes(
            {**(fields or {}), "cacheway.outcome": outcome, "http.response.status_code": status}
        )
        if usage is not None:
            root.set_attribute("gen_ai.usage.input_tokens", usage.prompt_tokens)
            if usage.cached_tokens is not None:
                root.set_attribute("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens)
            if usage.completion_tokens is not None:
                root.set_attribute("gen_ai.usage.output_tokens", usage.completion_tokens)
        if failed:
            root.set_attribute("error.type", outcome)
        if status >= 500:  # in a server's span, a client's mistake or departure is no error
            root.set_status(StatusCode.ERROR, outcome)
        root.end(self._ns(now_s))

    def _tell_legs(self, attempt: Span, now_s: float, first_byte_s: float) -> None:
        ends_s = [*self._legs_s] or ([first_byte_s] if first_byte_s else [])
        if not ends_s:
            return
        begun_s = self._sent_s
        for name, end_s in zip(("prefill", "hand-over"), ends_s, strict=False):
            self._add(name, attempt, begun_s, end_s)
            begun_s = end_s
        if len(self._legs_s) != 1:  # a pair that ended between its legs has not begun to decode
            self._add("decode", attempt, begun_s, now_s)

    def _add(
        self,
        name: str,
        parent: Span,
        since_s: float,
        until_s: float,
        attributes: dict[str, str | int | float] | None = None,
    ) -> None:
        context = self._context if parent is self._root else set_span_in_context(parent)
        span = self._tracer.start_span(name, context, attributes=attributes, start_time=self._ns(since_s))
        span.end(self._ns(max(until_s, since_s)))

    def _ns(self, monotonic_s: float) -> int:
        return self._origin_ns + int(monotonic_s * 1e9)


class Spans:
    """Makes the spans of a process; traces ``ratio`` of the requests whose client does not decide."""

    def __init__(
        self,
        processor: SpanProcessor,
        *,
        ratio: float,
        resource: Mapping[str, str],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(ratio)),
            resource=Resource.create(dict(resource)),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("cacheway")
        self._now_s = now_s

    def begin(
        self, method: bytes, path: bytes, headers: Sequence[Header], request_id: bytes, received_s: float
    ) -> RequestSpans | None:
        """Begin the spans of a request, maybe in the context of its headers; None if it is not traced."""
        carrier = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in headers
            if name in CONTEXT_HEADERS
        }
        origin_ns = time.time_ns() - int(self._now_s() * 1e9)
        root = self._tracer.start_span(
            f"{method.decode('latin-1')} {path.decode('latin-1')}",
            _PROPAGATOR.extract(carrier) if carrier else None,
            SpanKind.SERVER,
            {
                "http.request.method": method.decode("latin-1"),
                "url.path": path.decode("latin-1"),
                "cacheway.request_id": request_id.decode("latin-1"),
            },
            start_time=origin_ns + int(received_s * 1e9),
        )
        return RequestSpans(self._tracer, root, origin_ns) if root.is_recording() else None

    def close(self) -> None:
        """Send the remaining spans, for at most `CLOSE_TIMEOUT_S`, even if the collector is gone."""
        thread = Thread(target=self._provider.shutdown, name="spans", daemon=True)
        thread.start()
        thread.join(CLOSE_TIMEOUT_S)
