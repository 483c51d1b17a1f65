"""Discovery as a whole: several replicas, lists that find lost changes, and starts without the log."""

import asyncio
from typing import Any

from fakes.cluster import Cluster, pod
from fakes.discovering import PLAIN, Log, Replica
from fakes.gateway import VirtualTime
from hypothesis import given
from hypothesis import strategies as st

from policies import WorkerPut
from router.discovery.source import ApiFailure, Trouble
from router.discovery.watch import Selection
from router.metric_families import DISCOVERY_LIST_AGE, DISCOVERY_PODS

A = "10.0.0.1:8000"
FORBIDDEN = ApiFailure(Trouble.FORBIDDEN, "HTTP 403 forbidden")


async def failing(replica: Replica) -> None:
    """A list that fails."""
    try:
        await replica.watches[0].reconcile()
    except ApiFailure as failure:
        replica.watches[0].problem = failure.message
    await replica.discovery.settle()


async def test_metrics_read_the_pods_by_state_and_the_age_of_the_oldest_list(
    replica_of_two: tuple[Cluster, Replica],
) -> None:
    cluster, replica = replica_of_two
    cluster.put(pod("c", ip="10.0.0.3", ready=False))
    await replica.list()
    replica.time.advance(12.5)
    assert list(replica.discovery.samples()) == [
        (DISCOVERY_PODS, ("not_ready",), 1),
        (DISCOVERY_PODS, ("used",), 2),
        (DISCOVERY_LIST_AGE, (), 12.5),
    ]


async def test_before_the_first_list_metrics_read_no_age() -> None:
    assert not list(Replica(Cluster(), PLAIN).discovery.samples())


# Changes that a list finds.


async def test_a_list_finds_every_change_that_was_lost(replica_of_two: tuple[Cluster, Replica]) -> None:
    cluster, replica = replica_of_two
    cluster.delete("a", lost=True)
    cluster.edit("b", ready=False, lost=True)
    cluster.put(pod("c", ip="10.0.0.3"), lost=True)
    await replica.hear()
    assert replica.workers() == {A: "serves", "10.0.0.2:8000": "serves"}
    await replica.list()
    assert replica.workers() == {"10.0.0.2:8000": "drains", "10.0.0.3:8000": "serves"}


async def test_an_answer_that_is_none_takes_no_worker_away(replica_of_two: tuple[Cluster, Replica]) -> None:
    """Neither a revoked permission nor an unreachable server is an empty list."""
    cluster, replica = replica_of_two
    cluster.refuses = FORBIDDEN
    for _ in range(10):
        replica.time.advance(60)
        await failing(replica)
    assert set(replica.workers().values()) == {"serves"}
    assert replica.discovery.problem == "pods app=engine in llm: HTTP 403 forbidden"
    cluster.refuses = None
    await replica.list()
    assert replica.discovery.problem is None


async def test_a_list_that_is_empty_is_believed(replica_of_two: tuple[Cluster, Replica]) -> None:
    """An operator scaled to nothing."""
    cluster, replica = replica_of_two
    cluster.delete("a", lost=True)
    cluster.delete("b", lost=True)
    await replica.list()
    assert replica.workers() == {}


async def test_lists_that_never_come_are_a_problem(replica_of_two: tuple[Cluster, Replica]) -> None:
    """The problem appears after twice the interval of lists, and a minute."""
    _, replica = replica_of_two
    assert replica.discovery.list_age_s() == 0
    replica.time.advance(180)
    assert replica.discovery.problem is None
    replica.time.advance(1)
    assert replica.discovery.problem == "pods app=engine in llm: not listed for 181 s"
    assert replica.discovery.list_age_s() == 181


async def test_what_ended_while_no_replica_looked_is_found_at_the_start() -> None:
    cluster, log, time = Cluster(), Log(), VirtualTime()
    cluster.put(pod("a"))
    cluster.put(pod("b", ip="10.0.0.2"))
    await Replica(cluster, log=log, time=time).list()
    cluster.delete("a")
    cluster.edit("b", annotations={"cacheway.io/port": "9000"})
    later = Replica(cluster, log=log, time=time, name="r2")
    later.shared.read()
    await later.list()
    assert later.workers() == {"10.0.0.2:9000": "serves"}


