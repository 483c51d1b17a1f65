import json
from itertools import pairwise
from typing import Any

PARAMS = {"max_new_tokens": 5, "ignore_eos": True}


async def test_a_single_prompt_gets_one_object_with_its_facts(start: Any) -> None:
    _, client = await start(block_tokens=1)
    for _ in range(2):
        answer = (
            await client.post("/generate", json={"input_ids": [1, 2, 3], "sampling_params": PARAMS})
        ).json()

    meta = answer["meta_info"]
    assert (meta["prompt_tokens"], meta["cached_tokens"], meta["completion_tokens"]) == (3, 2, 5)
    assert meta["finish_reason"] == {"type": "length", "length": 5}
    assert len(answer["text"]) == 20
    assert len(answer["output_ids"]) == 5


async def test_a_batch_gets_a_list_and_an_index_in_streams(start: Any) -> None:
    _, client = await start()
    body = {"text": ["a", "b"], "sampling_params": PARAMS}
    whole = (await client.post("/generate", json=body)).json()
    streamed = await client.post("/generate", json=body | {"stream": True})
    chunks = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    last = {chunk["index"]: chunk for chunk in chunks}

    assert [one["text"] for one in whole] == [last[0]["text"], last[1]["text"]]
    assert streamed.text.endswith("data: [DONE]\n\n")


async def test_a_stream_repeats_the_text_so_far(start: Any) -> None:
    _, client = await start()
    body = {"text": "a", "sampling_params": PARAMS | {"stop": "zz"}, "stream": True}
    streamed = await client.post("/generate", json=body)
    chunks = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]

    for chunk, following in pairwise(chunks):
        assert following["text"].startswith(chunk["text"])
        assert chunk["meta_info"]["finish_reason"] is None
    assert "index" not in chunks[0]


async def test_the_string_that_stopped_it_is_named(start: Any) -> None:
    _, client = await start()
    whole = (await client.post("/generate", json={"text": "a", "sampling_params": PARAMS})).json()["text"]
    body = {"text": "a", "sampling_params": PARAMS | {"stop": [whole[5:7]]}}
    answer = (await client.post("/generate", json=body)).json()

    assert answer["text"] == whole[:5]
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": whole[5:7]}
