"""Suggestions for a path that is not served."""

import httpx
import pytest
from fakes.admin import Setup

from router.admin import make_data_api
from router.admin.suggestions import POSTED, suggestion_of


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("//v1//messages", "/v1/messages"),
        ("/v1/message", "/v1/messages"),
        ("/messages/count_tokens", "/v1/messages/count_tokens"),
        ("/openai/v1/embeddings", "/v1/embeddings"),
        ("/v1/generate", "/generate"),
        ("/V1/Models", "/v1/models"),
        ("/models", "/v1/models"),
        ("/audio/transcriptions", "/v1/audio/transcriptions"),
    ],
)
def test_what_was_meant_is_named(path: str, meant: str) -> None:
    assert suggestion_of(path) == f"Did you mean {meant}?"


@pytest.mark.parametrize(
    "path", ["/", "/favicon.ico", "/robots.txt", "/workers", "/v1/files", "/v1/" + "a" * 500]
)
def test_no_guess_is_made_of_what_is_far_from_all(path: str) -> None:
    assert suggestion_of(path) == ""


@pytest.mark.parametrize("path", POSTED)
def test_what_is_served_is_no_slip(path: str) -> None:
    """Its sibling may be meant: of /rerank and /v1/rerank an engine may serve one."""
    assert suggestion_of(path) != f"Did you mean {path}?"


async def test_the_admin_port_is_named_only_to_those_who_may_use_it(setup: Setup, locked: Setup) -> None:
    """Without keys any client may administer; suggestions come only for paths of the admin API."""
    for parts, headers, path, told in (
        (setup.parts, {}, "/workers", True),
        (setup.parts, {}, "/v1/chat/completion", False),
        (setup.parts, {}, "/favicon.ico", False),
        (locked.parts, {"authorization": "Bearer ours"}, "/workers", True),
        (locked.parts, {"authorization": "Bearer no"}, "/workers", False),
        (locked.parts, {}, "/workers", False),
    ):
        transport = httpx.ASGITransport(make_data_api(parts, None))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answer = await client.get(path, headers=headers)
        assert answer.status_code in (401, 404)
        assert ("admin API" in answer.text) == told, (path, headers)
