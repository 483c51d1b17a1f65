"""Predictions from a real engine's KV events match its reuse, to the token (docs/kv-events.md).

Each request waits until the events of the previous one have arrived, so no difference is excused.
"""

import random

import pytest
from fakes.kv_truth import Known
from fakes.real_engines import EACH_MODEL, engines_with, pair_of, random_ids
from fakes.running import Fleet, until

from loadtest.bench.window_truth.script import Script
from loadtest.vllm import VllmEngine, VllmServer, VllmSettings

REQUESTS = 60
PROMPT_TOKENS_MAX = 400

TIGHT = {"max_model_tokens": 512, "kv_blocks": 150, "step_tokens_max": 256}
"""Six groups of layers fill it with two or three prompts, one with eleven."""


@pair_of("gemma3")
async def test_hits_extensions_forks_and_junctions_are_predicted(
    fleet: Fleet, engines: list[VllmEngine], chance: random.Random
) -> None:
    known = await Known.before(engines[0], "gemma3", fleet)
    first = random_ids(chance, 300)
    longer = first + random_ids(chance, 100)
    forks = [first[:150] + random_ids(chance, 150) for _ in range(3)]
    asked = (first, first, longer, longer, *forks, forks[0])
    assert [(await known.ask(prompt)).cached_tokens for prompt in asked] == [
        0,
        288,
        288,
        384,
        0,
        128,
        128,
        288,
    ]


@pair_of("gemma3")
async def test_what_decoding_filled_is_predicted(
    fleet: Fleet, engines: list[VllmEngine], chance: random.Random
) -> None:
    known = await Known.before(engines[0], "gemma3", fleet)
    prompt = random_ids(chance, 200)
    answer = await known.ask(prompt, answer_tokens=150)
    turn = prompt + answer.token_ids
    await known.ask(turn + random_ids(chance, 40))
    assert (await known.ask(turn + random_ids(chance, 40))).cached_tokens > 200


@pair_of("gemma3")
async def test_what_others_sent_past_the_gateway_is_predicted(
    fleet: Fleet, engines: list[VllmEngine], chance: random.Random
) -> None:
    known = await Known.before(engines[0], "gemma3", fleet)
    prompt = random_ids(chance, 300)
    await known.ask_past_the_gateway(prompt)
    assert (await known.ask(prompt)).cached_tokens == 288


@pair_of("gemma3")
async def test_who_comes_late_knows_what_was_there_before(
    fleet: Fleet, engines: list[VllmEngine], chance: random.Random
) -> None:
    """The prompts come from old batches: the second gateway shares nothing with the first."""
    known = await Known.before(engines[0], "gemma3", fleet)
    prompt = random_ids(chance, 300)
    await known.ask(prompt)
    late = await Known.before(engines[0], "gemma3", fleet, shared={"namespace": f"{fleet.namespace}-late"})
    assert (await late.ask(prompt)).cached_tokens == 288


@EACH_MODEL
async def test_any_conversation_is_predicted(
    model: str, engines: list[VllmEngine], fleet: Fleet, chance: random.Random
) -> None:
    known = await Known.before(engines[0], model, fleet)
    await conversations(known, chance)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(model, marks=engines_with(VllmSettings(model=model, **TIGHT)))
        for model in ("qwen3", "gemma3")
    ],
)
async def test_evictions_are_known(
    model: str, engines: list[VllmEngine], fleet: Fleet, chance: random.Random
) -> None:
    known = await Known.before(engines[0], model, fleet)
    await conversations(known, chance)
    (follower,) = known.followers
    # The number of new prompts depends on chance.
    assert follower.counts()["removed"] > 10


async def conversations(known: Known, chance: random.Random) -> None:
    """Repeats, further turns and forks, from a script."""
    script = Script(chance.getrandbits(32), prompt_tokens_max=PROMPT_TOKENS_MAX)
    reused = 0
    for _ in range(REQUESTS):
        asked = script.draw()
        answer = await known.ask([*asked.prompt], asked.answer_tokens)
        script.answered(tuple(answer.token_ids))
        reused += answer.cached_tokens
    assert reused


@engines_with(VllmSettings(model="gemma3"))
async def test_an_emptied_cache_is_known_with_its_next_step(
    fleet: Fleet, servers: list[VllmServer], chance: random.Random
) -> None:
    """No other source reports it: the cache was emptied past the gateway."""
    known = await Known.before(servers[0], "gemma3", fleet)
    prompt = random_ids(chance, 300)
    await known.ask(prompt)
    await known.settle()
    await servers[0].forget()
    await known.ask(random_ids(chance, 300))
    assert [(await known.ask(prompt)).cached_tokens for _ in range(2)] == [0, 288]


@pytest.mark.deep
@engines_with(VllmSettings(model="gemma3"))
async def test_an_engine_that_was_killed_is_known_to_be_empty_and_followed_again(
    fleet: Fleet, servers: list[VllmServer], chance: random.Random
) -> None:
    known = await Known.before(servers[0], "gemma3", fleet)
    prompt = random_ids(chance, 300)
    await known.ask(prompt)
    await known.settle()
    await servers[0].kill()
    await until(lambda: not known.tracks())
    await servers[0].start()
    await until(known.serves)
    assert [(await known.ask(prompt)).cached_tokens for _ in range(2)] == [0, 288]
