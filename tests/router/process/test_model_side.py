"""The gate stands in front of the tokenizer only while adapters are declared."""

import httpx
from fakes.gateway import Bench

from router.models import AdapterGate, ModelReader
from router.process.model_side import ModelSide
from router.settings import Settings


async def test_the_gate_comes_and_goes_with_the_adapters() -> None:
    bench = Bench()
    gateway = bench.gateway
    gateway.reader = ModelReader(Settings(), bench.core, bench.metrics, door=bench.door)
    async with httpx.AsyncClient() as client:
        side = ModelSide(gateway, client, None)
        side.use(Settings())
        assert gateway.tokenizing is None
        adapters = {"sql": {"path": "/sql", "base": "m"}}
        settings = Settings.model_validate({"models": {"adapters": adapters, "adapters_per_worker_max": 9}})
        gateway.reader.use(settings)
        side.use(settings)
        assert isinstance(gateway.tokenizing, AdapterGate)
        assert side.loader.per_worker_max == 9
        gateway.reader.use(Settings())
        side.use(Settings())
        assert gateway.tokenizing is None
        await side.close()
