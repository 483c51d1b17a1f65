"""``POST /explain``: a dry run of the decision on a request, with reasons.

    {"endpoint": "/v1/chat/completions", "request": {...}}       the body that a client would send
    {"request_id": "req-..."}                                    a past request of this replica

The prompt of a past request is compared as a whole while its block hashes are kept
(`router.gateway.recent_decisions`); later only its first block is, and ``compared`` says so.

It decides by the code that decides real requests (`router.explaining`) and changes nothing. A large body is
parsed in steps, so a prompt of a million tokens blocks no stream.
"""

import asyncio
from collections.abc import AsyncIterator, Generator, Sequence
from math import isfinite
from typing import Annotated, Any, TypeVar

import msgspec
import orjson
from fastapi import FastAPI, Request, Response
from msgspec import Meta

from policies import Policy
from router.admin.parts import AdminParts
from router.admin.past_requests import PastRequest, past_request
from router.errors import ClientError
from router.explaining import LIMIT, Candidate, DecodeCandidate, Explanation, explain, rehearse
from router.gateway import Gateway, MakePolicy
from router.gateway.bodies import ABSENT
from router.gateway.body_outline import BodyOutline, Unusual
from router.gateway.endpoints import ENDPOINTS, Endpoint
from router.gateway.large import LARGE_BODY_BYTES
from router.gateway.parsing import ParsedRequest
from router.gateway.step_runner import StepRunner, Steps
from router.offsets import offset
from router.proxy import Header
from router.tenant import Tenant
from router.tenants import Door

LIMIT_MAX = 1000

_COMPARED_ALL = {"all": True, "prompt_tokens": None, "note": None}

T = TypeVar("T")


class Question(msgspec.Struct, forbid_unknown_fields=True):
    """A request, or the id of a past one, and how it is to be decided."""

    request: Annotated[
        msgspec.Raw,
        Meta(
            description="The body that the client would send. It goes nowhere.",
            extra_json_schema={"type": "object"},
        ),
    ] = msgspec.field(default_factory=lambda: ABSENT)
    request_id: Annotated[
        str,
        Meta(
            max_length=256,
            description="In place of a body: the id of one of the newest requests of this replica, the "
            "client's or the gateway's.",
        ),
    ] = ""
    endpoint: Annotated[str, Meta(description="Path to which the client would send the request.")] = (
        Endpoint.CHAT.value
    )
    tenant: Annotated[
        str,
        Meta(
            max_length=256,
            description="Name of the tenant to decide for; empty for no tenant.",
        ),
    ] = ""
    session: Annotated[
        str,
        Meta(max_length=256, description="Name of the session, as a header would give it; empty for none."),
    ] = ""
    policy: Annotated[str, Meta(description="Another policy to decide by; left out, the one in use.")] = ""
    policy_options: Annotated[dict[str, float], Meta(description="Options of that policy.")] = {}
    limit: Annotated[
        int,
        Meta(
            ge=1,
            le=LIMIT_MAX,
            description="Most candidates, and most others, that are listed; the rest is counted.",
        ),
    ] = LIMIT


_questions = msgspec.json.Decoder(Question)

_DOCS: dict[str, Any] = {
    "openapi_extra": {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": msgspec.json.schema_components([Question])[1]["Question"],
                    "example": {
                        "request": {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
                    },
                }
            },
        }
    },
    "responses": {
        200: {"description": "The decision, all candidates and all others."},
        400: {"description": "The question, or the request in it, makes no sense."},
        413: {"description": "The body is longer than clients may send."},
    },
}
"""The route reads its body itself, so FastAPI cannot describe it."""


