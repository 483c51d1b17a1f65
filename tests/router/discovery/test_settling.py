"""The state of a pod's workers after each change of the pod, and of them."""

import pytest
from fakes.cluster import Cluster, pod
from fakes.discovering import PLAIN, Log, Replica
from fakes.gateway import VirtualTime

from policies import Finished, Forget, Placed, WorkerGone, WorkerPut
from router.discovery.watch import Selection

PREFILL = Selection("cluster", "llm", "prefill", "app=engine,part=p")
DECODE = Selection("cluster", "llm", "decode", "app=engine,part=d")
A = "10.0.0.1:8000"


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def replica(cluster: Cluster) -> Replica:
    return Replica(cluster)


def place(replica: Replica, request_id: str = "q") -> None:
    """A request is in flight at the worker."""
    replica.shared.publish(Placed(request_id, replica.time.clock.now_us(), A, "r1", 1000, 10, 20, (b"",)))


# Coming and going.


async def test_a_ready_pod_is_added_with_what_it_says(cluster: Cluster, replica: Replica) -> None:
    cluster.put(pod(annotations={"cacheway.io/bucket": "64K", "cacheway.io/capacity-tokens": "9"}))
    await replica.list()
    worker = replica.worker()
    assert (worker.url, worker.role, worker.capacity_tokens) == (f"http://{A}", "plain", 9)
    assert worker.labels["discovered"] == "kubernetes:llm/a"
    assert replica.labels() == {"bucket": "64K"}
    assert replica.registry.get(A) is not None
    assert replica.states() == {"used": 1}


@pytest.mark.parametrize(
    ("how", "state"),
    [
        ({"ready": False}, "not_ready"),
        ({"phase": "Pending"}, "not_running"),
        ({"ip": ""}, "no_address"),
        ({"phase": "Failed"}, "ended"),
        ({"ports": {}}, "no_port"),
        ({"annotations": {"cacheway.io/site": "!"}}, "bad_label"),
    ],
)
async def test_a_pod_that_cannot_serve_is_not_added_and_says_why(
    cluster: Cluster, replica: Replica, how: dict[str, object], state: str
) -> None:
    """The other workers are added."""
    cluster.put(pod("bad", **how))  # type: ignore[arg-type]
    cluster.put(pod("good", ip="10.0.0.2"))
    await replica.list()
    assert replica.workers() == {"10.0.0.2:8000": "serves"}
    assert replica.states() == {state: 1, "used": 1}


async def test_a_pod_that_is_being_deleted_when_it_is_first_seen_is_not_added(
    cluster: Cluster, replica: Replica
) -> None:
    cluster.put(pod())
    cluster.edit(deleting=True)
    await replica.list()
    assert (replica.workers(), replica.states()) == ({}, {"deleting": 1})


async def test_readiness_drains_and_brings_back(cluster: Cluster, replica: Replica) -> None:
    cluster.put(pod())
    await replica.list()
    cluster.edit(ready=False)
    await replica.hear()
    assert (replica.workers(), replica.note().drained) == ({A: "drains"}, "not_ready")
    cluster.edit(ready=True)
    await replica.hear()
    assert (replica.workers(), replica.note().drained) == ({A: "serves"}, "")


async def test_a_deleted_pod_drains_at_once_and_goes_when_nothing_is_in_flight(
    cluster: Cluster, replica: Replica
) -> None:
    """No removal within two seconds: a sibling may have placed a request before it heard of the drain."""
    cluster.put(pod())
    await replica.list()
    place(replica)
    cluster.edit(deleting=True)
    await replica.hear()
    assert (replica.workers(), replica.note().drained) == ({A: "drains"}, "deleting")
    await replica.wait(100)
    assert replica.workers() == {A: "drains"}
    replica.shared.publish(Finished("q", replica.time.clock.now_us()))
    await replica.wait(1)
    assert replica.workers() == {}
    await replica.list()
    assert replica.workers() == {}


async def test_an_idle_pod_that_is_deleted_is_kept_for_two_seconds(
    cluster: Cluster, replica: Replica
) -> None:
    cluster.put(pod())
    await replica.list()
    cluster.edit(deleting=True)
    await replica.hear()
    await replica.wait(1.5)
    assert replica.workers() == {A: "drains"}
    await replica.wait(1)
    assert replica.workers() == {}


