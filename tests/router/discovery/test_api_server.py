"""Lists and watches over HTTP, and the handling of each of their failures."""

import asyncio
import contextlib
import inspect
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakes.cluster import Cluster, pod
from fakes.cluster_api import TOKEN, ClusterApi

from router.discovery import api_server
from router.discovery.api_server import ApiServer, find_server
from router.discovery.pods import PodRules, Refusal, Refused, read_pod
from router.discovery.source import ApiFailure, Gone, PodEvent, Trouble

SELECTOR = "app=engine"


@pytest.fixture
async def api() -> AsyncIterator[ClusterApi]:
    async with ClusterApi(Cluster()).serving() as api:
        yield api


@pytest.fixture
async def server(api: ClusterApi, tmp_path: Path) -> AsyncIterator[ApiServer]:
    server = ApiServer(api.kubeconfig(tmp_path))
    yield server
    await server.close()


async def events(server: ApiServer, version: str, count: int) -> list[PodEvent]:
    """The first events of a watch."""
    heard = []
    async with contextlib.aclosing(server.watch_pods("llm", SELECTOR, version, 60)) as watch:
        async for event in watch:
            heard.append(event)
            if len(heard) == count:
                break
    return heard


async def broken(server: ApiServer, and_then: Callable[[], Any]) -> tuple[list[str], ApiFailure]:
    """Return the kinds of a watch's events and its failure; ``and_then`` ends it after its first event."""
    heard: list[str] = []
    try:
        async with contextlib.aclosing(server.watch_pods("llm", SELECTOR, "100", 60)) as watch:
            async for event in watch:
                heard.append(event.kind)
                done = and_then()
                if inspect.isawaitable(done):
                    await done
    except ApiFailure as failure:
        return heard, failure
    raise AssertionError("the watch did not fail")


async def trouble(server: ApiServer) -> ApiFailure:
    with pytest.raises(ApiFailure) as failure:
        await server.list_pods("llm", SELECTOR)
    return failure.value


async def test_a_list_has_the_pods_that_match_and_its_version(api: ClusterApi, server: ApiServer) -> None:
    api.cluster.put(pod("a"))
    api.cluster.put(pod("b", labels={"app": "other"}))
    api.cluster.put(pod("c", "elsewhere"))
    listed = await server.list_pods("llm", SELECTOR)
    assert [found.name for found in listed.pods] == ["llm/a"]
    assert listed.version == "103"
    assert [found.name for found in (await server.list_pods("*", SELECTOR)).pods] == ["elsewhere/c", "llm/a"]


async def test_a_long_list_comes_in_pages(api: ClusterApi, server: ApiServer) -> None:
    """450 pods are three pages of at most 200; the server may make them smaller."""
    for number in range(450):
        api.cluster.put(pod(f"p{number:04}"))
    assert len((await server.list_pods("llm", SELECTOR)).pods) == 450
    assert [asked.get("continue") for asked in api.asked(watch=False)] == [None, "200", "400"]
    api.page_pods = 100
    assert len((await server.list_pods("llm", SELECTOR)).pods) == 450


async def test_a_selector_that_matches_far_too_much_is_refused(
    api: ClusterApi, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_server, "PODS_MAX", 300)
    for number in range(450):
        api.cluster.put(pod(f"p{number:04}"))
    assert "select fewer" in (await trouble(server)).message


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (403, Trouble.FORBIDDEN),
        (410, Trouble.GONE),
        (429, Trouble.THROTTLED),
        (500, Trouble.SERVER),
        (503, Trouble.SERVER),
        (400, Trouble.REFUSED),
    ],
)
async def test_an_error_is_a_failure_and_never_an_empty_list(
    api: ClusterApi, server: ApiServer, status: int, expected: Trouble
) -> None:
    api.status = status
    failure = await trouble(server)
    assert failure.trouble is expected
    assert failure.message == f"HTTP {status} as told"
    assert isinstance(failure, Gone) == (status == 410)


async def test_a_rotated_token_is_read_again_when_the_old_one_is_refused(
    api: ClusterApi, server: ApiServer, tmp_path: Path
) -> None:
    await server.list_pods("llm", SELECTOR)
    api.tokens = {"token-2"}
    assert (await trouble(server)).trouble is Trouble.UNAUTHORIZED
    (tmp_path / "token").write_text("token-2\n")
    assert (await server.list_pods("llm", SELECTOR)).pods == ()
    api.tokens = {TOKEN}
    (tmp_path / "token").write_text(TOKEN)
    api.cluster.put(pod())
    assert [event.kind for event in await events(server, "100", 1)] == ["ADDED"]


