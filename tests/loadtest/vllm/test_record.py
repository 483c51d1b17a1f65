"""Events of an engine are kept beside its requests; the engine is a publisher and a list of answers."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import httpx
import msgspec
import pytest
import zmq
import zmq.asyncio

from loadtest.vllm import record
from loadtest.vllm.record import Recorder, Recording, Step, load


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    recording = Recording("vLLM 0, tiny", 32, 64, [Step([1, 2], 0, [[b"", b"\0" * 8, b"batch"]])])
    file = tmp_path / "one.msgpack.gz"
    file.write_bytes(gzip.compress(msgspec.msgpack.encode(recording)))

    assert load(file) == recording


async def test_each_request_is_kept_with_the_frames_that_it_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "QUIET_S", 0.2)
    endpoint = f"ipc://{tmp_path}/events"
    asked: list[list[int]] = []
    forgot_after: list[int] = []

    async def forget() -> None:
        forgot_after.append(len(asked))

    with zmq.asyncio.Context() as context, context.socket(zmq.PUB) as publisher:
        publisher.bind(endpoint)

        async def answer(request: httpx.Request) -> httpx.Response:
            body = json.loads(request.content)
            asked.append(body["prompt"])
            await publisher.send_multipart([b"", len(asked).to_bytes(8, "big"), b"batch"])
            usage = {"prompt_tokens_details": {"cached_tokens": 32 * len(asked)}}
            return httpx.Response(
                200, json={"usage": usage, "choices": [{"token_ids": [7] * body["max_tokens"]}]}
            )

        async with httpx.AsyncClient(
            base_url="http://engine", transport=httpx.MockTransport(answer)
        ) as client:
            server = SimpleNamespace(kv_events=endpoint, forget=forget)
            steps = await Recorder(server, client).record(3)  # type: ignore[arg-type]

    assert [step.prompt for step in steps] == asked
    assert [step.cached_tokens for step in steps] == [32, 64, 96]
    assert [step.frames for step in steps] == [
        [[b"", number.to_bytes(8, "big"), b"batch"]] for number in (1, 2, 3)
    ]
    assert forgot_after == [2]
