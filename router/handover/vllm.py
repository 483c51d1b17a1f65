"""Shared by vLLM's hand-over protocols: the requests that are split, and the fields of a prefill leg.

A connector's parameters travel in ``kv_transfer_params``, which requests have at ``/v1/chat/completions``,
``/v1/completions`` and ``/v1/messages`` (``entrypoints/openai/*/protocol.py``,
``entrypoints/anthropic/protocol.py``), but not at ``/v1/responses``. They are for one sequence: the first of
several samples or prompts that has fetched the KV releases it (``distributed/kv_transfer/kv_connector/v1``).
Nor is KV fetched where log probabilities of the prompt are asked for. A decode worker does the other requests
alone: it can compute prompts, too.
"""

from collections import Counter
from collections.abc import Sequence

from router.handover.fields import Body, Fields, Piece
from router.handover.ports import RequestFacts
from router.log_pace import LogPace

PARAMS = "kv_transfer_params"

FIELDS = Fields(PARAMS, "max_tokens", "max_completion_tokens", "min_tokens", "stream", "stream_options")

_CHAT = "/v1/chat/completions"
_SPLIT = frozenset({_CHAT, "/v1/completions", "/v1/messages"})


def prefill_only(parsed: RequestFacts, body: Body, params: bytes) -> dict[str, bytes]:
    """Return fields that make a request stop after its first token, answer whole, and keep its KV."""
    fields = {PARAMS: params, "stream": b"false"}
    if "stream_options" in body:  # refused without a stream
        fields["stream_options"] = b"null"
    if "min_tokens" in body:  # refused if above the limit
        fields["min_tokens"] = b"1"
    if "max_completion_tokens" in body:
        fields["max_completion_tokens"] = b"1"
    if parsed.endpoint != _CHAT or "max_tokens" in body or "max_completion_tokens" not in body:
        fields["max_tokens"] = b"1"
    return fields


class VllmHandover:
    """The base of vLLM's protocols."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.pace = LogPace()

    def splits(self, parsed: RequestFacts) -> bool:
        """See `router.handover.ports.Handover`."""
        one_prompt = parsed.n == 1 and len(parsed.paths) <= 1
        return parsed.endpoint in _SPLIT and one_prompt and not parsed.computes_all

    def alone(self, body: Sequence[Piece]) -> Sequence[Piece]:
        """Return the body without a client's parameters, which could fetch or pin another's blocks."""
        found = FIELDS.find(body)
        return found.having({PARAMS: b"null"}) if PARAMS in found else body
