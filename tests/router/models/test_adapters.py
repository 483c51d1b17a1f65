"""Declared adapters: their names, and the workers that should hold them."""

from collections import Counter

import pytest
from fakes.gateway import Bench

from router.engines import Description
from router.fleet import ServedModel
from router.model_rules import Adapter
from router.models.adapters import Adapters, holds


def stage(engine: str = "vllm", workers: int = 8, k: int = 3) -> tuple[Bench, Adapters]:
    bench = Bench(workers=workers)
    for local in bench.registry.all():
        bench.registry.described(local, (ServedModel("mimo"),), Description(engine=engine))
    rules = {f"a{number}": Adapter(path="/a", base="mimo", workers=k) for number in range(40)}
    rules["lost"] = Adapter(path="/a", base="gone")
    return bench, Adapters(rules, bench.core)


@pytest.mark.parametrize(("asked", "name"), [("a1", "a1"), ("mimo:a1", "a1"), ("other:a1", ""), ("mimo", "")])
def test_an_adapter_has_two_names(asked: str, name: str) -> None:
    assert stage()[1].named(asked) == name


@pytest.mark.parametrize(("engine", "written"), [("vllm", "a1"), ("sglang", "mimo:a1"), ("", "a1")])
def test_the_body_has_the_name_that_the_engine_reads(engine: str, written: str) -> None:
    assert stage(engine)[1].written("a1") == written


def test_each_adapter_is_at_its_number_of_workers_and_all_workers_have_some() -> None:
    _, adapters = stage()
    places = {name: [local.worker.worker_id for local in adapters.wanted(name)] for name in adapters.rules}
    assert places.pop("lost") == []
    assert {len(set(each)) for each in places.values()} == {3}
    assert len(Counter(worker for each in places.values() for worker in each)) == 8
    again = stage()[1]
    assert places == {name: [local.worker.worker_id for local in again.wanted(name)] for name in places}


def test_a_worker_that_leaves_moves_its_own_adapters_only() -> None:
    bench, adapters = stage()
    before = {name: [local.worker.worker_id for local in adapters.wanted(name)] for name in adapters.rules}
    gone = bench.registry.all()[0].worker.worker_id
    bench.registry.remove(gone)
    for name, places in before.items():
        after = [local.worker.worker_id for local in adapters.wanted(name)]
        assert after[: len(places) - 1] == [each for each in places if each != gone][: len(places) - 1]
        if gone not in places:
            assert after == places


def test_a_worker_holds_what_it_lists() -> None:
    bench, _ = stage(workers=1)
    (local,) = bench.registry.all()
    assert (holds(local, "mimo"), holds(local, "a1")) == (True, False)