async def test_the_wish_to_remove_a_worker_survives_what_its_pod_says(
    cluster: Cluster, replica: Replica
) -> None:
    """An operator asked for it with ``DELETE /workers/ID?drain=true``."""
    cluster.put(pod())
    await replica.list()
    place(replica)
    replica.registry.change(A, draining=True, leaving=True)
    since_us = replica.worker().drain_us
    replica.time.advance(1)
    cluster.edit(annotations={"cacheway.io/site": "dc2"})
    await replica.hear()
    assert (replica.worker().leaving, replica.worker().drain_us) == (True, since_us)


async def test_a_pod_that_is_deleted_while_somebody_drains_its_worker_leaves_too(
    cluster: Cluster, replica: Replica
) -> None:
    cluster.put(pod())
    await replica.list()
    replica.registry.change(A, draining=True)
    cluster.edit(deleting=True)
    await replica.hear()
    await replica.wait(3)
    assert replica.workers() == {}


async def test_a_pod_that_is_gone_takes_its_worker_along(cluster: Cluster, replica: Replica) -> None:
    cluster.put(pod())
    await replica.list()
    place(replica)
    cluster.delete()
    await replica.hear()
    assert replica.workers() == {}
    assert replica.discovery.sightings == {}


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
async def test_a_pod_that_ends_takes_its_worker_along(cluster: Cluster, replica: Replica, phase: str) -> None:
    """An evicted pod stays for long, with the phase Failed."""
    cluster.put(pod())
    await replica.list()
    cluster.edit(phase=phase, ready=False)
    await replica.hear()
    assert (replica.workers(), replica.states()) == ({}, {"ended": 1})


async def test_a_pod_that_is_no_longer_selected_takes_its_worker_along(
    cluster: Cluster, replica: Replica
) -> None:
    """The usual way to take a pod out of service for an inspection."""
    cluster.put(pod())
    await replica.list()
    cluster.edit(labels={"app": "quarantined"})
    await replica.hear()
    assert replica.workers() == {}


async def test_pods_with_one_name_in_two_namespaces_are_two(cluster: Cluster) -> None:
    replica = Replica(cluster, PLAIN, Selection("cluster", "prod", "", "app=engine"))
    cluster.put(pod("a", "llm"))
    cluster.put(pod("a", "prod", ip="10.0.0.2"))
    await replica.list()
    assert len(replica.workers()) == 2
    cluster.delete("a", "prod")
    await replica.hear()
    assert replica.workers() == {A: "serves"}


async def test_a_pod_with_several_ports_is_several_workers_that_go_together(
    cluster: Cluster, replica: Replica
) -> None:
    cluster.put(pod(annotations={"smg.ai/worker-ports": "8000,8001"}))
    await replica.list()
    assert sorted(replica.workers()) == [A, "10.0.0.1:8001"]
    cluster.edit(annotations={"smg.ai/worker-ports": "8001,8002"})
    await replica.hear()
    assert sorted(replica.workers()) == ["10.0.0.1:8001", "10.0.0.1:8002"]
    cluster.edit(ready=False)
    await replica.hear()
    assert set(replica.workers().values()) == {"drains"}
    cluster.delete()
    await replica.hear()
    assert replica.workers() == {}


# A pod that flaps.


async def test_a_pod_that_flaps_drains_each_time_at_once_and_waits_longer_each_time(
    cluster: Cluster, replica: Replica
) -> None:
    """No delay the first time, then 5 s, 10 s and 20 s; ten calm minutes are forgiven."""
    cluster.put(pod())
    await replica.list()
    for hold_s in (0, 5, 10, 20):
        cluster.edit(ready=False)
        await replica.hear()
        assert replica.workers() == {A: "drains"}
        cluster.edit(ready=True)
        await replica.hear()
        if hold_s:
            assert replica.workers() == {A: "drains"}
            await replica.wait(hold_s - 0.1)
            assert replica.workers() == {A: "drains"}
            await replica.wait(0.1)
        assert replica.workers() == {A: "serves"}
    replica.time.advance(601)
    cluster.edit(ready=False)
    await replica.hear()
    cluster.edit(ready=True)
    await replica.hear()
    assert replica.workers() == {A: "serves"}


async def test_what_a_pod_says_while_it_must_wait_is_heeded_and_ends_no_wait(
    cluster: Cluster, replica: Replica
) -> None:
    cluster.put(pod())
    await replica.list()
    for ready in (False, True, False, True):
        cluster.edit(ready=ready)
        await replica.hear()
    cluster.edit(annotations={"cacheway.io/site": "dc2"})
    await replica.hear()
    assert (replica.workers(), replica.labels()) == ({A: "drains"}, {"site": "dc2"})
    await replica.wait(5)
    assert replica.workers() == {A: "serves"}


