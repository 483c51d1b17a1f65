"""``/v1/chat/completions``: role chunk, content chunks, finish reason, usage chunk, ``[DONE]``.

vLLM puts the finish reason into the last content chunk, SGLang into a chunk of its own.
"""

from collections.abc import Sequence
from typing import Any

import orjson

from loadtest.engine.replies.reply import DONE, Facts, emitted_text
from loadtest.engine.served import ServedJob


class ChatReply:
    """See `loadtest.engine.replies.reply.Reply`."""

    def __init__(self, facts: Facts, jobs: Sequence[ServedJob]) -> None:
        self._facts = facts
        self._jobs = jobs
        head = {
            "id": facts.id,
            "object": "chat.completion.chunk",
            "created": facts.created,
            "model": facts.model,
        }
        self._head = orjson.dumps(head)[:-1] + b',"choices":['
        # A content chunk is joined from prepared bytes: it is the one thing made per token.
        null = b"" if facts.vllm else b',"reasoning_content":null,"tool_calls":null'
        role = b"" if facts.vllm else b'"role":null,'
        more = b"" if facts.vllm else b',"matched_stop":null'
        self._before = [
            b'data: %s{"index":%d,"delta":{%s"content":' % (self._head, job.index, role) for job in jobs
        ]
        self._after = b'%s},"logprobs":null,"finish_reason":null%s}]%s}\n\n' % (
            null,
            more,
            b"" if facts.vllm else b',"usage":null',
        )

    def start(self) -> bytes:
        """One role chunk per choice."""
        return b"".join(
            self._chunk(job.index, {"role": "assistant", "content": ""}, None) for job in self._jobs
        )

    def delta(self, job: ServedJob, start: int, end: int) -> bytes:
        """A content chunk, or a piece of a tool call's arguments."""
        if job.output.tool is not None:
            return self._chunk(job.index, self._tool_delta(job, start, end), None)
        return self._before[job.index] + orjson.dumps(job.output.piece(start, end)) + self._after

    def finish(self, job: ServedJob, start: int, end: int, reason: str) -> bytes:
        """The last content and the finish reason."""
        stopped = {"stop_reason" if self._facts.vllm else "matched_stop": job.output.stopped_by}
        if not self._facts.vllm:
            last = self.delta(job, start, end) if end > start else b""
            return last + self._chunk(job.index, {"role": None, "content": None}, reason, stopped)
        if job.output.tool is not None:
            delta = self._tool_delta(job, start, end)
        else:
            delta = {"content": job.output.piece(start, end)}
        return self._chunk(job.index, delta, reason, stopped)

    def end(self) -> bytes:
        """Usage, if asked for, and the end mark."""
        if not self._facts.include_usage:
            return DONE
        return b'data: %s],"usage":%s}\n\n%s' % (
            self._head,
            orjson.dumps(self._facts.usage(self._jobs)),
            DONE,
        )

    def whole(self, reasons: Sequence[str]) -> bytes:
        """A chat completion object."""
        facts = self._facts
        choices = []
        for job, reason in zip(self._jobs, reasons, strict=True):
            text = emitted_text(job)
            message: dict[str, Any] = {"role": "assistant", "content": text, "reasoning_content": None}
            message["tool_calls"] = [] if facts.vllm else None
            if job.output.tool is not None:
                call = {"name": job.output.tool, "arguments": text}
                message["content"] = None
                message["tool_calls"] = [{"id": self._call_id(job), "type": "function", "function": call}]
            stopped = {"stop_reason" if facts.vllm else "matched_stop": job.output.stopped_by}
            choice = {"index": job.index, "message": message, "logprobs": None, "finish_reason": reason}
            choices.append(choice | stopped)
        return orjson.dumps(
            {
                "id": facts.id,
                "object": "chat.completion",
                "created": facts.created,
                "model": facts.model,
                "choices": choices,
                "usage": facts.usage(self._jobs),
            }
            | facts.transfer(self._jobs)
        )

    def _tool_delta(self, job: ServedJob, start: int, end: int) -> dict[str, Any]:
        piece = job.output.piece(start, end)
        if start:
            return {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}
        call = {"name": job.output.tool, "arguments": piece}
        return {"tool_calls": [{"index": 0, "id": self._call_id(job), "type": "function", "function": call}]}

    def _call_id(self, job: ServedJob) -> str:
        return f"call_{self._facts.id[-16:]}{job.index}"

    def _chunk(
        self, index: int, delta: dict[str, Any], reason: str | None, more: dict[str, Any] | None = None
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason} | (more or {})
        return b"data: %s%s]}\n\n" % (self._head, orjson.dumps(choice))
