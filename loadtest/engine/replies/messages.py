"""Anthropic's ``/v1/messages``: one content block, text or a tool call.

``input_tokens`` excludes ``cache_read_input_tokens`` (SGLang's anthropic/response_conversion.py).
"""

from collections.abc import Sequence
from typing import Any

import orjson

from loadtest.engine.replies.reply import Facts, emitted_text, named_event
from loadtest.engine.served import ServedJob

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessagesReply:
    """See `loadtest.engine.replies.reply.Reply`."""

    def __init__(self, facts: Facts, jobs: Sequence[ServedJob]) -> None:
        self._facts = facts
        self._job = jobs[0]

    def start(self) -> bytes:
        """The message, still empty, and its one block."""
        tool = self._job.output.tool
        block: dict[str, Any] = {"type": "text", "text": ""}
        if tool is not None:
            block = {"type": "tool_use", "id": self._call_id(), "name": tool, "input": {}}
        message = self._message([], None, output_tokens=0)
        return named_event({"type": "message_start", "message": message}) + named_event(
            {"type": "content_block_start", "index": 0, "content_block": block}
        )

    def delta(self, job: ServedJob, start: int, end: int) -> bytes:
        """More text, or more of the tool's input."""
        piece = job.output.piece(start, end)
        delta = {"type": "text_delta", "text": piece}
        if job.output.tool is not None:
            delta = {"type": "input_json_delta", "partial_json": piece}
        return named_event({"type": "content_block_delta", "index": 0, "delta": delta})

    def finish(self, job: ServedJob, start: int, end: int, reason: str) -> bytes:
        """The rest of the block, and why it ended."""
        last = self.delta(job, start, end) if end > start else b""
        stop = {"stop_reason": self._stop_reason(reason), "stop_sequence": job.output.stopped_by}
        usage = {"output_tokens": job.emitted_tokens}
        return (
            last
            + named_event({"type": "content_block_stop", "index": 0})
            + named_event({"type": "message_delta", "delta": stop, "usage": usage})
        )

    def end(self) -> bytes:
        """The end of the message."""
        return named_event({"type": "message_stop"})

    def whole(self, reasons: Sequence[str]) -> bytes:
        """A message object."""
        job = self._job
        text = emitted_text(job)
        block: dict[str, Any] = {"type": "text", "text": text}
        if job.output.tool is not None:
            # Arguments that were cut off are no JSON; engines then give an empty object.
            given = orjson.loads(text) if reasons[0] == "tool_calls" else {}
            block = {"type": "tool_use", "id": self._call_id(), "name": job.output.tool, "input": given}
        message = self._message([block], self._stop_reason(reasons[0]), output_tokens=job.emitted_tokens)
        return orjson.dumps(message | self._facts.transfer((job,)))

    def _message(
        self, content: list[dict[str, Any]], stop_reason: str | None, *, output_tokens: int
    ) -> dict[str, Any]:
        cached = self._job.cached_tokens if self._facts.cache_report else 0
        usage = {"input_tokens": self._job.prompt_tokens - cached, "output_tokens": output_tokens}
        if cached:
            usage["cache_read_input_tokens"] = cached
        return {
            "id": self._facts.id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self._facts.model,
            "stop_reason": stop_reason,
            "stop_sequence": self._job.output.stopped_by if stop_reason == "stop_sequence" else None,
            "usage": usage,
        }

    def _stop_reason(self, reason: str) -> str:
        if self._job.output.stopped_by is not None and reason == "stop":
            return "stop_sequence"
        return _STOP_REASONS.get(reason, "end_turn")

    def _call_id(self) -> str:
        return f"toolu_{self._facts.id[-16:]}"