async def test_a_token_that_cannot_be_read_is_a_failure(
    api: ClusterApi, server: ApiServer, tmp_path: Path
) -> None:
    (tmp_path / "token").unlink()
    assert (await trouble(server)).trouble is Trouble.CONFIG


async def test_a_server_that_is_not_there_is_unreachable(tmp_path: Path) -> None:
    async with ClusterApi(Cluster()).serving() as gone:
        path = gone.kubeconfig(tmp_path)
    server = ApiServer(path)
    assert (await trouble(server)).trouble is Trouble.UNREACHABLE
    with pytest.raises(ApiFailure) as failure:
        await events(server, "1", 1)
    assert failure.value.trouble is Trouble.UNREACHABLE
    await server.close()


async def test_a_server_that_hangs_is_given_up(
    api: ClusterApi, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_server, "REQUEST_S", 0.05)
    api.hanging = True
    assert (await trouble(server)).trouble is Trouble.TIMEOUT
    with pytest.raises(ApiFailure) as failure:
        await events(server, "100", 1)
    assert failure.value.trouble is Trouble.TIMEOUT
    api.hanging = False


async def test_a_watch_tells_what_happens_since_a_version(api: ClusterApi, server: ApiServer) -> None:
    api.cluster.put(pod("a"))
    api.cluster.put(pod("b"))
    api.cluster.edit("b", ready=False)
    api.cluster.bookmark()
    api.cluster.edit("b", labels={"app": "other"})
    heard = await events(server, "101", 4)
    assert [event.kind for event in heard] == ["ADDED", "MODIFIED", "BOOKMARK", "DELETED"]
    assert [event.pod.version for event in heard] == [102, 103, 104, 105]
    (asked,) = api.asked(watch=True)
    assert (asked["resourceVersion"], asked["allowWatchBookmarks"]) == ("101", "true")


async def test_lines_are_put_together_from_any_pieces_and_only_a_line_feed_ends_one(
    api: ClusterApi, server: ApiServer
) -> None:
    """U+0085, U+2028 and a form feed would end a line for ``str.splitlines``."""
    api.cluster.put(pod("a", annotations={"note": "one\u0085two\u2028three\x0cfour"}))
    (event,) = await events(server, "100", 1)
    assert event.pod.metadata.annotations == {"note": "one\u0085two\u2028three\x0cfour"}


async def test_half_a_line_is_no_event(api: ClusterApi, server: ApiServer) -> None:
    api.cluster.put(pod("a"))
    half = b'{"type": "DELETED", "object": {"metadata": {"na'
    heard, failure = await broken(server, lambda: api.cut(half))
    assert (heard, failure.trouble) == (["ADDED"], Trouble.UNREACHABLE)


@pytest.mark.parametrize("line", [b"nonsense", b'{"type": 3}'])
async def test_a_line_that_is_no_event_ends_the_watch(
    api: ClusterApi, server: ApiServer, line: bytes
) -> None:
    api.cluster.put(pod("a"))
    heard, failure = await broken(server, lambda: api.say(line))
    assert (heard, failure.trouble) == (["ADDED"], Trouble.MALFORMED)


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"metadata": {"name": "b"}},
        {"metadata": {"uid": "\ud800"}},
    ],
)
async def test_a_pod_that_cannot_be_read_at_all_is_passed_over(
    api: ClusterApi, server: ApiServer, said: dict[str, Any]
) -> None:
    """In a watch, and in a list."""
    api.say(json.dumps({"type": "ADDED", "object": said}).encode())
    listed = await server.list_pods("llm", "app=engine")
    version = listed.version
    api.cluster.put(pod("a"))

    async def heard() -> PodEvent:
        async for event in server.watch_pods("llm", "app=engine", version, 60):
            return event
        raise AssertionError

    async with asyncio.timeout(30):
        assert (await heard()).pod.name == "llm/a"