def add_explain(api: FastAPI, parts: AdminParts) -> None:
    """Serve the route."""
    gateway = parts.gateway

    @api.post("/explain", tags=["decisions"], **_DOCS)
    async def explanation(request: Request) -> Response:
        """Decision on a request now: every candidate with its price, and the reasons against the others.

        Nothing is sent, reserved, counted or learned. Limits of tenants are not asked.
        """
        body = await _body(request.stream(), parts.live.current.server.body_bytes_max)
        question, raw = await _in_lane(gateway.lane, _question(body))
        past: PastRequest | None = None
        if question.request_id:
            past = past_request(gateway, question.request_id)
            parsed, tenant = past.parsed, parts.door.tenant_named(past.parsed.tenant)
        else:
            names = parts.live.current.placement.session_headers[:1] if question.session else ()
            headers = [(name.encode(), question.session.encode("utf-8", "replace")) for name in names]
            steps = _understood(gateway, parts.door, question, raw, headers)
            parsed, tenant = await _in_lane(gateway.lane, steps)
            if gateway.tokenizing is not None:
                parsed = await gateway.tokenizing.now(parsed, raw)
            if gateway.sessions is not None:
                parsed = gateway.sessions.named(parsed, (), question.session)
        policy = _policy(question, gateway.placing.make_policy)
        found = explain(gateway, rehearse(gateway, parsed, tenant, policy), question.limit)
        await asyncio.sleep(0)
        answer = described(gateway, found) | {
            "past": None if past is None else past.decision,
            "compared": _COMPARED_ALL if past is None else past.compared,
            "replica": gateway.log.replica,
            "at_unix_s": round(parts.now_unix_s(), 3),
        }
        return Response(orjson.dumps(answer), media_type="application/json")


async def _body(stream: AsyncIterator[bytes], bytes_max: int) -> bytes:
    """Return the body of a request; raise ClientError if it is too long."""
    pieces, size = [], 0
    async for piece in stream:
        size += len(piece)
        if size > bytes_max:
            raise ClientError(
                f"The body is longer than {bytes_max} bytes.", code="body_too_large", status=413
            )
        pieces.append(piece)
    return b"".join(pieces)


async def _in_lane(lane: StepRunner, steps: Generator[None, None, T]) -> T:
    """Do work in steps, in turns with that of clients."""
    done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def all_steps() -> Steps:
        try:
            result = yield from steps
        except Exception as error:  # noqa: BLE001 - the waiting caller gets it
            if not done.done():
                done.set_exception(error)
            return
        if not done.done():
            done.set_result(result)

    lane.add(all_steps())
    return await done


def _understood(
    gateway: Gateway, door: Door, question: Question, raw: bytes, headers: Sequence[Header]
) -> Generator[None, None, tuple[ParsedRequest, Tenant]]:
    """Return the parsed request and its tenant; raise ClientError if they are not valid."""
    tenant = door.tenant_named(question.tenant)
    try:
        endpoint = ENDPOINTS[question.endpoint.encode()]
    except KeyError as error:
        names = ", ".join(ENDPOINTS.values())
        raise ClientError(f"endpoint: none of {names}", code="invalid_value", param="endpoint") from error
    if len(raw) < LARGE_BODY_BYTES:
        return gateway.reader.parse(endpoint, raw, tenant, headers), tenant
    parsed = yield from gateway.reader.parse_in_steps(endpoint, raw, tenant, headers)
    return parsed, tenant


def _question(body: bytes) -> Generator[None, None, tuple[Question, bytes]]:
    """Return the question and the bytes of its request; raise ClientError if they are not valid."""
    try:
        if len(body) < LARGE_BODY_BYTES:
            question = _questions.decode(body)
            _one_of(question)
            return question, bytes(question.request)
        outline = BodyOutline(body)
        yield from outline.cut()
        question = _questions.decode(outline.skeleton)
        _one_of(question)
        outline.refuse(
            question.endpoint,
            question.request_id,
            question.tenant,
            question.policy,
            *question.policy_options,
        )
    except (msgspec.ValidationError, Unusual) as error:
        raise ClientError(f"The question makes no sense: {error}", code="invalid_value") from error
    except (ValueError, RecursionError) as error:
        raise ClientError(f"The body is not valid JSON: {error}", code="invalid_json") from error
    if question.request is ABSENT:
        return question, b""
    raw = memoryview(question.request)
    start = offset(raw, outline.skeleton)
    return question, body[outline.place(start) : outline.place(start + len(raw))]


