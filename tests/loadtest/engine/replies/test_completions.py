import json
from typing import Any


async def test_choices_are_numbered_through_over_prompts_and_answers(start: Any) -> None:
    _, client = await start()
    body = {"prompt": ["a", "b"], "n": 2, "max_tokens": 3, "ignore_eos": True}
    whole = (await client.post("/v1/completions", json=body)).json()
    more = {"stream": True, "stream_options": {"include_usage": True}}
    streamed = await client.post("/v1/completions", json=body | more)
    chunks = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    texts = [""] * 4
    for chunk in chunks[:-1]:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]

    assert [one["index"] for one in whole["choices"]] == [0, 1, 2, 3]
    assert [one["text"] for one in whole["choices"]] == texts
    assert chunks[-1]["usage"] == whole["usage"]
    assert (whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"]) == (2, 12)
