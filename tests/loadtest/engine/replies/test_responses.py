import json
from typing import Any

BODY = {"model": "emulated", "input": "hi", "max_output_tokens": 500}
TOOLS = {
    "tools": [
        {"type": "function", "name": "weather", "parameters": {"properties": {"city": {"type": "string"}}}}
    ],
    "tool_choice": "required",
}


def events(text: str) -> Any:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


async def test_a_stream_ends_with_the_whole_response(start: Any) -> None:
    _, client = await start(output_tokens=5)
    whole = (await client.post("/v1/responses", json=BODY)).json()
    found = events((await client.post("/v1/responses", json=BODY | {"stream": True})).text)

    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert found[-1]["type"] == "response.completed"
    assert found[-1]["response"]["output"][0]["content"] == whole["output"][0]["content"]
    deltas = [event["delta"] for event in found if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == whole["output"][0]["content"][0]["text"]
    assert whole["usage"]["output_tokens"] > 0


async def test_an_answer_that_is_cut_off_is_incomplete(start: Any) -> None:
    _, client = await start()
    body = BODY | {"max_output_tokens": 2, "ignore_eos": True}
    whole = (await client.post("/v1/responses", json=body)).json()

    assert whole["status"] == "incomplete"
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_a_forced_function_is_called(start: Any) -> None:
    _, client = await start()
    whole = (await client.post("/v1/responses", json=BODY | TOOLS)).json()
    found = events((await client.post("/v1/responses", json=BODY | TOOLS | {"stream": True})).text)
    deltas = [event["delta"] for event in found if event["type"] == "response.function_call_arguments.delta"]

    assert whole["output"][0]["type"] == "function_call"
    assert list(json.loads(whole["output"][0]["arguments"])) == ["city"]
    assert "".join(deltas) == whole["output"][0]["arguments"]
    assert found[-1]["response"]["output"][0]["arguments"] == whole["output"][0]["arguments"]
