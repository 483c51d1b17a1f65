import json
from typing import Any

BODY = {
    "model": "emulated",
    "max_tokens": 5,
    "ignore_eos": True,
    "messages": [{"role": "user", "content": "hi " * 200}],
}
TOOLS = {
    "tools": [{"name": "weather", "input_schema": {"properties": {"city": {"type": "string"}}}}],
    "tool_choice": {"type": "any"},
    "max_tokens": 500,
}


def events(text: str) -> Any:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


async def test_cached_input_is_counted_apart(start: Any) -> None:
    _, client = await start(block_tokens=16)
    cold = (await client.post("/v1/messages", json=BODY)).json()
    warm = (await client.post("/v1/messages", json=BODY)).json()["usage"]

    assert "cache_read_input_tokens" not in cold["usage"]
    assert warm["cache_read_input_tokens"] > 0
    assert warm["input_tokens"] + warm["cache_read_input_tokens"] == cold["usage"]["input_tokens"]
    assert (cold["stop_reason"], cold["usage"]["output_tokens"]) == ("max_tokens", 5)


async def test_a_stream_is_a_sequence_of_named_events(start: Any) -> None:
    _, client = await start()
    whole = (await client.post("/v1/messages", json=BODY)).json()
    streamed = await client.post("/v1/messages", json=BODY | {"stream": True})
    found = events(streamed.text)
    kinds = [event["type"] for event in found]

    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert [line[7:] for line in streamed.text.splitlines() if line.startswith("event: ")] == kinds
    text = "".join(event["delta"]["text"] for event in found if event["type"] == "content_block_delta")
    assert text == whole["content"][0]["text"]
    assert found[-2]["usage"] == {"output_tokens": 5}


async def test_a_forced_tool_is_used(start: Any) -> None:
    _, client = await start()
    whole = (await client.post("/v1/messages", json=BODY | TOOLS)).json()
    found = events((await client.post("/v1/messages", json=BODY | TOOLS | {"stream": True})).text)
    pieces = [event["delta"]["partial_json"] for event in found if event["type"] == "content_block_delta"]

    assert whole["stop_reason"] == "tool_use"
    assert whole["content"][0]["name"] == found[1]["content_block"]["name"] == "weather"
    assert json.loads("".join(pieces)) == whole["content"][0]["input"]


async def test_a_stop_sequence_is_named(start: Any) -> None:
    _, client = await start()
    text = (await client.post("/v1/messages", json=BODY)).json()["content"][0]["text"]
    answer = (await client.post("/v1/messages", json=BODY | {"stop_sequences": [text[4:7]]})).json()

    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", text[4:7])