# Several replicas.


async def test_a_replica_that_hears_later_publishes_nothing() -> None:
    cluster, log, time = Cluster(), Log(), VirtualTime()
    cluster.put(pod())
    first, second = (Replica(cluster, log=log, time=time, name=name) for name in ("r1", "r2"))
    await first.list()
    said = len(log.ops)
    second.shared.read()
    await second.list()
    cluster.edit(ready=False)
    await first.hear()
    second.shared.read()
    await second.hear()
    assert len(log.ops) == said + 1


async def test_replicas_that_hear_at_once_say_the_same() -> None:
    cluster, log, time = Cluster(), Log(), VirtualTime()
    replicas = [Replica(cluster, log=log, time=time, name=name) for name in ("r1", "r2", "r3")]
    cluster.put(pod())
    for replica in replicas:
        await replica.list()
    puts = [op for op in log.ops if isinstance(op, WorkerPut)]
    assert len(puts) == 3
    assert len({(op.url, op.role, op.draining, tuple(sorted(op.labels.items()))) for op in puts}) == 1


async def test_replicas_that_select_different_pods_leave_each_others_alone() -> None:
    """Also if one sees the namespace of the other, and in another cluster with the same names."""
    cluster, log, time = Cluster(), Log(), VirtualTime()
    cluster.put(pod("p", labels={"part": "p"}))
    cluster.put(pod("d", ip="10.0.0.2", labels={"part": "d"}))
    far = Cluster()
    far.put(pod("d", ip="10.1.0.2", labels={"part": "d"}))
    replicas = [
        Replica(cluster, Selection("c1", "llm", "prefill", "part=p"), log=log, time=time, name="r1"),
        Replica(cluster, Selection("c1", "llm", "decode", "part=d"), log=log, time=time, name="r2"),
        Replica(far, Selection("c2", "llm", "decode", "part=d"), log=log, time=time, name="r3"),
    ]
    for _ in range(3):
        for replica in replicas:
            await replica.list()
            for other in replicas:
                other.shared.read()
    assert len(log.ops) == 3
    assert all(len(replica.workers()) == 3 for replica in replicas)


async def test_a_pod_that_is_younger_than_a_list_does_not_lose_its_worker_to_it() -> None:
    """A sibling was ahead: its list is newer than the one that this replica is settling."""
    cluster, log, time = Cluster(), Log(), VirtualTime()
    first, second = (Replica(cluster, log=log, time=time, name=name) for name in ("r1", "r2"))
    await first.watches[0].reconcile()
    cluster.put(pod())
    await second.list()
    first.shared.read()
    await first.discovery.settle()
    assert first.workers() == {A: "serves"}


async def test_a_pod_that_is_not_ready_leaves_its_address_to_one_that_others_select() -> None:
    """Two pods with their node's network, one of which cannot start since the other has its port."""
    cluster, log, time = Cluster(), Log(), VirtualTime()
    cluster.put(pod("p", labels={"part": "p"}))
    cluster.put(pod("d", ready=False, labels={"part": "d"}))
    owner = Replica(cluster, Selection("c", "llm", "prefill", "part=p"), log=log, time=time, name="r1")
    other = Replica(cluster, Selection("c", "llm", "decode", "part=d"), log=log, time=time, name="r2")
    await owner.list()
    other.shared.read()
    await other.list()
    assert other.workers() == {A: "serves"}


async def test_a_selector_that_was_changed_takes_over_what_it_still_selects() -> None:
    """The takeover comes with the pod's next news; until then nothing about it is new."""
    cluster, log, time = Cluster(), Log(), VirtualTime()
    cluster.put(pod(labels={"part": "d"}))
    await Replica(cluster, log=log, time=time).list()
    changed = Replica(cluster, Selection("cluster", "llm", "", "part=d"), log=log, time=time, name="r2")
    changed.shared.read()
    await changed.list()
    assert changed.workers() == {A: "serves"}
    cluster.edit(ready=False)
    await changed.hear()
    assert (changed.workers(), changed.note().scope) == ({A: "drains"}, changed.watches[0].selection.scope)
    cluster.delete(lost=True)
    await changed.list()
    assert changed.workers() == {}


