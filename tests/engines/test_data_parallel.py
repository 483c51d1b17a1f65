"""Data-parallel ranks of a real engine: the gateway chooses them, and knows the cache of each."""

import random
from itertools import pairwise

import pytest
from fakes.kv_truth import Known, completion
from fakes.real_engines import engines_with, random_ids
from fakes.running import Fleet, RunningGateway, until, until_async

from loadtest.bench.window_truth.judges import BLOCK_TOKENS
from loadtest.bench.window_truth.script import Script
from loadtest.vllm import VllmEngine, VllmSettings

RANKS = 2
KV_BLOCKS = 60
"""Blocks of each rank: six prompts of 300 tokens."""

two_ranks = engines_with(
    VllmSettings(ranks=RANKS, max_model_tokens=512, kv_blocks=KV_BLOCKS, step_tokens_max=256)
)


async def known_ranks(engine: VllmEngine, fleet: Fleet) -> Known:
    return await Known.before(engine, "qwen3", fleet, ranks=RANKS)


async def parted(gateway: RunningGateway) -> None:
    await until(lambda: [len(local.places) for local in gateway.process.registry.all()] == [RANKS])


@two_ranks
async def test_two_ranks_are_found_each_with_a_capacity_of_its_own(
    fleet: Fleet, engines: list[VllmEngine]
) -> None:
    gateway = await fleet.gateway(engines[0].url)
    await parted(gateway)
    (worker,) = (await gateway.client.get("/workers")).json()["workers"]
    assert [each["rank"] for each in worker["ranks"]] == [0, 1]
    assert [each["capacity_tokens"] for each in worker["ranks"]] == [KV_BLOCKS * BLOCK_TOKENS] * RANKS


@two_ranks
async def test_the_engine_runs_a_request_in_the_rank_that_the_gateway_chose(
    fleet: Fleet, engines: list[VllmEngine], chance: random.Random
) -> None:
    gateway = await fleet.gateway(engines[0].url)
    await parted(gateway)

    async def prompt_tokens() -> list[float]:
        return [
            await engines[0].metric("vllm:prompt_tokens_total", engine=str(rank)) for rank in range(RANKS)
        ]

    before = await prompt_tokens()
    asked = [0.0] * RANKS
    for number in range(6):
        body = completion(random_ids(chance, 100 + number))
        answer = (await gateway.client.post("/v1/completions", json=body)).raise_for_status()
        asked[int(answer.headers["x-cacheway-worker"].rpartition("@")[2])] += len(body["prompt"])
    assert all(asked)

    async def ran() -> bool:
        return [now - then for now, then in zip(await prompt_tokens(), before, strict=True)] == asked

    await until_async(ran)


@two_ranks
async def test_prompts_go_on_in_their_rank_and_find_there_what_was_predicted(
    fleet: Fleet, engines: list[VllmEngine], chance: random.Random
) -> None:
    known = await known_ranks(engines[0], fleet)
    used = set()
    for _ in range(4):
        prompt = random_ids(chance, 300)
        asked = [prompt, prompt, prompt + random_ids(chance, 100)]
        answers = [await known.ask(each) for each in asked]
        assert [answer.cached_tokens for answer in answers] == [0, 288, 288]
        assert all(one.worker == other.worker for one, other in pairwise(answers))
        used.add(answers[0].worker)
    assert used == set(known.places)


@two_ranks
@pytest.mark.parametrize("rank", range(RANKS))
async def test_what_one_rank_was_sent_past_the_gateway_is_known_to_be_there(
    fleet: Fleet, engines: list[VllmEngine], chance: random.Random, rank: int
) -> None:
    known = await known_ranks(engines[0], fleet)
    prompt = random_ids(chance, 300)
    await known.ask_past_the_gateway(prompt, headers={"x-data-parallel-rank": str(rank)})
    answer = await known.ask(prompt)
    assert (answer.worker, answer.cached_tokens) == (known.places[rank], 288)


@two_ranks
async def test_any_conversation_is_predicted_in_both_ranks_also_after_evictions(
    fleet: Fleet, engines: list[VllmEngine], chance: random.Random
) -> None:
    known = await known_ranks(engines[0], fleet)
    script = Script(chance.getrandbits(32), prompt_tokens_max=400)
    reused = dict.fromkeys(known.places, 0)
    for _ in range(80):
        asked = script.draw()
        answer = await known.ask([*asked.prompt], asked.answer_tokens)
        script.answered(tuple(answer.token_ids))
        reused[answer.worker] += answer.cached_tokens
    assert all(reused.values())
    assert all(follower.counts()["removed"] for follower in known.followers)


@two_ranks
async def test_history_alone_predicts_what_each_rank_reuses(
    fleet: Fleet, engines: list[VllmEngine], chance: random.Random
) -> None:
    gateway = await fleet.gateway(engines[0].url, placement={"block_tokens": BLOCK_TOKENS})
    await parted(gateway)
    prompts = [random_ids(chance, 300) for _ in range(4)]
    predicted, cached, workers = [], [], []
    for prompt in prompts + [prompt + random_ids(chance, 50) for prompt in prompts]:
        answer = await gateway.client.post("/v1/completions", json=completion(prompt))
        predicted.append(int(answer.raise_for_status().headers["x-cacheway-cached-tokens"]))
        cached.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
        workers.append(answer.headers["x-cacheway-worker"])
    assert predicted == cached == [0] * 4 + [288] * 4
    assert workers[:4] == workers[4:]
    assert len(set(workers)) == RANKS
