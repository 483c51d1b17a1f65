"""Promises of the mock engines; `loadtest.bench.http_load` checks the form of their answers."""

import json

from loadtest.bench.child import started
from loadtest.bench.mock_engine import CHUNK_BYTES, EnginePlan, chunk, serve, streamed_answer, whole_answer


def test_answers_are_what_clients_of_an_engine_expect() -> None:
    assert json.loads(whole_answer(7, 50, 256))["usage"]["total_tokens"] == 306
    events = streamed_answer(7, 3, 256).decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    contents = [json.loads(event[6:])["choices"][0]["delta"]["content"] for event in events[:3]]
    assert contents == ["00000000 ", "00000001 ", "00000002 "]
    assert json.loads(events[3][6:])["usage"] == {
        "prompt_tokens": 256,
        "completion_tokens": 3,
        "total_tokens": 259,
    }


def test_all_chunks_are_equally_long() -> None:
    assert {len(chunk(number, at)) for number in (0, 99_999) for at in (0, 99_999)} == {CHUNK_BYTES}


async def test_engines_tell_their_ports_and_end_when_told() -> None:
    async with started(serve, EnginePlan(3, 0.01)) as engines:
        ports = await engines.next(list[int])
        assert ports is not None
        assert len(set(ports)) == 3
        engines.stop()
        assert await engines.next(list[int]) is None
