"""Others' load clients, through the gateway, to real engines: no errors, and all count the same tokens.

Times to first token are compared by ``python -m loadtest.bench.clients run``, on a quiet machine: here they
must be there, and a client's cannot be shorter than that of the gateway, which is nearer to the engine.
Clients that are not installed are skipped.
"""

import os
import random
from pathlib import Path

import openai
import pytest
from fakes.real_engines import RUNNING, pair_of, random_words
from fakes.running import Fleet

from loadtest.bench.clients.client import Load
from loadtest.bench.clients.field import CLIENTS
from loadtest.bench.clients.gateway_view import GatewayView
from loadtest.bench.clients.installation import HOW_TO_INSTALL, Installation
from loadtest.bench.clients.run import run
from loadtest.vllm import MODEL_NAME, EnginesHome, VllmEngine

pytestmark = pair_of("qwen3")

TIMEOUT_S = 400.0
"""A client takes seconds; imports of some take minutes where processors are scarce."""

BLOCK_TOKENS = 32


@pytest.mark.deep
@pytest.mark.parametrize("name", CLIENTS)
async def test_a_client_gets_its_answers_and_all_count_the_same(
    name: str, fleet: Fleet, engines: list[VllmEngine], chance: random.Random, tmp_path: Path
) -> None:
    home = EnginesHome.usual()
    program = Installation(home).program(CLIENTS[name])
    if program is None:
        pytest.skip(f"{name} is not installed: {HOW_TO_INSTALL} {name}")
    urls = [engine.url for engine in engines]
    gateway = await fleet.gateway(*urls, placement={"block_tokens": BLOCK_TOKENS})
    load = Load(
        *(gateway.url, MODEL_NAME, home.models / "qwen3"),
        requests=12,
        rate_per_s=4.0,
        seed=chance.randrange(2**31),
    )
    with GatewayView(gateway.url) as view:
        compared = await run(CLIENTS[name], program, load, view, tmp_path, TIMEOUT_S)
    assert compared.disagreements == []
    if not os.environ.get(RUNNING):  # who runs them may have other guests
        assert compared.engine_disagreements == []
    assert compared.report.completed > 0
    assert compared.report.ttft_s is not None
    assert compared.counted.ttft_s is not None
    assert compared.report.ttft_s > compared.counted.ttft_s > 0


async def test_what_a_response_says_before_its_first_token_ends_no_prefill(
    fleet: Fleet, engines: list[VllmEngine], chance: random.Random
) -> None:
    """A prompt of some 2,000 tokens keeps these engines busy for tenths of a second."""
    gateway = await fleet.gateway(engines[0].url)
    reserved: dict[str, bool] = {}
    async with openai.AsyncOpenAI(
        base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S
    ) as sdk:
        events = await sdk.responses.create(
            model=MODEL_NAME, input=random_words(chance, 350), max_output_tokens=8, stream=True
        )
        async for event in events:
            reserved.setdefault(event.type, bool(gateway.process.fleet.loads.prefill_us.any()))
    assert reserved["response.created"]
    assert not reserved["response.output_item.added"]
