import base64
from array import array
from typing import Any

import pytest


async def test_a_vector_is_the_same_as_numbers_and_as_base64(start: Any) -> None:
    _, client = await start()
    body = {"input": ["a", "b"], "dimensions": 8}
    numbers = (await client.post("/v1/embeddings", json=body)).json()
    packed = (await client.post("/v1/embeddings", json=body | {"encoding_format": "base64"})).json()

    assert [one["index"] for one in numbers["data"]] == [0, 1]
    for plain, coded in zip(numbers["data"], packed["data"], strict=True):
        assert plain["embedding"] == pytest.approx(array("f", base64.b64decode(coded["embedding"])).tolist())
    assert numbers["usage"]["prompt_tokens"] == 2


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
async def test_documents_are_ranked_best_first(start: Any, dialect: str) -> None:
    _, client = await start(dialect=dialect)
    documents = ["a", {"text": "b"}, "c"]
    answer = (await client.post("/v1/rerank", json={"query": "q", "documents": documents, "top_n": 2})).json()
    results = answer if dialect == "sglang" else answer["results"]
    scores = [one["score" if dialect == "sglang" else "relevance_score"] for one in results]

    assert len(results) == 2
    assert scores == sorted(scores, reverse=True)
    for one in results:
        text = one["document"] if dialect == "sglang" else one["document"]["text"]
        assert text == "abc"[one["index"]]


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
async def test_every_pair_gets_a_score(start: Any, dialect: str) -> None:
    _, client = await start(dialect=dialect)
    answer = (await client.post("/v1/score", json={"text_1": "q", "text_2": ["a", "b"]})).json()

    assert len(answer["scores" if dialect == "sglang" else "data"]) == 2
