"""``/v1/completions``: one choice per prompt and answer, numbered through."""

from collections.abc import Sequence
from typing import Any

import orjson

from loadtest.engine.replies.reply import DONE, Facts, emitted_text
from loadtest.engine.served import ServedJob


class CompletionReply:
    """See `loadtest.engine.replies.reply.Reply`."""

    def __init__(self, facts: Facts, jobs: Sequence[ServedJob]) -> None:
        self._facts = facts
        self._jobs = jobs
        self._stop_field = "stop_reason" if facts.vllm else "matched_stop"
        head = {
            "id": facts.id,
            "object": "text_completion",
            "created": facts.created,
            "model": facts.model,
        }
        self._head = orjson.dumps(head)[:-1] + b',"choices":['
        self._after = b',"logprobs":null,"finish_reason":null,"%s":null}],"usage":null}\n\n' % (
            self._stop_field.encode()
        )

    def start(self) -> bytes:
        """Nothing comes before the text."""
        return b""

    def delta(self, job: ServedJob, start: int, end: int) -> bytes:
        """A chunk of text."""
        text = orjson.dumps(job.output.piece(start, end))
        return b'data: %s{"index":%d,"text":%s%s' % (self._head, job.index, text, self._after)

    def finish(self, job: ServedJob, start: int, end: int, reason: str) -> bytes:
        """The last text with the finish reason."""
        choice = self._choice(job, job.output.piece(start, end), reason)
        return b'data: %s%s],"usage":null}\n\n' % (self._head, orjson.dumps(choice))

    def end(self) -> bytes:
        """Usage, if asked for, and the end mark."""
        if not self._facts.include_usage:
            return DONE
        usage = orjson.dumps(self._facts.usage(self._jobs))
        return b'data: %s],"usage":%s}\n\n%s' % (self._head, usage, DONE)

    def whole(self, reasons: Sequence[str]) -> bytes:
        """A completion object."""
        choices = [
            self._choice(job, emitted_text(job), reason)
            for job, reason in zip(self._jobs, reasons, strict=True)
        ]
        facts = self._facts
        return orjson.dumps(
            {
                "id": facts.id,
                "object": "text_completion",
                "created": facts.created,
                "model": facts.model,
                "choices": choices,
                "usage": facts.usage(self._jobs),
            }
            | facts.transfer(self._jobs)
        )

    def _choice(self, job: ServedJob, text: str, reason: str) -> dict[str, Any]:
        return {
            "index": job.index,
            "text": text,
            "logprobs": None,
            "finish_reason": reason,
            self._stop_field: job.output.stopped_by,
        }
