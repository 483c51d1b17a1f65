"""Requests whose prompts have to be tokenized first."""

from typing import Any

import orjson
import pytest
from fakes.gateway import SSE, Bench, chat
from fakes.insight import client_of

from policies import BytesPerToken, Placed
from radix import chain_token_ids
from router.engines import Description
from router.fleet import ServedModel
from router.gateway.identity import Identity
from router.gateway.large import LARGE_BODY_BYTES
from router.gateway.parsing import ParsedRequest
from router.tokenizing.tokenizing import Done, with_identity

IDS = list(range(1024))


class Scripted:
    """Says at once, or when the test wants it, what ids a prompt has."""

    def __init__(self, bench: Bench, *, at_once: bool = False) -> None:
        self.asked: list[tuple[ParsedRequest, bytes, Done]] = []
        self.answers: list[int] = []
        self._at_once = at_once
        self._hasher = bench.gateway.reader.hasher
        bench.gateway.tokenizing = self
        bench.gateway.reader.identifier.finds_roots = True

    def begin(self, parsed: ParsedRequest, body: bytes, done: Done) -> ParsedRequest | None:
        if self._at_once:
            return self.found(parsed)
        self.asked.append((parsed, body, done))
        return None

    async def now(self, parsed: ParsedRequest, body: bytes) -> ParsedRequest:
        return self.found(parsed) if body else parsed

    def found(self, parsed: ParsedRequest) -> ParsedRequest:
        assert parsed.ids_root is not None
        path = chain_token_ids(IDS, parsed.ids_root, self._hasher.block_tokens)
        return with_identity(parsed, Identity((path,), 0, len(IDS), 7, 9))

    def answered(self, parsed: ParsedRequest, prompt_tokens: int) -> None:
        self.answers.append(prompt_tokens)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("size", [5000, LARGE_BODY_BYTES])
def test_a_request_is_placed_by_its_ids(at_once: bool, size: int) -> None:
    bench = Bench()
    tokenizing = Scripted(bench, at_once=at_once)
    bench.start(chat("x" * size, stream=True))
    bench.time.advance(0.1)
    for parsed, body, done in tokenizing.asked:
        assert not bench.upstreams
        assert (parsed.prompt_token_ids, parsed.prompt_bytes > size) == (0, True)
        assert len(body) > size
        done(tokenizing.found(parsed))
    (placed,) = bench.shared.said(Placed)
    root = bench.gateway.reader.hasher.engine_root("m", "")
    assert placed.paths == (chain_token_ids(IDS, root, 256),)
    assert placed.uncached_tokens == len(IDS)
    bench.upstream.head(200, SSE)
    usage = {"prompt_tokens": 1024, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}
    bench.upstream.data(b"data: " + orjson.dumps({"choices": [], "usage": usage}) + b"\n\ndata: [DONE]\n\n")
    bench.upstream.end()
    assert tokenizing.answers == [1024]
    bench.check()


def test_a_prompt_that_keeps_its_text_is_not_compared() -> None:
    bench = Bench()
    tokenizing = Scripted(bench)
    bench.start(chat())
    ((parsed, _, done),) = tokenizing.asked
    done(parsed)
    bench.upstream.answer(b'{"usage":{"prompt_tokens":900,"completion_tokens":1}}')
    assert tokenizing.answers == []
    bench.check()


def test_bytes_per_token_are_learned_from_prompts_with_ids_too() -> None:
    """For those that keep their text."""
    bench = Bench()
    Scripted(bench, at_once=True)
    for _ in range(20):
        bench.start(chat("x" * 2048))
        bench.upstream.answer(b'{"usage":{"prompt_tokens":1024,"completion_tokens":1}}')
        bench.time.advance(2)
    assert bench.shared.said(BytesPerToken)[-1].bytes_per_token == pytest.approx(2.0, rel=0.2)
    bench.check()


def test_a_client_that_leaves_meanwhile_gets_no_worker() -> None:
    bench = Bench()
    tokenizing = Scripted(bench)
    exchange, client = bench.start(chat())
    client.left = True
    exchange.client_left()
    ((parsed, _, done),) = tokenizing.asked
    done(tokenizing.found(parsed))
    assert not bench.upstreams
    bench.check()


def test_a_deadline_that_passes_meanwhile_answers_the_client() -> None:
    bench = Bench()
    tokenizing = Scripted(bench)
    _, client = bench.start(chat(), headers=[(b"x-request-timeout", b"0.05")])
    bench.time.advance(0.1)
    assert client.status == 408
    ((parsed, _, done),) = tokenizing.asked
    done(tokenizing.found(parsed))
    assert not bench.upstreams
    bench.check()


@pytest.mark.parametrize(("model", "status"), [("unknown", 404), ("m", 500)])
def test_what_goes_wrong_afterwards_is_answered(
    model: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(workers=1)
    tokenizing = Scripted(bench)
    models = (ServedModel("m"), ServedModel("n"))
    bench.registry.described(bench.local("w0:80"), models, Description("", 0))
    _, client = bench.start({**chat(), "model": model})
    if status == 500:
        monkeypatch.setattr(bench.gateway.placing.decider, "decide", None)
    ((parsed, _, done),) = tokenizing.asked
    done(parsed)
    assert client.status == status
    bench.check()


async def test_an_explanation_goes_the_same_way() -> None:
    bench = Bench()
    Scripted(bench, at_once=True)
    async with client_of(bench) as client:
        answer = await client.post("/explain", content=orjson.dumps({"request": chat()}))
    found: dict[str, Any] = answer.json()
    assert found["request"]["prompt_tokens"] == 1024
    assert found["request"]["blocks"] == 4
    bench.check()
