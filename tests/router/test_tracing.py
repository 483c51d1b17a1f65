"""Tracing from the settings to a collector."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import pytest
from fakes.collector import Collector, collecting
from fakes.running import Fleet

from router import tracing
from router.errors import SettingsError
from router.process.starting import opened_spans
from router.tracing import SpanRules, check_tracing, traces_url


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as server:
        yield server


async def test_spans_of_a_request_reach_the_collector_before_the_gateway_ends(
    redis_url: str, namespace: str, collector: Collector
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        fleet = Fleet(redis_url, namespace, stack)
        engine = await fleet.engine()
        gateway = await fleet.gateway(
            engine.url,
            observability={"enable_trace": True, "otlp_traces_endpoint": collector.url, "trace_ratio": 1.0},
        )
        model = (await gateway.client.get("/v1/models")).json()["data"][0]["id"]
        body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "hello"}]}
        answer = await gateway.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200
        gateway.server.should_exit = True
        await asyncio.wait_for(asyncio.shield(gateway.task), 10)

    (path, request), *_ = collector.requests
    assert path == "/v1/traces"
    said = {item.key: item.value.string_value for item in request.resource_spans[0].resource.attributes}
    assert (said["service.name"], said["service.instance.id"]) == ("cacheway", gateway.process.replica)
    assert sorted(collector.names()) == [
        "POST /v1/chat/completions",
        "decision",
        "decode",
        "dispatch",
        "prefill",
    ]


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://c:4318", "http://c:4318/v1/traces"),
        ("http://c:4318/", "http://c:4318/v1/traces"),
        ("https://c/otlp/v1/traces", "https://c/otlp/v1/traces"),
    ],
)
def test_an_endpoint_without_a_path_gets_the_protocols(endpoint: str, url: str) -> None:
    assert traces_url(endpoint) == url


def test_without_the_extra_the_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "find_spec", lambda _: None)
    check_tracing(SpanRules())
    with pytest.raises(SettingsError, match=r"the extra tracing"):
        check_tracing(SpanRules(enable_trace=True))


def test_the_api_of_opentelemetry_alone_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other packages bring it; the exporter, and perhaps the package around it, are missing then."""

    def api_only(name: str) -> object:
        if name == "opentelemetry":
            return object()
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(tracing, "find_spec", api_only)
    with pytest.raises(SettingsError, match=r"the extra tracing"):
        check_tracing(SpanRules(enable_trace=True))


def test_off_there_are_no_spans() -> None:
    assert opened_spans(SpanRules(), "r1") is None


def test_a_collector_that_is_gone_holds_nobody_up() -> None:
    rules = SpanRules(enable_trace=True, otlp_traces_endpoint="http://127.0.0.1:9", trace_ratio=1.0)
    spans = opened_spans(rules, "r1")
    assert spans is not None
    request = spans.begin(b"POST", b"/v1/completions", (), b"mine", 0.0)
    assert request is not None
    request.ended("completed", 200, 1.0)
    spans.close()
    for thread in threading.enumerate():
        if thread.name == "spans":  # else it tries again beside the next tests, with their random numbers
            thread.join(60)
