"""What vLLM's hand-over protocols share: which requests are split, and how a leg is told to prefill only.

A connector's parameters travel in ``kv_transfer_params``, which requests have at ``/v1/chat/completions``,
``/v1/completions`` and ``/v1/messages`` (``entrypoints/openai/*/protocol.py``,
``entrypoints/anthropic/protocol.py``), but not at ``/v1/responses``. They are for one sequence: the first
of several samples or prompts that has fetched the KV lets it go
(``distributed/kv_transfer/kv_connector/v1``). Nor is anything fetched where the log probabilities of the
prompt are asked for. What is not split a decode worker does alone: it computes prompts, too, if nobody hands
them over.
"""

from collections.abc import Sequence

from router.handover.fields import Body, Fields, Piece
from router.handover.ports import RequestFacts

PARAMS = "kv_transfer_params"

FIELDS = Fields(PARAMS, "max_tokens", "max_completion_tokens", "min_tokens", "stream", "stream_options")

_CHAT = "/v1/chat/completions"
_SPLIT = frozenset({_CHAT, "/v1/completions", "/v1/messages"})


def splits(parsed: RequestFacts) -> bool:
    """Whether a request may have two legs."""
    return parsed.endpoint in _SPLIT and parsed.n == 1 and len(parsed.paths) <= 1 and not parsed.computes_all


def alone(body: Sequence[Piece]) -> Sequence[Piece]:
    """A body without a client's parameters, which could fetch any blocks of another engine, or keep some.

    Args:
        body: A JSON object in pieces.
    """
    found = FIELDS.find(body)
    return found.having({PARAMS: b"null"}) if PARAMS in found else body


def prefill_only(parsed: RequestFacts, body: Body, params: bytes) -> dict[str, bytes]:
    """Fields that make a request stop after its first token, answer whole, and keep its KV.

    Args:
        parsed: The request.
        body: Its body.
        params: ``kv_transfer_params``.
    """
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
