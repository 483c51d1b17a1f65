"""Workers with a label, followed as they come and go."""

from fakes.gateway import Bench

from router.models.labels import LabelIndex


def test_workers_are_found_by_label_as_they_come_and_go() -> None:
    bench = Bench(workers=1)
    index = LabelIndex(bench.core)
    assert index.slots_of("version=v2").tolist() == []
    bench.registry.add("http://new:1", labels={"version": "v2"})
    local = next(local for local in bench.registry.all() if local.worker.labels)
    assert index.slots_of("version=v2").tolist() == list(local.slots)
    assert index.slots_of("version=v1").tolist() == []
    bench.registry.remove(local.worker.worker_id)
    assert index.slots_of("version=v2").tolist() == []