# Before the log was read.


async def test_what_is_added_in_the_dark_gives_way_to_what_people_said() -> None:
    """Redis is not there yet: the pod serves, and the log's entries are newer when it comes."""
    cluster, log, time = Cluster(), Log(), VirtualTime()
    cluster.put(pod())
    first = Replica(cluster, log=log, time=time)
    await first.list()
    first.registry.change(A, draining=True, labels={"zone": "b"})

    dark = Replica(cluster, time=time, name="r2")
    dark.warm = False
    await dark.list()
    assert dark.workers() == {A: "serves"}
    cluster.edit(ready=False)
    await dark.hear()
    assert dark.workers() == {A: "drains"}
    for op in (*dark.shared.ops, *log.ops):
        dark.fleet.apply(op)
    dark.warm = True
    await dark.wait(1)
    assert (dark.workers(), dark.labels()) == ({A: "drains"}, {"zone": "b"})
    assert dark.note().drained == ""


async def test_what_the_log_removed_long_ago_is_added_again_when_it_was_read() -> None:
    """A pod with the address of a deleted one: without the log, nothing speaks against its removal."""
    cluster, log, time = Cluster(), Log(), VirtualTime()
    cluster.put(pod("a"))
    first = Replica(cluster, log=log, time=time)
    await first.list()
    cluster.delete("a")
    await first.hear()
    cluster.put(pod("b"))
    dark = Replica(cluster, log=log, time=time, name="r2")
    dark.warm = False
    dark.shared.read()
    await dark.list()
    assert dark.workers() == {}
    dark.warm = True
    time.advance(1)
    await dark.discovery.settle()
    assert dark.workers() == {A: "serves"}


async def test_the_first_round_waits_for_the_log_and_for_every_list() -> None:
    cluster = Cluster()
    cluster.put(pod())
    replica = Replica(cluster, PLAIN, Selection("cluster", "prod", "", "app=engine"))
    await replica.watches[0].reconcile()
    await replica.discovery.settle()
    assert not replica.discovery.first_settled.is_set()
    await replica.list()
    assert replica.discovery.first_settled.is_set()


async def test_run_follows_the_cluster_until_it_is_cancelled() -> None:
    cluster = Cluster()
    cluster.put(pod())
    replica = Replica(cluster)
    replica.warm = False
    task = asyncio.create_task(replica.discovery.run())
    await asyncio.sleep(0.05)
    assert replica.workers() == {}
    replica.warm = True
    async with asyncio.timeout(60):
        await replica.discovery.first_settled.wait()
        assert replica.workers() == {A: "serves"}
        cluster.edit(ready=False)
        while replica.workers() != {A: "drains"}:  # noqa: ASYNC110 - plain state without signals
            await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


# Random stories.


