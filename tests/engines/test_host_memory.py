"""Host memory of a real engine: what its device evicted is predicted from there (docs/lower-tiers.md).

The engine is vLLM with its own offloading to host memory; only the copy is ours (`fakes.inside_vllm`).
"""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.kv_truth import Known, completion
from fakes.real_engines import engines_with, random_ids
from fakes.running import Fleet, RunningGateway, until, until_async

from loadtest.bench.window_truth.judges import BLOCK_TOKENS
from loadtest.bench.window_truth.script import Script
from loadtest.vllm import VllmServer, VllmSettings

DEVICE_BLOCKS, HOST_BLOCKS = 40, 120
"""Four prompts of 300 tokens, and 13."""

LAYER_BYTES = BLOCK_TOKENS * 2 * 2 * 32 * 4
"""A block of one layer of a tiny model: keys and values, 2 heads each of 32 floats."""

BLOCK_BYTES = 2 * LAYER_BYTES
"""A block of the tiny qwen3, which has two layers."""

INSIDE_VLLM = Path(__file__).parents[1] / "fakes" / "inside_vllm"
HOST_TOKENS = HOST_BLOCKS * BLOCK_TOKENS
PROMPT_TOKENS, REUSED_TOKENS = 300, 288


def offloading(host_bytes: int = HOST_BLOCKS * BLOCK_BYTES, **more: bool) -> VllmSettings:
    """Return the settings of a qwen3 with host memory; ``more`` goes to the connector."""
    transfer = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "HostMemory",
            "spec_module_path": "host_memory",
            "cpu_bytes_to_use": host_bytes,
            **more,
        },
    }
    return VllmSettings(
        max_model_tokens=512,
        kv_blocks=DEVICE_BLOCKS,
        step_tokens_max=256,
        flags=("--kv-transfer-config", json.dumps(transfer)),
        environment={"PYTHONPATH": str(INSIDE_VLLM)},
    )


host_memory = engines_with(offloading(self_describing_kv_events=True))

windows_in_host_memory = engines_with(
    replace(
        offloading(400 * LAYER_BYTES, self_describing_kv_events=True),
        model="gemma3",
        kv_blocks=150,
    )
)
"""Six groups of one layer each share the blocks of the device and those of the host."""


async def before(server: VllmServer, fleet: Fleet, **labels: str) -> RunningGateway:
    """Start a gateway that is told nothing by events."""
    gateway = await fleet.gateway(placement={"block_tokens": BLOCK_TOKENS})
    registry = gateway.process.registry
    local = registry.get(registry.add(server.url, labels=labels))
    assert local is not None
    await until(lambda: local.state == "healthy" and local.worker.capacity_tokens)
    return gateway


async def ask(gateway: RunningGateway, prompt: list[int]) -> tuple[int, int]:
    """Return the tokens that were predicted and those that were reused."""
    answer = (await gateway.client.post("/v1/completions", json=completion(prompt))).raise_for_status()
    cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] or 0
    return int(answer.headers["x-cacheway-cached-tokens"]), cached


@host_memory
async def test_with_the_label_a_prefix_that_left_the_device_is_predicted_from_host_memory(
    fleet: Fleet, servers: list[VllmServer], chance: random.Random
) -> None:
    gateway = await before(servers[0], fleet, host_tokens=str(HOST_TOKENS))
    prompts = [random_ids(chance, PROMPT_TOKENS) for _ in range(8)]
    assert [await ask(gateway, prompt) for prompt in prompts] == [(0, 0)] * 8
    loaded = await servers[0].metric("vllm:external_prefix_cache_hits_total")
    assert [await ask(gateway, prompt) for prompt in prompts] == [(REUSED_TOKENS, REUSED_TOKENS)] * 8
    # The device holds four of them: most came from the host.
    loaded = await servers[0].metric("vllm:external_prefix_cache_hits_total") - loaded
    assert loaded >= 4 * REUSED_TOKENS


@host_memory
async def test_what_left_host_memory_too_is_not_predicted(
    fleet: Fleet, servers: list[VllmServer], chance: random.Random
) -> None:
    gateway = await before(servers[0], fleet, host_tokens=str(HOST_TOKENS))
    prompts = [random_ids(chance, PROMPT_TOKENS) for _ in range(20)]
    for prompt in prompts:
        assert await ask(gateway, prompt) == (0, 0)
    assert [await ask(gateway, prompt) for prompt in prompts[:3]] == [(0, 0)] * 3
    assert await ask(gateway, prompts[-1]) == (REUSED_TOKENS, REUSED_TOKENS)


@host_memory
async def test_without_the_label_host_memory_is_overlooked_and_never_promised(
    fleet: Fleet, servers: list[VllmServer], chance: random.Random
) -> None:
    gateway = await before(servers[0], fleet)
    prompts = [random_ids(chance, PROMPT_TOKENS) for _ in range(8)]
    for prompt in prompts:
        assert await ask(gateway, prompt) == (0, 0)
    assert await ask(gateway, prompts[0]) == (0, REUSED_TOKENS)


@host_memory
async def test_a_flush_empties_host_memory_too(
    fleet: Fleet, servers: list[VllmServer], chance: random.Random
) -> None:
    gateway = await before(servers[0], fleet, host_tokens=str(HOST_TOKENS))
    prompts = [random_ids(chance, PROMPT_TOKENS) for _ in range(8)]
    for prompt in prompts:
        await ask(gateway, prompt)

    async def flushed() -> bool:
        """Blocks may still be in use by the last request's copies."""
        return bool((await gateway.client.post("/flush_cache")).json().get("flushed"))

    await until_async(flushed)
    assert [await ask(gateway, prompt) for prompt in prompts[:3]] == [(0, 0)] * 3


@pytest.mark.parametrize(
    "described",
    [
        pytest.param(False, marks=engines_with(offloading())),
        pytest.param(True, marks=host_memory),
    ],
)
async def test_events_say_what_host_memory_holds(
    described: bool, fleet: Fleet, servers: list[VllmServer], chance: random.Random
) -> None:
    """Also without token ids: the blocks are those that the device had."""
    known = await Known.before(servers[0], "qwen3", fleet)
    known.loads_whole_prompts = True
    script = Script(chance.getrandbits(32), prompt_tokens_max=400)
    loaded = await servers[0].metric("vllm:external_prefix_cache_hits_total")
    for _ in range(80):
        asked = script.draw()
        answer = await known.ask([*asked.prompt], asked.answer_tokens)
        script.answered(tuple(answer.token_ids))
    assert await servers[0].metric("vllm:external_prefix_cache_hits_total") > loaded


@windows_in_host_memory
async def test_host_memory_goes_on_where_the_device_ends_and_windows_are_asked_of_it_from_there(
    fleet: Fleet, servers: list[VllmServer], chance: random.Random
) -> None:
    known = await Known.before(servers[0], "gemma3", fleet)
    known.loads_whole_prompts = True
    script = Script(chance.getrandbits(32), prompt_tokens_max=400)
    loaded = await servers[0].metric("vllm:external_prefix_cache_hits_total")
    for _ in range(120):
        asked = script.draw()
        answer = await known.ask([*asked.prompt], asked.answer_tokens)
        script.answered(tuple(answer.token_ids))
    assert await servers[0].metric("vllm:external_prefix_cache_hits_total") > loaded
