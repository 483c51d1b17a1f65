"""``GET /discovery``."""

from fakes.admin import Setup
from fakes.cluster import Cluster, pod
from fakes.discovering import Replica

from router.admin.discovery_view import described


async def test_without_discovery_it_says_so(setup: Setup) -> None:
    assert (await setup.client.get("/discovery")).json() == {"enabled": False}


async def test_every_pod_is_told_with_its_workers_or_why_it_has_none() -> None:
    cluster = Cluster()
    cluster.put(pod("good", annotations={"cacheway.io/port": "8000,8001"}))
    cluster.put(pod("bad", ip="10.0.0.2", annotations={"cacheway.io/site": "?"}))
    cluster.put(pod("starting", ip="", ready=False, phase="Pending"))
    replica = Replica(cluster)
    await replica.list()
    replica.time.advance(7)
    view = described(replica.discovery)
    assert (view["enabled"], view["problem"], view["list_age_s"]) == (True, None, 7.0)
    assert view["states"] == {"bad_label": 1, "no_address": 1, "used": 1}
    (selection,) = view["selections"]
    assert (selection["namespace"], selection["role"], selection["selector"]) == ("llm", None, "app=engine")
    assert (selection["pods"], selection["list_age_s"], selection["failures"]) == (3, 7.0, {})
    bad, good, starting = view["pods"]
    assert (good["workers"], good["not_used"]) == (["10.0.0.1:8000", "10.0.0.1:8001"], None)
    assert (bad["workers"], bad["not_used"]) == ([], "bad_label")
    assert "site '?' is no name" in bad["detail"]
    assert (starting["ip"], starting["phase"], starting["ready"]) == (None, "Pending", False)