# Unchanged facts are not published again.


async def test_nothing_is_published_for_what_is_known(cluster: Cluster, replica: Replica) -> None:
    cluster.put(pod())
    await replica.list()
    said = len(replica.shared.ops)
    cluster.edit(annotations={"other.io/checksum": "1"})
    await replica.hear()
    await replica.list()
    await replica.wait(10)
    assert len(replica.shared.ops) == said


async def test_a_lost_entry_is_said_again(cluster: Cluster, replica: Replica) -> None:
    """A sibling changed the worker at the same moment, and did not know of the drain."""
    cluster.put(pod())
    await replica.list()
    before = replica.worker()
    cluster.edit(ready=False)
    await replica.hear()
    at_us = replica.time.clock.now_us() + 1
    replica.shared.publish(WorkerPut(A, at_us, "r2", before.url, "plain", False, 77, dict(before.labels)))
    assert replica.workers() == {A: "serves"}
    await replica.wait(1)
    assert (replica.workers(), replica.worker().capacity_tokens) == ({A: "drains"}, 77)


# Operators' changes.


async def test_a_drain_by_hand_stays_whatever_the_pod_does(cluster: Cluster, replica: Replica) -> None:
    cluster.put(pod())
    await replica.list()
    replica.registry.change(A, draining=True)
    await replica.list()
    cluster.edit(ready=False)
    await replica.hear()
    cluster.edit(ready=True, annotations={"cacheway.io/site": "dc2"})
    await replica.hear()
    await replica.list()
    assert (replica.workers(), replica.labels()) == ({A: "drains"}, {"site": "dc2"})
    replica.registry.change(A, draining=False)
    await replica.list()
    assert replica.workers() == {A: "serves"}


async def test_a_drain_that_somebody_takes_over_does_not_end_with_the_pods_trouble(
    cluster: Cluster, replica: Replica
) -> None:
    cluster.put(pod())
    await replica.list()
    cluster.edit(ready=False)
    await replica.hear()
    replica.registry.change(A, draining=True)
    cluster.edit(ready=True)
    await replica.hear()
    assert replica.workers() == {A: "drains"}


async def test_an_undrain_by_hand_stays_until_the_pod_says_something_new(
    cluster: Cluster, replica: Replica
) -> None:
    cluster.put(pod())
    await replica.list()
    cluster.edit(ready=False)
    await replica.hear()
    replica.registry.change(A, draining=False)
    await replica.list()
    assert replica.workers() == {A: "serves"}
    cluster.edit(annotations={"x": "y"})
    await replica.hear()
    assert replica.workers() == {A: "drains"}


async def test_labels_given_by_hand_stay_and_only_what_the_pod_changes_changes(
    cluster: Cluster, replica: Replica
) -> None:
    cluster.put(pod(annotations={"cacheway.io/site": "dc1", "cacheway.io/bucket": "64K"}))
    await replica.list()
    replica.registry.change(A, labels={"zone": "b", "site": "dc9"}, role="decode", capacity_tokens=5)
    await replica.list()
    assert replica.labels() == {"zone": "b", "site": "dc9"}
    cluster.edit(annotations={"cacheway.io/worker-class": "h200"})
    await replica.hear()
    assert replica.labels() == {"zone": "b", "site": "dc9", "worker_class": "h200"}
    assert (replica.worker().role, replica.worker().capacity_tokens) == ("decode", 5)
    cluster.edit(annotations={"cacheway.io/site": "dc2", "cacheway.io/role": "prefill"})
    await replica.hear()
    assert (replica.labels()["site"], replica.worker().role) == ("dc2", "prefill")
    cluster.delete()
    await replica.hear()
    assert replica.workers() == {}


async def test_a_label_that_the_pod_takes_back_goes_unless_somebody_gave_another(
    cluster: Cluster, replica: Replica
) -> None:
    cluster.put(pod(annotations={"cacheway.io/site": "dc1", "cacheway.io/bucket": "64K"}))
    await replica.list()
    replica.registry.change(A, labels={"site": "dc9", "bucket": "64K"})
    cluster.edit(annotations={"cacheway.io/site": "", "cacheway.io/bucket": ""})
    await replica.hear()
    assert replica.labels() == {"site": "dc9"}


