"""One selection: the result of events and lists together, and its recovery after each break."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from fakes.cluster import Cluster, pod
from fakes.cluster_api import ClusterApi
from fakes.running import until

from router.discovery import watch as watching
from router.discovery.api_server import ApiServer
from router.discovery.pods import Pod
from router.discovery.source import ApiFailure, PodList, Source, Trouble
from router.discovery.watch import PodWatch, Selection

SELECTION = Selection("cluster", "llm", "", "app=engine")


class Racing(Cluster):
    """The cluster changes between the moment of a list and its arrival."""

    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    async def list_pods(self, namespace: str, selector: str) -> PodList:
        listed = await super().list_pods(namespace, selector)
        self.meanwhile()
        return listed


class Watched:
    """A watch, and the events that it reported."""

    def __init__(self, source: Source, resync_s: float = 60.0) -> None:
        self.told: list[tuple[str, bool]] = []
        self.lists = 0
        self.watch = PodWatch(
            source, SELECTION, changed=self._changed, listed=self._listed, resync_s=resync_s
        )

    def _changed(self, watch: PodWatch, uid: str, pod: Pod | None) -> None:
        self.told.append((uid, pod is not None))

    def _listed(self, watch: PodWatch) -> None:
        self.lists += 1

    def names(self) -> list[str]:
        return sorted(pod.metadata.name for pod in self.watch.pods.values())

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Watched"]:
        task = asyncio.create_task(self.watch.run())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def api() -> AsyncIterator[ClusterApi]:
    async with ClusterApi(Cluster()).serving() as api:
        yield api


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "BACKOFF_S", (0.01, 0.05))
    monkeypatch.setattr(watching, "LATE_S", 0.05)


# Lists and events together.


async def test_an_event_that_a_list_does_not_know_yet_stays() -> None:
    """A pod is created, another changed and a third deleted after the server made its list."""
    cluster = Racing()
    for name in ("changed", "deleted"):
        cluster.put(pod(name))
    watched = Watched(cluster)
    await watched.watch.reconcile()

    def meanwhile() -> None:
        before = cluster.version
        cluster.put(pod("created"))
        cluster.edit("changed", ready=False)
        cluster.delete("deleted")
        for _, kind, obj in cluster.told("llm", SELECTION.selector, before):
            watched.watch.apply(cluster.event(kind, obj))

    cluster.meanwhile = meanwhile
    await watched.watch.reconcile()
    assert watched.names() == ["changed", "created"]
    assert not next(found for found in watched.watch.pods.values() if found.metadata.name == "changed").ready
    cluster.meanwhile = lambda: None
    await watched.watch.reconcile()
    assert watched.names() == ["changed", "created"]


async def test_an_event_that_is_older_than_what_is_known_is_passed_over() -> None:
    """A watch that began again repeats the pods of a list."""
    cluster = Cluster()
    cluster.put(pod("a"))
    cluster.edit("a", ready=False)
    watched = Watched(cluster)
    await watched.watch.reconcile()
    for _, kind, obj in cluster.told("llm", SELECTION.selector, 100):
        watched.watch.apply(cluster.event(kind, obj))
    assert len(watched.told) == 1


async def test_a_list_that_fails_changes_nothing() -> None:
    cluster = Cluster()
    cluster.put(pod("a"))
    watched = Watched(cluster)
    await watched.watch.reconcile()
    cluster.delete("a", lost=True)
    cluster.refuses = ApiFailure(Trouble.FORBIDDEN, "403")
    with pytest.raises(ApiFailure):
        await watched.watch.reconcile()
    assert (watched.names(), watched.lists) == (["a"], 1)


def test_scopes_are_equal_where_all_is_equal() -> None:
    assert SELECTION.scope == Selection("cluster", "llm", "", "app=engine").scope
    others = [
        Selection("other", "llm", "", "app=engine"),
        Selection("cluster", "prod", "", "app=engine"),
        Selection("cluster", "llm", "decode", "app=engine"),
        Selection("cluster", "llm", "", "app=other"),
    ]
    assert len({SELECTION.scope, *(other.scope for other in others)}) == 5
    assert str(others[2]) == "decode app=engine in llm"


# On the wire.


async def test_events_come_at_once_and_a_watch_that_ends_goes_on_where_it_was(
    api: ClusterApi, tmp_path: Path, impatient: None
) -> None:
    """One list is all that it takes, although connections break, also in the middle of a line."""
    async with Watched(ApiServer(api.kubeconfig(tmp_path))).running() as watched:
        await until(lambda: api.watches)
        for number in range(3):
            api.cluster.put(pod(f"p{number}"))
            await until(lambda number=number: f"p{number}" in watched.names())  # type: ignore[misc]
            api.cut(b'{"type": "DELETED", "obj')
            await until(lambda number=number: watched.watch.restarts == number + 1)  # type: ignore[misc]
        api.cluster.delete("p0")
        await until(lambda: watched.names() == ["p1", "p2"])
        assert watched.lists == 1
        assert watched.watch.failures[Trouble.UNREACHABLE] == 3


async def test_a_bookmark_moves_a_watch_on_so_that_it_never_grows_too_old(
    api: ClusterApi, tmp_path: Path, impatient: None
) -> None:
    """After the bookmark the history is forgotten up to it."""
    async with Watched(ApiServer(api.kubeconfig(tmp_path))).running() as watched:
        await until(lambda: api.watches)
        api.cluster.bookmark()
        await until(lambda: watched.watch.version == str(api.cluster.version))
        api.cluster.oldest = api.cluster.version
        api.cut()
        api.cluster.put(pod("a"))
        await until(lambda: watched.names() == ["a"])
        assert watched.lists == 1


async def test_a_version_that_expired_makes_it_list_again(
    api: ClusterApi, tmp_path: Path, impatient: None
) -> None:
    """A list finds the pods that were deleted in the time between the watches."""
    api.cluster.put(pod("a"))
    async with Watched(ApiServer(api.kubeconfig(tmp_path))).running() as watched:
        await until(lambda: api.watches)
        api.cluster.delete("a")
        api.cluster.put(pod("b"))
        api.cluster.compact()
        api.cut()
        await until(lambda: watched.names() == ["b"])
        assert (watched.lists, watched.watch.failures[Trouble.GONE]) == (2, 1)
        api.cluster.put(pod("c"))
        await until(lambda: watched.names() == ["b", "c"])


async def test_a_watch_that_says_nothing_is_found_out_and_begun_anew(
    api: ClusterApi, tmp_path: Path, impatient: None
) -> None:
    """Its connection stands; the lists find the changes that it missed."""
    api.mute = True
    async with Watched(ApiServer(api.kubeconfig(tmp_path)), resync_s=0.05).running() as watched:
        await until(lambda: api.watches)
        api.cluster.put(pod("a"))
        await until(lambda: watched.watch.restarts)
        assert (watched.names(), watched.watch.missed) == (["a"], 1)
        api.mute = False
        api.cluster.edit("a", ready=False)
        await until(lambda: not next(iter(watched.watch.pods.values())).ready)


async def test_what_list_and_watch_both_tell_was_not_missed(
    api: ClusterApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lists here find most of the pods before the watch tells of them, for which they wait."""
    monkeypatch.setattr(watching, "LATE_S", 60.0)
    async with Watched(ApiServer(api.kubeconfig(tmp_path)), resync_s=0.001).running() as watched:
        await until(lambda: api.watches)
        number = 0
        while watched.lists < 6:
            number += 1
            api.cluster.put(pod(f"p{number}"))
            if number % 2:
                api.cluster.delete(f"p{number}")
            await asyncio.sleep(0.001)
        await until(lambda: len(watched.names()) == number // 2)
        assert (watched.watch.missed, watched.watch.restarts) == (0, 0)


async def test_a_server_that_ends_each_watch_at_once_is_not_asked_as_fast_as_possible(
    api: ClusterApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two there are at least three quarters of the pause."""
    monkeypatch.setattr(watching, "BACKOFF_S", (0.05, 0.05))
    api.short = True
    async with Watched(ApiServer(api.kubeconfig(tmp_path))).running() as watched:
        begun_s = time.monotonic()
        await until(lambda: len(api.asked(watch=True)) >= 5)
        assert time.monotonic() - begun_s >= 4 * 0.75 * 0.05
        assert watched.watch.restarts == 0


async def test_a_server_that_refuses_is_asked_again_with_new_credentials(
    api: ClusterApi, tmp_path: Path, impatient: None
) -> None:
    """The kubeconfig was exchanged for one with another token."""
    api.cluster.put(pod("a"))
    api.tokens = {"token-2"}
    async with Watched(ApiServer(api.kubeconfig(tmp_path))).running() as watched:
        await until(lambda: watched.watch.failures[Trouble.UNAUTHORIZED] >= 2)
        assert watched.watch.problem == "HTTP 401 Unauthorized"
        api.kubeconfig(tmp_path, "token-2")
        await until(lambda: watched.names() == ["a"])
        await until(lambda: watched.watch.problem is None)


async def test_certificates_and_credentials_are_read_again_after_some_failures(impatient: None) -> None:
    cluster = Cluster()
    cluster.refuses = ApiFailure(Trouble.UNREACHABLE, "certificate verify failed")
    async with Watched(cluster).running() as watched:
        await until(lambda: cluster.renewed >= 2)
        assert watched.watch.failures[Trouble.UNREACHABLE] >= 2 * watching.RENEW_AFTER


async def test_a_slow_list_delays_no_event(api: ClusterApi, tmp_path: Path, impatient: None) -> None:
    async with Watched(ApiServer(api.kubeconfig(tmp_path)), resync_s=0.05).running() as watched:
        await until(lambda: api.watches and watched.lists >= 2)
        api.hanging = True
        asked = len(api.asked(watch=False))
        await until(lambda: len(api.asked(watch=False)) > asked)
        lists = watched.lists
        api.cluster.put(pod("a"))
        await until(lambda: watched.names() == ["a"])
        assert watched.lists == lists
        api.hanging = False


async def test_a_fault_of_ours_ends_no_watch(
    impatient: None, api: ClusterApi, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The pod that it is about is passed over, and all else is heard as ever."""
    watched = Watched(ApiServer(api.kubeconfig(tmp_path)))
    faults = 3

    def changed(watch: PodWatch, uid: str, pod: Pod | None) -> None:
        nonlocal faults
        if faults and pod is not None and pod.metadata.name == "bad":
            faults -= 1
            raise ValueError("what nobody thought of")

    watched.watch._changed = changed
    api.cluster.put(pod("good"))
    async with watched.running():
        await until(lambda: watched.names() == ["good"] and api.watches == 1)
        api.cluster.put(pod("bad"))
        await until(lambda: not faults or "bad" in watched.names())
        api.cluster.put(pod("later"))
        await until(lambda: "later" in watched.names() and watched.watch.problem is None)
        assert watched.watch.failures[Trouble.INTERNAL]
        await until(lambda: api.watches == 1)
    assert "discovery.crashed" in [record.event for record in caplog.records]  # type: ignore[attr-defined]


async def test_a_watch_that_ended_can_be_run_again(api: ClusterApi, tmp_path: Path) -> None:
    """Its source was closed, and opens again."""
    watched = Watched(ApiServer(api.kubeconfig(tmp_path)))
    async with watched.running():
        await until(lambda: watched.lists == 1)
    api.cluster.put(pod("a"))
    async with watched.running():
        await until(lambda: watched.names() == ["a"] and api.watches == 1)
        assert watched.watch.problem is None
        assert not watched.watch.failures