def _one_of(question: Question) -> None:
    """Raise ClientError unless the question has either a body or the id of a past request."""
    if (question.request is ABSENT) is (not question.request_id):
        raise ClientError(
            "Give either request, the body that a client would send, or request_id, of a past request.",
            code="invalid_value",
            param="request",
        )
    if question.request_id and question.tenant:
        raise ClientError(
            "A past request has its tenant; leave tenant out.", code="invalid_value", param="tenant"
        )


def _policy(question: Question, make_policy: MakePolicy) -> Policy | None:
    """Return the policy in the question, None for the one in use; raise ClientError if it is unknown."""
    if not question.policy:
        if question.policy_options:
            raise ClientError("policy_options need a policy.", code="invalid_value", param="policy_options")
        return None
    try:
        return make_policy(question.policy, question.policy_options)
    except ValueError as error:
        raise ClientError(str(error)[:500], code="invalid_value", param="policy") from error


def described(gateway: Gateway, found: Explanation) -> dict[str, Any]:
    """Return a decision as JSON."""
    rehearsed, scored = found.rehearsed, found.rehearsed.scored
    parsed, decider = rehearsed.parsed, gateway.placing.decider
    policy = decider.policy if scored is None else scored.policy
    prompt_tokens, output_tokens = decider.expected_tokens(parsed)
    lengths = gateway.fleet.buckets.lengths
    bucket = rehearsed.length.bucket
    verdict = found.verdict
    return {
        "decision": {
            "outcome": verdict.word,
            "reason": verdict.reason,
            "why": verdict.why,
            "worker": verdict.worker_id or None,
            "decode_worker": verdict.decode_worker_id or None,
            "preferred_worker": verdict.preferred,
            "queue_full": verdict.queue_full,
            "side": found.side or None,
        },
        "policy": {"name": policy.name, "unit": policy.unit, "lowest_wins": True},
        "request": {
            "endpoint": parsed.endpoint.value,
            "model": parsed.model,
            "model_choice": None if parsed.choice is None else parsed.choice.told(),
            "tenant": rehearsed.tenant.name or None,
            "session": parsed.session or None,
            "prompt_tokens": round(max(prompt_tokens, 1.0)),
            "output_tokens": round(output_tokens) * parsed.n,
            "blocks": sum(len(path) for path in parsed.paths) // 8,
            "prefix": f"{parsed.prefix_key:016x}" if any(parsed.paths) else None,
            "bucket": lengths.names[bucket] if lengths is not None and 0 <= bucket < len(lengths) else None,
        },
        "candidates": [_shown(each) for each in found.candidates],
        "candidates_omitted": {
            "count": found.omitted,
            "cost_min": None if found.omitted_costs is None else _rounded(found.omitted_costs[0]),
            "cost_max": None if found.omitted_costs is None else _rounded(found.omitted_costs[1]),
        },
        "decode_candidates": [_shown(each) for each in found.decoders],
        "decode_candidates_omitted": found.decoders_omitted,
        "not_candidates": [
            {"worker": each.worker_id, "reason": each.absence.value, "detail": each.detail}
            for each in found.bystanders
        ],
        "not_candidates_omitted": {
            absence.value: count for absence, count in sorted(found.bystanders_omitted.items())
        },
    }


def _shown(one: Candidate | DecodeCandidate) -> dict[str, Any]:
    """Return a candidate as JSON."""
    return {
        name: _rounded(value) if isinstance(value, float) else None if value == "" else value
        for name, value in msgspec.to_builtins(one).items()
    }


def _rounded(value: float) -> float | None:
    """Round to a millionth, or to nine digits; None for infinite or missing values."""
    if not isfinite(value):
        return None
    return round(value, 6) if abs(value) >= 1e-3 else float(f"{value:.9g}")