async def test_a_worker_added_by_hand_is_somebody_elses(cluster: Cluster, replica: Replica) -> None:
    replica.registry.add(f"http://{A}", labels={"zone": "b"})
    cluster.put(pod())
    await replica.list()
    assert replica.states() == {"by_hand": 1}
    cluster.edit(ready=False)
    await replica.hear()
    cluster.delete()
    await replica.hear()
    await replica.list()
    assert (replica.workers(), replica.labels()) == ({A: "serves"}, {"zone": "b"})


async def test_a_worker_that_somebody_added_anew_is_theirs_from_then_on(
    cluster: Cluster, replica: Replica
) -> None:
    cluster.put(pod())
    await replica.list()
    replica.time.advance(1)
    replica.registry.add(f"http://{A}")
    cluster.delete()
    await replica.hear()
    assert replica.workers() == {A: "serves"}


async def test_a_worker_removed_by_hand_comes_back_with_the_next_list(
    cluster: Cluster, replica: Replica
) -> None:
    """Its pod still serves; only a drain keeps the worker out."""
    cluster.put(pod())
    await replica.list()
    replica.time.advance(1)
    replica.registry.remove(A)
    replica.time.advance(1)
    await replica.list()
    assert replica.workers() == {A: "serves"}


async def test_a_worker_that_is_turning_is_not_brought_back_by_its_pod(
    cluster: Cluster, replica: Replica
) -> None:
    """The slow loop drained it, too, and ends that when the engine has its new role."""
    cluster.put(pod())
    await replica.list()
    cluster.edit(ready=False)
    await replica.hear()
    worker = replica.worker()
    labels = {**worker.labels, "turning": "decode"}
    at_us = replica.time.clock.now_us() + 1
    replica.shared.publish(WorkerPut(A, at_us, "r2", worker.url, "plain", True, 0, labels))
    cluster.edit(ready=True)
    await replica.hear()
    assert (replica.workers(), replica.note().drained) == ({A: "drains"}, "")


# Pods with workers that then declare impossible values.


async def test_a_worker_stays_when_its_pod_says_nonsense_but_heeds_readiness(
    cluster: Cluster, replica: Replica
) -> None:
    cluster.put(pod(annotations={"cacheway.io/site": "dc1"}))
    await replica.list()
    cluster.edit(annotations={"cacheway.io/site": "?"})
    await replica.hear()
    assert (replica.workers(), replica.labels()) == ({A: "serves"}, {"site": "dc1"})
    assert replica.states() == {"bad_label": 1}
    cluster.edit(ready=False)
    await replica.hear()
    assert replica.workers() == {A: "drains"}
    cluster.edit(ready=True, annotations={"cacheway.io/site": "dc2"})
    await replica.hear()
    assert (replica.workers(), replica.labels()) == ({A: "serves"}, {"site": "dc2"})


async def test_a_pod_that_two_roles_select_keeps_the_one_it_has(cluster: Cluster) -> None:
    replica = Replica(cluster, PREFILL, Selection("cluster", "llm", "decode", "app=engine,other=d"))
    cluster.put(pod(labels={"part": "p"}))
    await replica.list()
    cluster.edit(labels={"other": "d"})
    await replica.hear()
    assert (replica.worker().role, replica.states()) == ("prefill", {"role_conflict": 1})
    cluster.edit(labels={"part": "x"})
    await replica.hear()
    assert (replica.worker().role, replica.states()) == ("decode", {"used": 1})


async def test_a_pod_that_moves_from_one_selector_to_another_changes_its_role(cluster: Cluster) -> None:
    replica = Replica(cluster, PREFILL, DECODE)
    cluster.put(pod(labels={"part": "p"}))
    await replica.list()
    cluster.edit(labels={"part": "d"})
    await replica.hear()
    assert (replica.worker().role, replica.workers()) == ("decode", {A: "serves"})


# Addresses that change hands.


async def test_a_pod_made_anew_under_its_name_elsewhere_is_another_worker(
    cluster: Cluster, replica: Replica
) -> None:
    """A StatefulSet's pod; the end of the first one is never reported."""
    cluster.put(pod())
    await replica.list()
    cluster.delete(lost=True)
    cluster.put(pod(ip="10.0.0.2"))
    await replica.hear()
    assert sorted(replica.workers()) == [A, "10.0.0.2:8000"]
    await replica.list()
    assert replica.workers() == {"10.0.0.2:8000": "serves"}


