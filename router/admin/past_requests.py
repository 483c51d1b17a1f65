"""Past requests of this replica, as far as they are kept, to be decided again (``POST /explain``)."""

from typing import Any, NamedTuple

from radix import HASH_BYTES
from router.admin.decisions_view import described, prompt_tokens_of
from router.errors import ClientError
from router.gateway import Gateway
from router.gateway.endpoints import Endpoint
from router.gateway.parsing import ParsedRequest
from router.gateway.recent_decisions import KEPT_MAX, RecentDecision


class PastRequest(NamedTuple):
    """A past request: its facts, the decision of then as JSON, and how much of its prompt is compared."""

    parsed: ParsedRequest
    decision: dict[str, Any]
    compared: dict[str, Any]


def past_request(gateway: Gateway, request_id: str) -> PastRequest:
    """Find the newest request with an id, the client's or the gateway's.

    Raises:
        ClientError: 404 if none is kept; 409 if its prompt was never read.
    """
    decision = gateway.reports.decisions.newest_of(request_id)
    if decision is None:
        raise ClientError(
            f"The request is not among the newest {KEPT_MAX:,} of replica {gateway.log.replica}. Each "
            "replica lists its own; request_id takes the client's id or the gateway's.",
            code="not_found",
            param="request_id",
            status=404,
        )
    prompt_tokens = prompt_tokens_of(decision)
    parsed = decision.parsed
    if parsed is not None and parsed.paths:
        return PastRequest(
            parsed, described(decision), {"all": True, "prompt_tokens": prompt_tokens, "note": None}
        )
    if not decision.prefix_key or prompt_tokens is None:
        raise ClientError(
            "The prompt of this request was not read, so nothing of it can be compared.",
            code="no_prompt",
            param="request_id",
            status=409,
        )
    first_tokens = min(gateway.reader.hasher.block_tokens, round(prompt_tokens))
    note = (
        f"Only the first {first_tokens} tokens are compared: the block hashes of this prompt are not kept "
        "any more. The cache may hold more than the candidates show. Send its body to compare all of it."
    )
    compared = {"all": False, "prompt_tokens": prompt_tokens, "tokens": first_tokens, "note": note}
    return PastRequest(_outline(decision, round(prompt_tokens), first_tokens), described(decision), compared)


def _outline(decision: RecentDecision, prompt_tokens: int, block_tokens: int) -> ParsedRequest:
    """Return a request of the same length, of which only the first block is known."""
    path = decision.prefix_key.to_bytes(HASH_BYTES, "little") if prompt_tokens >= block_tokens else b""
    return ParsedRequest(
        decision.endpoint or Endpoint.CHAT,
        decision.model or None,
        stream=False,
        output_tokens_max=None,
        n=1,
        priority=0,
        tenant=decision.tenant.name,
        session="",
        lora=None,
        paths=(path,),
        prompt_bytes=0,
        prompt_token_ids=prompt_tokens,
        key=decision.prefix_key,
        prefix_key=decision.prefix_key,
    )
