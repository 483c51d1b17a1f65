"""Names, roles and addresses stay; what is started ends."""

import asyncio
import json
import signal
from pathlib import Path

from loadtest.chaos.cast import DECODE, PAIR_MODEL, PLAIN, PREFILL, TENANTS, Cast, Engine, standing
from loadtest.engine import EngineSettings
from loadtest.workload import MODEL
from router.tenants.keys import digest_of


async def test_models_dialects_and_roles_are_divided(tmp_path: Path) -> None:
    cast = Cast(tmp_path, standing(EngineSettings()))
    assert {cast.engines[name].settings.models for name in PLAIN} == {(MODEL,)}
    assert {cast.engines[name].settings.models for name in (*PREFILL, *DECODE)} == {(PAIR_MODEL,)}
    assert {cast.engines[name].settings.dialect for name in PLAIN} == {"sglang", "vllm"}
    assert [cast.engines[name].role for name in ("e1", "p1", "d1")] == ["plain", "prefill", "decode"]
    ports = [port for engine in cast.engines.values() for port in (engine.port, engine.side_port)]
    assert len(set(ports)) == len(ports)
    await cast.control.aclose()


async def test_the_keys_file_holds_hashes_of_the_keys_that_clients_send(tmp_path: Path) -> None:
    cast = Cast(tmp_path, standing(EngineSettings()))
    cast.write_keys()
    said = json.loads(cast.keys_file.read_text())["tenants"]
    for tenant in TENANTS:
        key = cast.headers(tenant.name)["authorization"].removeprefix("Bearer ")
        assert said[tenant.name]["keys"] == [f"sha256:{digest_of(key.encode()).hex()}"]
        assert key not in cast.keys_file.read_text()
    await cast.control.aclose()


async def test_an_engine_keeps_its_address_in_all_its_lives_and_writes_down_who_came(tmp_path: Path) -> None:
    settings = EngineSettings(models=(MODEL,), prefill_tokens_per_s=1e6, tpot_ms=0.1)
    cast = Cast(tmp_path, standing(settings))
    engine: Engine = cast.engines["e1"]
    body = {"model": MODEL, "prompt": "hello", "max_tokens": 1}
    try:
        for life, name in enumerate(("first", "second"), start=1):
            await engine.start()
            url = f"{engine.url}/v1/completions"
            answer = await cast.control.post(url, json=body, headers={"x-request-id": name})
            assert answer.status_code == 200
            assert engine.lives == life
            await engine.end()
    finally:
        await engine.end()
        await cast.control.aclose()
    assert engine.journal.read_text() == "first\nsecond\n"


async def test_an_engine_that_was_stopped_can_be_ended(tmp_path: Path) -> None:
    cast = Cast(tmp_path, standing(EngineSettings()))
    engine = cast.engines["p1"]
    await engine.start()
    engine.signalled(signal.SIGSTOP)
    async with asyncio.timeout(60):
        await engine.end()
    await cast.control.aclose()