async def test_an_address_that_another_pod_has_now_is_taken_over_with_an_empty_cache(
    cluster: Cluster, replica: Replica
) -> None:
    """The end of the first pod is never reported; the drain by hand and the labels were of the first."""
    cluster.put(pod("a", annotations={"cacheway.io/site": "dc1"}))
    await replica.list()
    replica.registry.change(A, draining=True, labels={"zone": "b"})
    cluster.delete("a", lost=True)
    cluster.put(pod("b", annotations={"cacheway.io/bucket": "64K"}))
    await replica.list()
    assert (replica.workers(), replica.labels()) == ({A: "serves"}, {"bucket": "64K"})
    assert replica.worker().labels["discovered"] == "kubernetes:llm/b"
    assert [op.worker for op in replica.shared.said(Forget)] == [A]


async def test_a_worker_goes_when_its_address_is_anothers_that_is_not_ready(
    cluster: Cluster, replica: Replica
) -> None:
    cluster.put(pod("a"))
    await replica.list()
    cluster.delete("a")
    cluster.put(pod("b", ready=False))
    await replica.hear()
    assert replica.workers() == {}
    cluster.edit("b", ready=True)
    await replica.hear()
    assert replica.worker().labels["discovered"] == "kubernetes:llm/b"


async def test_of_two_pods_with_one_address_the_one_that_serves_has_it(
    cluster: Cluster, replica: Replica
) -> None:
    """Two pods with the node's network and one port; the older is ending, and keeps it meanwhile."""
    cluster.put(pod("old"))
    await replica.list()
    cluster.put(pod("new", ready=False))
    await replica.hear()
    assert replica.worker().labels["discovered"] == "kubernetes:llm/old"
    assert replica.states() == {"used": 1, "same_address": 1}
    cluster.edit("old", deleting=True)
    await replica.hear()
    assert (replica.worker().labels["discovered"], replica.workers()) == ("kubernetes:llm/old", {A: "drains"})
    cluster.edit("new", ready=True)
    await replica.hear()
    assert (replica.worker().labels["discovered"], replica.workers()) == ("kubernetes:llm/new", {A: "serves"})
    cluster.delete("old")
    await replica.hear()
    assert replica.workers() == {A: "serves"}


async def test_an_address_falls_to_the_other_claimant_when_the_first_leaves(
    cluster: Cluster, replica: Replica
) -> None:
    cluster.put(pod("a"))
    cluster.put(pod("b"))
    await replica.list()
    owner = replica.worker().labels["discovered"].rpartition("/")[2]
    other = {"a": "b", "b": "a"}[owner]
    cluster.delete(owner)
    await replica.hear()
    assert replica.worker().labels["discovered"] == f"kubernetes:llm/{other}"
    assert replica.states() == {"used": 1}


async def test_what_another_replica_knows_better_is_left_alone(cluster: Cluster, replica: Replica) -> None:
    """The replica's view is older than the note at the worker."""
    cluster.put(pod())
    await replica.list()
    ahead = Replica(cluster, time=replica.time, name="r2")
    for op in replica.shared.ops:
        ahead.shared.publish(op)
    cluster.edit(ready=False, lost=True)
    replica.time.advance(1)
    await ahead.list()
    for op in ahead.shared.ops:
        replica.fleet.apply(op)
    assert replica.workers() == {A: "drains"}
    said = len(replica.shared.ops)
    replica.discovery._mark(next(iter(replica.discovery.sightings)))  # as if it heard something old
    await replica.wait(60)
    assert (replica.workers(), len(replica.shared.ops)) == ({A: "drains"}, said)
    assert not replica.shared.said(WorkerGone)


async def test_a_pod_that_had_an_address_before_does_not_take_it_back(cluster: Cluster) -> None:
    """This replica has not heard that the pod is gone; its sibling has added the next pod there."""
    log, time = Log(), VirtualTime()
    behind, ahead = (Replica(cluster, log=log, time=time, name=name) for name in ("r1", "r2"))
    cluster.put(pod("a"))
    await behind.list()
    cluster.delete("a", lost=True)
    cluster.put(pod("b"), lost=True)
    time.advance(1)
    await ahead.list()
    behind.shared.read()
    behind.discovery._mark(next(iter(behind.discovery.sightings)))
    await behind.wait(1)
    assert behind.worker().labels["discovered"] == "kubernetes:llm/b"
