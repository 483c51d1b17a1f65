"""Common parts of all answers: identity, counts, and the port that makes bytes.

A `Reply` makes each chunk from the tokens ``start`` to ``end`` of a job and keeps nothing of what was sent,
so chunks may be as large as the connection allows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from loadtest.engine.served import ServedJob

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Facts:
    """Parts of the request that a reply repeats.

    Attributes:
        model: Name as the client wrote it.
        created: Unix seconds.
        vllm: The dialect is vLLM's, not SGLang's.
        choices: Answers per prompt.
        batch: The prompts were a list, or the answers are to be one.
        include_usage: End a stream with a usage chunk.
        cache_report: Report ``cached_tokens``.
    """

    id: str
    model: str
    created: int
    vllm: bool
    choices: int = 1
    batch: bool = False
    include_usage: bool = False
    cache_report: bool = True

    def usage(self, jobs: Sequence[ServedJob]) -> dict[str, Any]:
        """OpenAI's ``usage``: prompts count once, however many answers they have."""
        prompt, cached = self.prompt_usage(jobs)
        completion = sum(job.emitted_tokens for job in jobs)
        # SGLang leaves the details out when nothing was cached (its usage_processor.py).
        report = self.cache_report and (self.vllm or cached > 0)
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
            "prompt_tokens_details": {"cached_tokens": cached} if report else None,
        }

    def transfer(self, jobs: Sequence[ServedJob]) -> dict[str, Any]:
        """VLLM's ``kv_transfer_params``: in every whole answer, and null in most."""
        return {"kv_transfer_params": jobs[0].transfer_params} if self.vllm else {}

    def prompt_usage(self, jobs: Sequence[ServedJob]) -> tuple[int, int]:
        """Prompt tokens and how many of them were cached."""
        firsts = jobs[:: self.choices]
        return sum(job.prompt_tokens for job in firsts), sum(job.cached_tokens for job in firsts)


class Reply(Protocol):
    """The bytes of one answer."""

    def start(self) -> bytes:
        """Events before the first token; may be empty."""

    def delta(self, job: ServedJob, start: int, end: int) -> bytes:
        """Events for some tokens of a job, which has more to come."""

    def finish(self, job: ServedJob, start: int, end: int, reason: str) -> bytes:
        """Events for the last tokens of a job; ``start`` may equal ``end``."""

    def end(self) -> bytes:
        """Events after the last job."""

    def whole(self, reasons: Sequence[str]) -> bytes:
        """The whole answer for a client that did not ask for a stream; one reason per job."""


def event(payload: Any) -> bytes:
    """A data-only server-sent event."""
    return b"data: %s\n\n" % orjson.dumps(payload)


def named_event(payload: dict[str, Any]) -> bytes:
    """A server-sent event that is named by its ``type``, as Anthropic and the responses API do."""
    return b"event: %s\ndata: %s\n\n" % (payload["type"].encode(), orjson.dumps(payload))


def emitted_text(job: ServedJob) -> str:
    """Text of a job so far."""
    return job.output.piece(0, job.emitted_tokens)
