"""Answers without text: ``/v1/embeddings``, ``/v1/rerank``, ``/v1/score``; fixed by the prompt."""

import base64
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from loadtest.engine.replies.reply import Facts
from loadtest.engine.served import ServedJob
from loadtest.engine.tokens import seed_of

_DIMENSIONS = 32
_DIMENSIONS_MAX = 8192


class WholeReply:
    """A reply that is never streamed."""

    def start(self) -> bytes:
        """Never called."""
        raise AssertionError

    def delta(self, job: ServedJob, start: int, end: int) -> bytes:
        """Never called."""
        raise AssertionError

    def finish(self, job: ServedJob, start: int, end: int, reason: str) -> bytes:
        """Never called."""
        raise AssertionError

    def end(self) -> bytes:
        """Never called."""
        raise AssertionError


class EmbeddingReply(WholeReply):
    """One vector per input, as numbers or as base64 of 32-bit floats."""

    def __init__(self, facts: Facts, jobs: Sequence[ServedJob], body: Mapping[str, Any]) -> None:
        self._facts = facts
        self._jobs = jobs
        asked = body.get("dimensions")
        self._dimensions = min(asked, _DIMENSIONS_MAX) if isinstance(asked, int) else _DIMENSIONS
        self._base64 = body.get("encoding_format") == "base64"

    def whole(self, reasons: Sequence[str]) -> bytes:
        """A list of embeddings."""
        return orjson.dumps(
            {
                "id": self._facts.id,
                "object": "list",
                "created": self._facts.created,
                "model": self._facts.model,
                "data": [
                    {"index": job.index, "object": "embedding", "embedding": self._vector(job)}
                    for job in self._jobs
                ],
                "usage": self._facts.usage(self._jobs),
            }
        )

    def _vector(self, job: ServedJob) -> list[float] | str:
        values = [_score(job, position) * 2 - 1 for position in range(self._dimensions)]
        if self._base64:
            return base64.b64encode(array("f", values).tobytes()).decode()
        return values


class RerankReply(WholeReply):
    """Documents, the best first."""

    def __init__(self, facts: Facts, jobs: Sequence[ServedJob], body: Mapping[str, Any]) -> None:
        self._facts = facts
        self._jobs = jobs
        self._documents: Sequence[Any] = body["documents"]
        top = body.get("top_n")
        self._top = top if isinstance(top, int) and top > 0 else len(jobs)

    def whole(self, reasons: Sequence[str]) -> bytes:
        """An object for vLLM, a list for SGLang."""
        best = sorted(self._jobs, key=_score, reverse=True)[: self._top]
        texts = [one["text"] if isinstance(one, dict) else one for one in self._documents]
        if not self._facts.vllm:
            return orjson.dumps(
                [
                    {
                        "score": _score(job),
                        "document": texts[job.index],
                        "index": job.index,
                        "meta_info": None,
                    }
                    for job in best
                ]
            )
        return orjson.dumps(
            {
                "id": self._facts.id,
                "model": self._facts.model,
                "usage": {"total_tokens": self._facts.prompt_usage(self._jobs)[0]},
                "results": [
                    {
                        "index": job.index,
                        "document": {"text": texts[job.index]},
                        "relevance_score": _score(job),
                    }
                    for job in best
                ],
            }
        )


class ScoreReply(WholeReply):
    """One score per pair of texts."""

    def __init__(self, facts: Facts, jobs: Sequence[ServedJob]) -> None:
        self._facts = facts
        self._jobs = jobs

    def whole(self, reasons: Sequence[str]) -> bytes:
        """A list of scores, or for SGLang just ``scores``."""
        facts = self._facts
        common = {"model": facts.model, "usage": facts.usage(self._jobs)}
        if not facts.vllm:
            return orjson.dumps(
                {"scores": [[_score(job)] for job in self._jobs], "object": "scoring"} | common
            )
        data = [{"index": job.index, "object": "score", "score": _score(job)} for job in self._jobs]
        head = {"id": facts.id, "object": "list", "created": facts.created}
        return orjson.dumps(head | common | {"data": data})


def _score(job: ServedJob, position: int = 0) -> float:
    return seed_of(job.prompt, position) / (1 << 64)