@pytest.mark.parametrize(
    "wrong",
    [
        {"metadata": {"annotations": {"a": 5}}},
        {"metadata": {"labels": []}},
        {"spec": {"containers": [{"ports": [{"containerPort": "http"}]}]}},
        {"spec": 7},
        {"status": {"podIP": {}}},
        {"status": {"conditions": [None]}},
    ],
)
async def test_of_a_pod_that_is_none_it_is_known_which_it_is(
    api: ClusterApi, server: ApiServer, wrong: dict[str, Any]
) -> None:
    bad = pod("bad", uid="u-bad")
    for part, values in wrong.items():
        bad[part] = {**bad[part], **values} if isinstance(values, dict) else values
    if wrong.get("metadata", {}).get("labels") is None:
        api.cluster.put(bad)
        api.cluster.put(pod("good"))
        listed = {each.name: each for each in (await server.list_pods("llm", "app=engine")).pods}
        assert set(listed) == {"llm/bad", "llm/good"}
        read = listed["llm/bad"]
        assert (read.uid, listed["llm/good"].unreadable) == ("u-bad", "")
    else:
        found = api_server._read(msgspec.Raw(json.dumps(bad).encode()))
        assert found is not None
        read = found
    refused = read_pod(read, ("",), PodRules())
    assert isinstance(refused, Refused)
    assert refused.reason is Refusal.UNREADABLE
    assert "no pod as Kubernetes describes them" in refused.detail


async def test_a_lone_surrogate_in_one_pod_hides_no_other(api: ClusterApi, server: ApiServer) -> None:
    """The decoder refuses a whole page with such a value. Kubernetes itself writes none."""
    bad = pod("bad")
    bad["metadata"]["annotations"] = {"a": "\ud800"}
    api.cluster.put(bad)
    api.cluster.put(pod("good"))

    assert {each.name for each in (await server.list_pods("llm", "app=engine")).pods} == {
        "llm/bad",
        "llm/good",
    }


async def test_a_server_that_was_closed_opens_again_when_it_is_asked(
    api: ClusterApi, server: ApiServer
) -> None:
    api.cluster.put(pod("a"))
    await server.close()
    assert [each.name for each in (await server.list_pods("llm", "app=engine")).pods] == ["llm/a"]
    await server.close()
    await server.close()
    (event,) = await events(server, "100", 1)
    assert event.pod.name == "llm/a"


async def test_a_line_without_an_end_is_given_up(
    api: ClusterApi, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_server, "LINE_BYTES_MAX", 1000)
    api.cluster.put(pod("a", annotations={"note": "x" * 100_000}))
    with pytest.raises(ApiFailure) as failure:
        await events(server, "100", 1)
    assert failure.value.trouble is Trouble.MALFORMED


async def test_a_version_that_is_too_old_is_gone_in_either_form(api: ClusterApi, server: ApiServer) -> None:
    """As an event of a watch that has begun, and as its status."""
    api.cluster.put(pod())
    api.cluster.compact()
    with pytest.raises(Gone):
        await events(server, "100", 1)
    api.status = 410
    with pytest.raises(Gone):
        await events(server, "100", 1)


async def test_credentials_and_certificates_are_read_again(
    api: ClusterApi, server: ApiServer, tmp_path: Path
) -> None:
    other = ClusterApi(Cluster())
    async with other.serving():
        other.cluster.put(pod("there"))
        other.kubeconfig(tmp_path)
        await server.renew()
        assert [found.name for found in (await server.list_pods("llm", SELECTOR)).pods] == ["llm/there"]
    (tmp_path / "kubeconfig").unlink()
    with pytest.raises(ApiFailure):
        await server.renew()


async def test_a_watch_whose_client_was_renewed_ends(api: ClusterApi, server: ApiServer) -> None:
    api.cluster.put(pod())
    heard, failure = await broken(server, server.renew)
    assert (heard, failure.trouble) == (["ADDED"], Trouble.UNREACHABLE)
    api.cluster.put(pod("b"))
    assert len(await events(server, "100", 2)) == 2


def test_the_service_account_is_found_in_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An IPv6 cluster's address needs brackets."""
    for name, text in {"token": TOKEN, "namespace": "prod", "ca.crt": "PEM"}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr("lightkube.config.kubeconfig.SERVICE_ACCOUNT", str(tmp_path))
    monkeypatch.setattr(
        "lightkube.config.kubeconfig.KubeConfig.from_env.__func__.__defaults__", (str(tmp_path), "~/none")
    )
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    found = find_server("")
    assert (found.cluster.server, found.namespace) == ("https://[fd00::1]:443", "prod")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    with pytest.raises(ApiFailure, match="lacks 'KUBERNETES_SERVICE_HOST'"):
        find_server("")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no API server is configured"),
        ("[", "no API server is configured"),
        ("{}", "lacks 'clusters'"),
        (json.dumps({"clusters": [], "contexts": []}), "no API server is configured"),
    ],
)
def test_a_kubeconfig_that_is_none_is_explained(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(ApiFailure, match=problem):
        find_server(str(path))


def test_a_kubeconfig_that_is_not_there_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ApiFailure, match="not found"):
        find_server(str(tmp_path / "none"))
