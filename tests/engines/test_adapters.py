"""LoRA adapters of a real vLLM, which the gateway has it load and unload: random ones of rank 4."""

import json
import random
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fakes.real_engines import engines_with, random_ids
from fakes.running import Fleet, RunningGateway, until

from loadtest.vllm import MODEL_NAME, VllmEngine, VllmSettings

TIMEOUT_S = 120.0
RANK = 4
BLOCK_TOKENS = 32

SHAPES = {"v_proj": (64, 64), "o_proj": (128, 64)}
"""Inputs and outputs of the adapted projections of `loadtest.vllm.models`' qwen3."""

SCALE = 10.0
"""Scale of the weights; the base weights and norms are a thousandth (``--load-format dummy``)."""

ONE = VllmSettings(
    flags=("--enable-lora", "--max-lora-rank", "8", "--max-loras", "2", "--max-cpu-loras", "2"),
    environment={"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"},
)


def make_adapter(folder: Path, seed: int) -> str:
    """Write an adapter as PEFT does, with random weights that change each answer; return its path."""
    folder.mkdir()
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "target_modules": list(SHAPES),
        "bias": "none",
        "base_model_name_or_path": MODEL_NAME,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    numbers = np.random.default_rng(seed)
    header: dict[str, Any] = {}
    data = bytearray()
    for layer in range(2):
        for name, (inputs, outputs) in SHAPES.items():
            for part, shape in (("A", (RANK, inputs)), ("B", (outputs, RANK))):
                weights = numbers.normal(scale=SCALE, size=shape).astype(np.float32).tobytes()
                key = f"base_model.model.model.layers.{layer}.self_attn.{name}.lora_{part}.weight"
                offsets = [len(data), len(data) + len(weights)]
                header[key] = {"dtype": "F32", "shape": list(shape), "data_offsets": offsets}
                data += weights
    head = json.dumps(header).encode()
    # The format of safetensors: the header's size, the header, the data.
    (folder / "adapter_model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + data)
    return str(folder)


async def ask(gateway: RunningGateway, model: str, prompt: list[int]) -> httpx.Response:
    body = {"model": model, "prompt": prompt, "max_tokens": 16, "temperature": 0}
    return await gateway.client.post("/v1/completions", json=body, timeout=TIMEOUT_S)


def text(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def cached_tokens(answer: httpx.Response) -> int:
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


async def listed(engine: VllmEngine) -> dict[str, str | None]:
    async with httpx.AsyncClient(trust_env=False) as client:
        data = (await client.get(f"{engine.url}/v1/models")).json()["data"]
    return {each["id"]: each["parent"] for each in data}


@engines_with(ONE)
async def test_an_adapter_is_loaded_by_its_first_request_and_unloaded_for_another(
    fleet: Fleet, engines: list[VllmEngine], chance: random.Random, tmp_path: Path
) -> None:
    (engine,) = engines
    adapters = {
        name: {"path": make_adapter(tmp_path / name, seed), "base": MODEL_NAME}
        for seed, name in enumerate(("sql", "law"))
    }
    adapters["lost"] = {"path": str(tmp_path / "lost"), "base": MODEL_NAME}
    rules = {"adapters": adapters, "adapters_per_worker_max": 1}
    gateway = await fleet.gateway(engine.url, models=rules)
    await until(lambda: all(local.models for local in gateway.process.registry.all()))
    assert await listed(engine) == {MODEL_NAME: None}

    prompt = random_ids(chance, 200)
    base, sql, again = [await ask(gateway, name, prompt) for name in (MODEL_NAME, "sql", "sql")]
    assert await listed(engine) == {MODEL_NAME: None, "sql": MODEL_NAME}
    assert text(sql) == text(again) != text(base)
    assert sql.json()["model"] == "sql"
    # Each adapter has a cache of its own.
    assert (cached_tokens(sql), cached_tokens(again)) == (0, 199 // BLOCK_TOKENS * BLOCK_TOKENS)

    law = await ask(gateway, "law", prompt)
    assert text(law) not in (text(sql), text(base))
    assert await listed(engine) == {MODEL_NAME: None, "law": MODEL_NAME}
    assert text(await ask(gateway, f"{MODEL_NAME}:sql", prompt)) == text(sql)
    assert await listed(engine) == {MODEL_NAME: None, "sql": MODEL_NAME}

    lost = await ask(gateway, "lost", prompt)
    assert lost.status_code == 503
    assert "No adapter found" in lost.json()["error"]["message"]
    scraped = (await gateway.client.get("/metrics")).text
    assert 'cacheway_adapter_loads_total{outcome="unloaded"} 3' in scraped


@pytest.mark.deep
@engines_with(ONE)
async def test_a_load_that_a_client_of_the_engine_did_is_no_failure(
    fleet: Fleet, engines: list[VllmEngine], chance: random.Random, tmp_path: Path
) -> None:
    """So does another replica, between two health checks of this one."""
    (engine,) = engines
    path = make_adapter(tmp_path / "own", 7)
    rules = {"adapters": {"own": {"path": path, "base": MODEL_NAME}}}
    gateway = await fleet.gateway(engine.url, models=rules)
    await until(lambda: all(local.models for local in gateway.process.registry.all()))
    async with httpx.AsyncClient(trust_env=False, base_url=engine.url, timeout=TIMEOUT_S) as client:
        loaded = await client.post("/v1/load_lora_adapter", json={"lora_name": "own", "lora_path": path})
        assert loaded.status_code == 200
        assert text(await ask(gateway, "own", random_ids(chance, 50)))
        gone = await client.post("/v1/unload_lora_adapter", json={"lora_name": "own"})
        assert gone.status_code == 200
