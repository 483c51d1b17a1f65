"""Turns a request that has ended into a line of the request trace (`router.request_trace`)."""

from collections.abc import Callable

from policies import Attempt, Feedback, Usage
from router.gateway.identity import PromptHasher
from router.gateway.parsing import ParsedRequest
from router.request_trace import TraceLine


class Tracer:
    """Records requests for replay; ``feedback`` estimates lengths that the engine does not report."""

    def __init__(
        self,
        record: Callable[[TraceLine], None],
        hasher: PromptHasher,
        feedback: Feedback,
        now_us: Callable[[], int],
    ) -> None:
        self._record = record
        self._hasher = hasher
        self._feedback = feedback
        self._now_us = now_us

    def ended(
        self,
        parsed: ParsedRequest,
        attempt: Attempt | None,
        usage: Usage | None,
        *,
        outcome: str,
        status: int,
        duration_s: float,
        ttft_s: float | None,
        pieces: int,
        attempts: int,
    ) -> None:
        """Record a request with a prompt that has ended; see `TraceLine`."""
        hasher = self._hasher
        if usage is not None:
            prompt_tokens, output_tokens = usage.prompt_tokens, usage.completion_tokens
        else:
            text_tokens = parsed.prompt_bytes / self._feedback.bytes_per_token(parsed.model or "")
            prompt_tokens, output_tokens = max(round(parsed.prompt_token_ids + text_tokens), 1), None
        if output_tokens is None and parsed.stream:
            output_tokens = pieces
        self._record(
            TraceLine(
                arrived_unix_s=round(self._now_us() / 1e6 - duration_s, 6),
                duration_s=round(duration_s, 6),
                ttft_s=None if ttft_s is None else round(ttft_s, 6),
                status=status,
                outcome=outcome,
                endpoint=parsed.endpoint,
                model=parsed.model or "",
                stream=parsed.stream,
                session=f"{hasher.session_hash(parsed.tenant.encode(), parsed.session):016x}"
                if parsed.session
                else "",
                prompt_tokens=prompt_tokens,
                estimated=usage is None,
                output_tokens=output_tokens,
                cached_tokens=None if usage is None else usage.cached_tokens,
                predicted_tokens=0 if attempt is None else attempt.chosen.safe_tokens,
                worker_id="" if attempt is None else attempt.worker_id,
                attempts=attempts,
                block_tokens=hasher.block_tokens,
                prompt_blocks=round(
                    parsed.prompt_bytes / hasher.block_bytes + parsed.prompt_token_ids / hasher.block_tokens,
                    3,
                ),
                blocks=parsed.paths[0],
            )
        )
