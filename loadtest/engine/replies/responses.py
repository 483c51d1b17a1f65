"""OpenAI's ``/v1/responses``: one output item, a message or a function call.

A stream is named, numbered events; the last one repeats the whole response.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from loadtest.engine.replies.reply import Facts, emitted_text, named_event
from loadtest.engine.served import ServedJob


class ResponsesReply:
    """See `loadtest.engine.replies.reply.Reply`."""

    def __init__(self, facts: Facts, jobs: Sequence[ServedJob], body: Mapping[str, Any]) -> None:
        self._facts = facts
        self._job = jobs[0]
        self._body = body
        self._events = 0
        self._reason = "stop"
        self._item_id = f"{'fc' if self._job.output.tool else 'msg'}_{facts.id.removeprefix('resp_')}"

    def start(self) -> bytes:
        """The response and its item, still empty."""
        response = self._response("in_progress", [])
        data = self._event("response.created", response=response)
        data += self._event("response.in_progress", response=response)
        data += self._event("response.output_item.added", output_index=0, item=self._item("", "in_progress"))
        if self._job.output.tool is None:
            data += self._part_event("response.content_part.added", part=_part(""))
        return data

    def delta(self, job: ServedJob, start: int, end: int) -> bytes:
        """More text, or more of the arguments."""
        piece = job.output.piece(start, end)
        if job.output.tool is not None:
            return self._event(
                "response.function_call_arguments.delta", item_id=self._item_id, output_index=0, delta=piece
            )
        return self._part_event("response.output_text.delta", delta=piece, logprobs=[])

    def finish(self, job: ServedJob, start: int, end: int, reason: str) -> bytes:
        """The rest, and everything once more in one piece."""
        self._reason = reason
        data = self.delta(job, start, end) if end > start else b""
        text = emitted_text(job)
        if job.output.tool is not None:
            data += self._event(
                "response.function_call_arguments.done",
                item_id=self._item_id,
                output_index=0,
                name=job.output.tool,
                arguments=text,
            )
        else:
            data += self._part_event("response.output_text.done", text=text, logprobs=[])
            data += self._part_event("response.content_part.done", part=_part(text))
        return data + self._event("response.output_item.done", output_index=0, item=self._item(text))

    def end(self) -> bytes:
        """The whole response."""
        response = self._final()
        return self._event(f"response.{response['status']}", response=response)

    def whole(self, reasons: Sequence[str]) -> bytes:
        """A response object."""
        self._reason = reasons[0]
        return orjson.dumps(self._final())

    def _final(self) -> dict[str, Any]:
        status = "incomplete" if self._reason == "length" else "completed"
        return self._response(status, [self._item(emitted_text(self._job))])

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        body = self._body
        response: dict[str, Any] = {
            "id": self._facts.id,
            "object": "response",
            "created_at": self._facts.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.get("instructions"),
            "metadata": body.get("metadata"),
            "model": self._facts.model,
            "output": output,
            "parallel_tool_calls": True,
            "temperature": body.get("temperature", 1.0),
            "tool_choice": body.get("tool_choice", "auto"),
            "tools": body.get("tools") or [],
            "top_p": body.get("top_p", 1.0),
            "usage": None,
        }
        if status != "in_progress":
            usage = self._facts.usage([self._job])
            cached = usage["prompt_tokens_details"] or {"cached_tokens": 0}
            response["usage"] = {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": cached,
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["total_tokens"],
            }
        return response

    def _item(self, text: str, status: str = "completed") -> dict[str, Any]:
        item: dict[str, Any] = {"id": self._item_id, "status": status}
        if self._job.output.tool is not None:
            call_id = f"call_{self._facts.id[-16:]}"
            name = self._job.output.tool
            return item | {"type": "function_call", "call_id": call_id, "name": name, "arguments": text}
        content = [_part(text)] if status == "completed" else []
        return item | {"type": "message", "role": "assistant", "content": content}

    def _part_event(self, kind: str, **fields: Any) -> bytes:
        return self._event(kind, item_id=self._item_id, output_index=0, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        number = self._events
        self._events += 1
        return named_event({"type": kind, "sequence_number": number} | fields)


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
