import json
from typing import Any

import pytest

from router.gateway.endpoints import Endpoint
from router.gateway.parsing import Identifier
from router.handover.vllm import FIELDS, PARAMS, VllmHandover, prefill_only


def prefill_body(endpoint: Endpoint, sent: dict[str, Any]) -> dict[str, Any]:
    """Return the other fields of the prefill leg's body."""
    body = json.dumps({"model": "m"} | sent).encode()
    found = FIELDS.find((body,))
    fields = prefill_only(Identifier("test", handover_allowed=True).parse(endpoint, body), found, b"{}")
    having: dict[str, Any] = json.loads(b"".join(found.having(fields)))
    assert having.pop(PARAMS) == {}
    assert having.pop("model") == "m"
    assert having.pop("stream") is False
    return having


@pytest.mark.parametrize(
    ("endpoint", "sent", "expected"),
    [
        (Endpoint.CHAT, {}, {"max_tokens": 1}),
        (Endpoint.CHAT, {"max_tokens": 500, "stream": True}, {"max_tokens": 1}),
        # An engine may refuse the two limits together: only the client's own is sent.
        (Endpoint.CHAT, {"max_completion_tokens": 500}, {"max_completion_tokens": 1}),
        (
            Endpoint.CHAT,
            {"max_completion_tokens": 5, "max_tokens": 5},
            {"max_completion_tokens": 1, "max_tokens": 1},
        ),
        # This endpoint does not know the other limit.
        (
            Endpoint.COMPLETIONS,
            {"prompt": "x", "max_completion_tokens": 5},
            {"prompt": "x", "max_completion_tokens": 1, "max_tokens": 1},
        ),
        (Endpoint.MESSAGES, {"max_tokens": 500}, {"max_tokens": 1}),
        (Endpoint.CHAT, {"min_tokens": 10}, {"min_tokens": 1, "max_tokens": 1}),
        (
            Endpoint.CHAT,
            {"stream": True, "stream_options": {"include_usage": True}},
            {"stream_options": None, "max_tokens": 1},
        ),
        (Endpoint.CHAT, {PARAMS: {"do_remote_prefill": True, "remote_host": "evil"}}, {"max_tokens": 1}),
    ],
)
def test_a_prefill_leg_stops_after_its_first_token_and_answers_whole(
    endpoint: Endpoint, sent: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert prefill_body(endpoint, sent) == expected


@pytest.mark.parametrize(
    ("endpoint", "sent", "split"),
    [
        (Endpoint.CHAT, {"messages": [{"role": "user", "content": "a"}]}, True),
        (Endpoint.MESSAGES, {"messages": [{"role": "user", "content": "a"}]}, True),
        (Endpoint.COMPLETIONS, {"prompt": "a"}, True),
        (Endpoint.COMPLETIONS, {"prompt": [1, 2, 3]}, True),
        (Endpoint.COMPLETIONS, {"prompt": ["a"]}, True),
        (Endpoint.COMPLETIONS, {"prompt": ["a", "b"]}, False),
        (Endpoint.COMPLETIONS, {"prompt": [[1], [2]]}, False),
        (Endpoint.COMPLETIONS, {"prompt": "a", "n": 2}, False),
        (Endpoint.CHAT, {"messages": [], "n": 4}, False),
        (Endpoint.CHAT, {"messages": [], "prompt_logprobs": 0}, False),
        (Endpoint.CHAT, {"messages": [], "logprobs": True}, True),
        (Endpoint.COMPLETIONS, {"prompt": "a", "echo": True, "logprobs": 1}, False),
        (Endpoint.COMPLETIONS, {"prompt": "a", "echo": True}, True),
        (Endpoint.RESPONSES, {"input": "a"}, False),
        (Endpoint.EMBEDDINGS, {"input": "a"}, False),
    ],
)
def test_only_what_is_fetched_once_is_split(endpoint: Endpoint, sent: dict[str, Any], split: bool) -> None:
    parsed = Identifier("test", handover_allowed=True).parse(
        endpoint, json.dumps({"model": "m"} | sent).encode()
    )

    assert VllmHandover().splits(parsed) is split


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize(
    "theirs", [b'"kv_transfer_params"', b'"kv_transfer\\u005fparams"', b'"x":1,"kv_transfer_params"']
)
def test_a_decode_worker_alone_hears_no_parameters_of_a_client(theirs: bytes, pieces: int) -> None:
    """A client could read any prefill engine's cache, or let the decode engine keep blocks."""
    body = b'{"prompt":"x",%b:{"do_remote_prefill":true,"remote_block_ids":[[1]]},"n":2}' % theirs
    sent = json.loads(b"".join(VllmHandover().alone((body,) if pieces == 1 else (body[:9], body[9:]))))

    assert sent[PARAMS] is None
    assert (sent["prompt"], sent["n"]) == ("x", 2)


def test_what_a_decode_worker_alone_may_hear_is_not_touched() -> None:
    body = (b'{"prompt":"kv_transfer_params"}',)
    assert VllmHandover().alone(body) is body
