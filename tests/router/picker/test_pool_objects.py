import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from fakes.cluster import Cluster
from fakes.cluster_api import ClusterApi
from fakes.running import until

from router.discovery import DiscoveryRules, PodPool
from router.discovery.api_server import ApiServer
from router.discovery.source import ApiFailure
from router.log_pace import LogPace
from router.picker.intents import Intents, targets_of
from router.picker.pool_objects import (
    OBJECTS_MAX,
    UNREADABLE_S,
    PoolObjects,
    make_pool_objects,
    objectives_of,
    rewrites_of,
)
from router.settings import Settings


def objective(name: str, priority: int | None, pool: str = "pool") -> dict[str, Any]:
    spec = {"poolRef": {"group": "inference.networking.k8s.io", "name": pool}}
    return {"metadata": {"name": name}, "spec": spec | ({} if priority is None else {"priority": priority})}


def rewrite(
    name: str, *rules: Any, created: str = "2026-01-01T00:00:00Z", pool: str = "pool"
) -> dict[str, Any]:
    metadata = {"name": name, "creationTimestamp": created}
    return {"metadata": metadata, "spec": {"poolRef": {"name": pool}, "rules": list(rules)}}


def rule(model: str, *targets: tuple[str, int]) -> dict[str, Any]:
    matches = {"matches": [{"model": {"type": "Exact", "value": model}}]} if model else {}
    return {**matches, "targets": [{"modelRewrite": name, "weight": weight} for name, weight in targets]}


def listed(*items: dict[str, Any]) -> list[bytes]:
    return [json.dumps({"kind": "List", "items": items}).encode()]


def test_objectives_of_the_pool_count_and_unset_priorities_are_zero() -> None:
    lists = listed(objective("a", 5), objective("b", None), objective("c", 9, "other"), {"metadata": 7})
    assert objectives_of(lists, "pool", LogPace()) == {"a": 5, "b": 0}


def test_the_models_own_rule_comes_first_then_the_oldest_object_then_the_first_rule() -> None:
    lists = listed(
        rewrite("young", rule("m", ("young", 1)), rule("", ("late", 1)), created="2026-02-01T00:00:00Z"),
        rewrite("old", rule("", ("all", 1)), rule("m", ("first", 2), ("second", 1)), rule("m", ("no", 1))),
        rewrite("strange", rule("x", ("strange", 1)), pool="other"),
        rewrite("empty", {"matches": [{"model": {"value": "y"}}]}),
    )
    exact, otherwise = rewrites_of(lists, "pool", LogPace())
    assert exact == {"m": targets_of([("first", 2), ("second", 1)])}
    assert otherwise == targets_of([("all", 1)])


@pytest.mark.parametrize("data", [b"", b"[]", b'{"items": 7}', b"{"])
def test_a_list_that_is_none_is_a_failure(data: bytes) -> None:
    with pytest.raises(ApiFailure):
        objectives_of([data], "pool", LogPace())
    with pytest.raises(ApiFailure):
        rewrites_of([data], "pool", LogPace())


def test_more_objects_than_anybody_has_are_a_failure() -> None:
    with pytest.raises(ApiFailure):
        objectives_of(listed(*({} for _ in range(OBJECTS_MAX + 1))), "pool", LogPace())


async def test_objects_are_followed_and_stay_while_the_server_is_lost(tmp_path: Path) -> None:
    """Only one of the four lists exists here: the kinds of the other group are not installed."""
    path = "apis/llm-d.ai/v1alpha2/namespaces/llm/inferenceobjectives"
    async with ClusterApi(Cluster()).serving() as api:
        api.objects[path] = json.loads(listed(objective("a", 5))[0])
        intents = Intents(Settings())
        objects = PoolObjects(ApiServer(api.kubeconfig(tmp_path)), "llm", "pool", intents)
        await objects.look()
        assert intents.objectives == {"a": 5}
        api.status = 500
        await objects.look()
        await objects.look()
        assert intents.objectives == {"a": 5}
        api.status = 0
        del api.objects[path]
        running = asyncio.create_task(objects.run())
        await until(lambda: not intents.objectives)
        running.cancel()
        await asyncio.wait({running})


def test_an_object_that_cannot_be_read_is_told_once_in_ten_minutes(caplog: pytest.LogCaptureFixture) -> None:
    """All objects are read every few seconds."""
    clock = [0.0]
    pace = LogPace(UNREADABLE_S, lambda: clock[0])
    lists = listed({"metadata": 7}, objective("a", 5))
    for clock[0] in (0.0, 5.0, 10.0):
        assert objectives_of(lists, "pool", pace) == {"a": 5}
    assert len(caplog.records) == 1
    clock[0] = UNREADABLE_S
    objectives_of(lists, "pool", pace)
    assert len(caplog.records) == 2


async def test_the_namespace_is_the_pools_or_our_own(tmp_path: Path) -> None:
    async with ClusterApi(Cluster()).serving() as api:
        rules = DiscoveryRules(kubeconfig=api.kubeconfig(tmp_path))
        for namespace, asked in (("", "llm"), ("other", "other")):
            objects = make_pool_objects(rules, PodPool("pool", namespace), Intents(Settings()))
            await objects.look()
            await objects._api.close()
            assert f"/namespaces/{asked}/" in api.requests[-1][0]
