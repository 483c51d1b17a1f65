"""Where requests go: ids of attempts, what is reserved, profiles of models."""

from typing import Any

from fakes.gateway import Bench

from policies import Placed
from router.settings import Settings

TEXT = "word " * 1000


def chat(text: str = TEXT, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


def placed(bench: Bench, body: dict[str, Any]) -> Placed:
    bench.start(body)
    bench.upstream.answer()
    bench.check()
    last = bench.shared.said(Placed)[-1]
    assert isinstance(last, Placed)
    return last


def test_attempts_have_ids_of_their_own_also_between_replicas() -> None:
    one, other = Bench().gateway, Bench().gateway
    ids = {gateway.placing.next_attempt_id() for gateway in (one, other) for _ in range(100)}
    assert len(ids) == 200
    assert max(map(len, ids)) <= 16


def test_what_is_reserved_is_the_prompt_and_the_expected_output() -> None:
    """1,250 tokens and the frame of a message; the client's own limit bounds the output of each answer."""
    expected = Settings().placement.expected_output_tokens
    prompt_tokens = placed(Bench(), chat()).uncached_tokens
    assert 1250 <= prompt_tokens <= 1260
    assert placed(Bench(), chat()).context_tokens == prompt_tokens + expected
    assert placed(Bench(), chat(max_tokens=8)).context_tokens == prompt_tokens + 8
    assert placed(Bench(), chat(max_tokens=8, n=3)).context_tokens == prompt_tokens + 24
    assert placed(Bench(), chat(max_tokens=10**9)).context_tokens == prompt_tokens + expected


def test_models_have_attention_profiles_of_their_own() -> None:
    bench = Bench(placement={"models": {"swa": {"attention": "sliding_window", "window_tokens": 128}}})
    assert bench.gateway.placing.profile_of("swa").kind == "sliding_window"
    assert bench.gateway.placing.profile_of("m").kind == bench.gateway.placing.profile_of(None).kind == "full"
    every = Bench(placement={"models": {"*": {"attention": "linear"}}})
    assert every.gateway.placing.profile_of("m").kind == "linear"