class Story:
    """Three replicas, two of which select the same pods, and pods with random changes."""

    def __init__(self) -> None:
        self.cluster, self.log, self.time = Cluster(), Log(), VirtualTime()
        selections = (
            (PLAIN,),
            (PLAIN,),
            (Selection("cluster", "*", "decode", "part=d"), Selection("cluster", "llm", "prefill", "part=p")),
        )
        self.replicas = [
            Replica(self.cluster, *selected, log=self.log, time=self.time, name=f"r{number}")
            for number, selected in enumerate(selections)
        ]
        self.drained_by_hand: dict[str, str] = {}

    async def start(self) -> None:
        for replica in self.replicas:
            await replica.list()

    async def step(self, what: str, name: str, who: int, *, lost: bool) -> None:
        cluster, replica = self.cluster, self.replicas[who]
        self.time.advance(0.7)
        address = int(name[1:])
        known = ("llm", name) in cluster.pods
        labels = {"app": "engine"} if name < "p3" else {"app": "", "part": "d" if name == "p3" else "p"}
        match what:
            case "create" if not known:
                # Every third pod has the address of another.
                cluster.put(pod(name, ip=f"10.0.0.{address % 3 + 1}", labels=labels), lost=lost)
            case "ready" | "unready" if known:
                cluster.edit(name, ready=what == "ready", lost=lost)
            case "deleting" if known:
                cluster.edit(name, deleting=True, lost=lost)
            case "delete" if known:
                cluster.delete(name, lost=lost)
            case "relabel" if known:
                cluster.edit(name, annotations={"cacheway.io/site": f"dc{who}"}, lost=lost)
            case "spoil" if known:
                cluster.edit(name, annotations={"cacheway.io/dp-size": "?"}, lost=lost)
            case "end" if known:
                cluster.edit(name, phase="Failed", ready=False, lost=lost)
            case "hear":
                await replica.hear()
            case "list":
                await replica.list()
            case "read":
                replica.shared.read()
            case "drain":
                self._drain(replica, f"10.0.0.{address % 3 + 1}:8000")

    def _drain(self, replica: Replica, worker_id: str) -> None:
        replica.shared.read()
        if replica.registry.change(worker_id, draining=True):
            self.drained_by_hand[worker_id] = replica.worker(worker_id).labels["discovered"]

    async def calm(self) -> None:
        """Changes end; all replicas list, read, and wait until no one holds back any more."""
        for _ in range(6):
            for replica in self.replicas:
                replica.shared.read()
                await replica.list()
                await replica.wait(61)
        for replica in self.replicas:
            replica.shared.read()

    def expected(self) -> dict[str, set[str]]:
        """Return the pods that may have each address."""
        found: dict[str, set[str]] = {}
        for (_, name), obj in self.cluster.pods.items():
            ready = obj["status"]["conditions"][1]["status"] == "True" and obj["status"]["phase"] == "Running"
            spoilt = obj["metadata"].get("annotations", {}).get("cacheway.io/dp-size") == "?"
            if ready and "deletionTimestamp" not in obj["metadata"] and not spoilt:
                found.setdefault(f"{obj['status']['podIP']}:8000", set()).add(f"kubernetes:llm/{name}")
        return found


_STEPS = (
    *("create", "ready", "unready", "deleting", "delete", "relabel", "spoil", "end"),
    *("hear", "hear", "hear", "list", "read", "read", "drain"),
)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(_STEPS),
            st.sampled_from(["p0", "p1", "p2", "p3", "p4"]),
            st.integers(0, 2),
            st.booleans(),
        ),
        max_size=40,
    )
)
def test_whatever_happens_replicas_agree_and_the_workers_are_the_pods(steps: list[Any]) -> None:
    """Events get lost, replicas hear and read late, addresses change hands, operators drain.

    In the end all replicas know the same, every pod that serves has its worker, other workers belong to pods
    that stopped serving and drain, and workers that an operator drained still drain.
    """

    async def told() -> Story:
        story = Story()
        await story.start()
        for what, name, who, lost in steps:
            await story.step(what, name, who, lost=lost)
        await story.calm()
        return story

    story = asyncio.run(told())
    first, *others = story.replicas
    for other in others:
        assert other.workers() == first.workers()
    expected = story.expected()
    for worker_id, pods in expected.items():
        worker = first.worker(worker_id)
        assert worker.labels["discovered"] in pods
        by_hand = story.drained_by_hand.get(worker_id) == worker.labels["discovered"]
        assert worker.draining <= by_hand
    alive = {f"kubernetes:llm/{name}" for _, name in story.cluster.pods}
    for worker_id in first.workers().keys() - expected.keys():
        worker = first.worker(worker_id)
        assert worker.labels["discovered"] in alive
        name = worker.labels["discovered"].rpartition("/")[2]
        annotations = story.cluster.pods["llm", name]["metadata"].get("annotations", {})
        assert worker.draining or annotations.get("cacheway.io/dp-size") == "?"
