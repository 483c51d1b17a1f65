"""Window-safe lengths against real engines, one request at a time (docs/window-truth.md).

The long measurement is ``python -m loadtest.bench.window_truth``; prompts are shorter here, so that what a
test leaves fits the usual cache.
"""

import random

from fakes.real_engines import EACH_HYBRID, EACH_MODEL, random_ids
from fakes.running import Fleet, RunningGateway

from loadtest.bench.window_truth.asking import truths
from loadtest.bench.window_truth.judges import BLOCK_TOKENS, SWA_GROUPS, Simulated, attention_of, rules_of
from loadtest.bench.window_truth.script import Script
from loadtest.bench.window_truth.table import lines, markdown
from loadtest.vllm import VllmEngine, VllmSettings

REQUESTS = 100
PROMPT_TOKENS_MAX = 400


async def gateway_before(engine: VllmEngine, model: str, fleet: Fleet) -> RunningGateway:
    profile = attention_of(model)
    attention = {"attention": profile.kind, "window_tokens": profile.window_tokens}
    placement = {"block_tokens": BLOCK_TOKENS, "models": {"*": attention}}
    return await fleet.gateway(engine.url, placement=placement)


@EACH_MODEL
async def test_what_is_promised_is_what_the_engine_reuses(
    model: str, engines: list[VllmEngine], fleet: Fleet, chance: random.Random
) -> None:
    gateway = await gateway_before(engines[0], model, fleet)
    usual = VllmSettings()
    rules = rules_of(model, kv_blocks=usual.kv_blocks, step_tokens=usual.step_tokens_max)
    script = Script(chance.getrandbits(32), prompt_tokens_max=PROMPT_TOKENS_MAX)

    found = await truths(gateway.client, script, REQUESTS, Simulated(rules))

    table = lines(found, BLOCK_TOKENS)
    print(markdown(table))
    errors = {line.name: line.errors for line in table}
    hybrid = SWA_GROUPS[model] > 0
    assert errors["all" if hybrid else "prompts alone"]["window-safe"].kept
    assert errors["all"]["simulator"].kept
    plain = errors["all"]["match"].over_ratio
    assert plain > 0 if hybrid else plain <= 0.02


@EACH_HYBRID
async def test_a_fork_at_the_half_is_promised_nothing_and_its_junction_is(
    model: str, engines: list[VllmEngine], fleet: Fleet, chance: random.Random
) -> None:
    """Of 300 tokens 150 are shared: a plain match promises four blocks, the engine reuses none of them."""
    gateway = await gateway_before(engines[0], model, fleet)
    first = random_ids(chance, 300)
    cached = []
    for prompt in (first, *(first[:150] + random_ids(chance, 150) for _ in range(2))):
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 2, "ignore_eos": True}
        usage = (await gateway.client.post("/v1/completions", json=body)).raise_for_status().json()["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"] or 0)
    decisions = (await gateway.client.get("/decisions")).json()["decisions"]

    assert cached == [0, 0, 128]
    assert [decision["predicted_cached_tokens"] for decision in reversed(decisions)] == [0, 0, 128]
    assert [decision["matched_tokens"] for decision in reversed(decisions)] == [0, 128, 128]
