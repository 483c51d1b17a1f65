"""SGLang's ``/generate``: text so far and ``meta_info``; a list for batches, ``index`` in their streams."""

from collections.abc import Sequence
from typing import Any

import orjson

from loadtest.engine.replies.reply import DONE, Facts, event
from loadtest.engine.served import ServedJob
from loadtest.engine.tokens import TOKEN_BYTES, unpack_ids


class GenerateReply:
    """See `loadtest.engine.replies.reply.Reply`. Streams repeat the whole text in every event."""

    def __init__(self, facts: Facts, jobs: Sequence[ServedJob]) -> None:
        self._jobs = jobs
        self._batch = facts.batch

    def start(self) -> bytes:
        """Nothing comes before the text."""
        return b""

    def delta(self, job: ServedJob, start: int, end: int) -> bytes:
        """The text up to here."""
        return event(self._answer(job, end, None))

    def finish(self, job: ServedJob, start: int, end: int, reason: str) -> bytes:
        """The whole text and why it ended."""
        return event(self._answer(job, end, reason))

    def end(self) -> bytes:
        """The end mark."""
        return DONE

    def whole(self, reasons: Sequence[str]) -> bytes:
        """One object, or a list of them."""
        answers = [
            self._answer(job, job.emitted_tokens, reason, indexed=False)
            for job, reason in zip(self._jobs, reasons, strict=True)
        ]
        return orjson.dumps(answers if self._batch else answers[0])

    def _answer(
        self, job: ServedJob, tokens: int, reason: str | None, *, indexed: bool = True
    ) -> dict[str, Any]:
        output = job.output
        finish: dict[str, Any] | None = None
        if reason is not None:
            finish = {"type": reason}
            if reason == "length":
                finish["length"] = output.tokens
            elif reason == "stop":
                finish["matched"] = output.stopped_by
        answer: dict[str, Any] = {
            "text": output.piece(0, tokens),
            "output_ids": unpack_ids(output.kept[: tokens * TOKEN_BYTES]),
            "meta_info": {
                "id": job.id,
                "finish_reason": finish,
                "prompt_tokens": job.prompt_tokens,
                "weight_version": "default",
                "completion_tokens": tokens,
                "cached_tokens": job.cached_tokens,
            },
        }
        if indexed and self._batch:
            answer["index"] = job.index
        return answer
