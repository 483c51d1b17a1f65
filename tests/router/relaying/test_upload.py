"""Uploads. On sockets: `tests/integration/test_endpoints.py`."""

from fakes.gateway import Bench

from router.fleet.engine_info import ServedModel
from router.relaying.upload import serves_one_model


def test_adapters_make_no_second_model(bench: Bench) -> None:
    one, two = bench.registry.all()[:2]
    assert serves_one_model([one, two])
    one.models = (ServedModel("m"), ServedModel("lora", parent="m"))
    two.models = None
    assert serves_one_model([one, two])
    two.models = (ServedModel("other"),)
    assert not serves_one_model([one, two])
