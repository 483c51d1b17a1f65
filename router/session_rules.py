"""Settings of sessions (`router.sessions`) and of stored responses (`router.relaying.responses`)."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator

from policies import setting
from router.values import HeaderName, distinct

SESSION_HEADERS = (
    "x-session-id",
    "x-session-affinity",
    "x-smg-routing-key",
    "x-dynamo-session-id",
    "x-claude-code-session-id",
    "session-id",
    "session_id",
    "thread-id",
    "conversation_id",
    "x-litellm-session-id",
)
"""Headers in which clients and other routers name a session: vllm-router, OpenCode (two), smg and
sglang-router, Dynamo, Claude Code, Codex (four), and LiteLLM."""

SessionField = Literal[
    "session_id",
    "metadata.session_id",
    "metadata.user_id",
    "prompt_cache_key",
    "user",
    "safety_identifier",
]
"""Fields of a body that may name its session (`router.session_fields`)."""

SESSION_FIELDS: tuple[SessionField, ...] = (
    "session_id",
    "metadata.session_id",
    "metadata.user_id",
    "prompt_cache_key",
)
"""Default fields, without those that name a user: a user may have many sessions at once."""


@dataclass(frozen=True)
class SessionRules:
    """Recognition of requests that belong together."""

    session_headers: Annotated[tuple[HeaderName, ...], AfterValidator(distinct)] = setting(
        SESSION_HEADERS,
        "Request headers that name the session of a request; the first one of this list that is present is "
        "used, else a field of the body (placement.session_fields). The name is a hint: between workers with "
        "as much of the prompt cached and nearly equal cost, the session's last worker is chosen. See "
        "docs/sessions.md.",
        live=True,
    )
    session_fields: Annotated[tuple[SessionField, ...], AfterValidator(distinct)] = setting(
        SESSION_FIELDS,
        "Fields of the body that name the session of a request without such a header; the first one of this "
        "list that is present is used. Only the session within metadata.user_id counts, as Claude Code "
        "writes it. user and safety_identifier name a user, whose sessions would then be one.",
        live=True,
    )
    sessions_max: int = setting(
        100_000,
        "Sessions whose last worker a process remembers, the most recently used ones of all replicas; some "
        "300 bytes each. 0 turns the hint off; names of sessions are then in logs only.",
        ge=0,
        le=10_000_000,
        live=True,
    )
    session_ttl_s: float = setting(
        3_600.0,
        "Time without a request after which the last worker of a session is forgotten, in seconds; it may be "
        "forgotten after half of it. A session that comes back later finds its worker by its prompt.",
        gt=0,
        le=2_592_000,
        live=True,
    )
    responses_max: int = setting(
        100_000,
        "Stored responses (POST /v1/responses) whose worker each process remembers and tells the other "
        "replicas through Redis, so that previous_response_id and /v1/responses/{id} reach it; some 300 "
        "bytes each, here and in Redis. 0 turns it off: any worker is asked.",
        ge=0,
        le=10_000_000,
        live=True,
    )
    response_ttl_s: float = setting(
        86_400.0,
        "Time for which the worker of a stored response is remembered, in seconds. Engines keep responses in "
        "memory until they end.",
        gt=0,
        le=2_592_000,
        live=True,
    )
