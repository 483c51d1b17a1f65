from typing import Any

import pytest

BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi", "max_output_tokens": 2},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    "/v1/embeddings": {"input": "hi"},
    "/v1/rerank": {"query": "q", "documents": ["a"]},
    "/v1/score": {"text_1": "q", "text_2": "a"},
}


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
async def test_every_api_works_in_both_dialects_but_for_generate(start: Any, dialect: str) -> None:
    _, client = await start(dialect=dialect)
    for path, body in BODIES.items():
        assert (await client.post(path, json=body)).status_code == 200
    generate = await client.post("/generate", json={"text": "hi", "sampling_params": {"max_new_tokens": 2}})

    assert generate.status_code == (200 if dialect == "sglang" else 404)
