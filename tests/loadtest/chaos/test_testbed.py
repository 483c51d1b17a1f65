"""Names, roles and addresses stay; all started processes end."""

import asyncio
import json
import signal
from pathlib import Path

from loadtest.chaos.testbed import DECODE, PAIR_MODEL, PLAIN, PREFILL, TENANTS, ChaosStage, Engine, standing
from loadtest.engine import EngineSettings
from loadtest.workload import MODEL
from router.tenants.keys import digest_of


async def test_models_dialects_and_roles_are_divided(tmp_path: Path) -> None:
    testbed = ChaosStage(tmp_path, standing(EngineSettings()))
    assert {testbed.engines[name].settings.models for name in PLAIN} == {(MODEL,)}
    assert {testbed.engines[name].settings.models for name in (*PREFILL, *DECODE)} == {(PAIR_MODEL,)}
    assert {testbed.engines[name].settings.dialect for name in PLAIN} == {"sglang", "vllm"}
    assert [testbed.engines[name].role for name in ("e1", "p1", "d1")] == ["plain", "prefill", "decode"]
    ports = [port for engine in testbed.engines.values() for port in (engine.port, engine.side_port)]
    assert len(set(ports)) == len(ports)
    await testbed.control.aclose()


async def test_the_keys_file_holds_hashes_of_the_keys_that_clients_send(tmp_path: Path) -> None:
    testbed = ChaosStage(tmp_path, standing(EngineSettings()))
    testbed.write_keys()
    said = json.loads(testbed.keys_file.read_text())["tenants"]
    for tenant in TENANTS:
        key = testbed.headers(tenant.name)["authorization"].removeprefix("Bearer ")
        assert said[tenant.name]["keys"] == [f"sha256:{digest_of(key.encode()).hex()}"]
        assert key not in testbed.keys_file.read_text()
    await testbed.control.aclose()


async def test_an_engine_keeps_its_address_in_all_its_lives_and_writes_down_who_came(tmp_path: Path) -> None:
    settings = EngineSettings(models=(MODEL,), prefill_tokens_per_s=1e6, tpot_ms=0.1)
    testbed = ChaosStage(tmp_path, standing(settings))
    engine: Engine = testbed.engines["e1"]
    body = {"model": MODEL, "prompt": "hello", "max_tokens": 1}
    try:
        for life, name in enumerate(("first", "second"), start=1):
            await engine.start()
            url = f"{engine.url}/v1/completions"
            answer = await testbed.control.post(url, json=body, headers={"x-request-id": name})
            assert answer.status_code == 200
            assert engine.lives == life
            await engine.end()
    finally:
        await engine.end()
        await testbed.control.aclose()
    assert engine.journal.read_text() == "first\nsecond\n"


async def test_an_engine_that_was_stopped_can_be_ended(tmp_path: Path) -> None:
    testbed = ChaosStage(tmp_path, standing(EngineSettings()))
    engine = testbed.engines["p1"]
    await engine.start()
    engine.signalled(signal.SIGSTOP)
    async with asyncio.timeout(60):
        await engine.end()
    await testbed.control.aclose()
