"""Workers through the admin API: in both dialects of the older routers, with roles, sites and partners."""

import asyncio
from typing import Any

import httpx
import pytest
from fakes.admin import Setup, code, unreachable

from policies import Circuit, CircuitSet, Forget, Insert, Placed, Started
from router.fleet import ServedModel

# Workers.


async def test_a_worker_is_added_changed_and_removed(setup: Setup) -> None:
    spec = {"url": "http://a:1/", "capacity_tokens": 9, "labels": {"worker_class": "h200"}, "priority": 3}
    added = await setup.client.post("/workers", json=spec)
    assert (added.status_code, added.json()["worker_id"]) == (202, "a:1")
    one = (await setup.client.get(added.json()["location"])).json()
    assert (one["url"], one["state"], one["is_healthy"]) == ("http://a:1", "starting", False)
    assert (one["capacity_tokens"], one["labels"]) == (9, {"worker_class": "h200"})

    changed = await setup.client.put("/workers/a:1", json={"draining": True})
    assert changed.status_code == 202
    one = (await setup.client.get("/workers/a:1")).json()
    assert (one["state"], one["capacity_tokens"]) == ("draining", 9)

    assert (await setup.client.delete("/workers/a:1")).status_code == 202
    assert (await setup.client.get("/workers")).json() == {"workers": [], "total": 0}


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_a_worker_that_is_not_there_is_not_found_with_those_that_are(setup: Setup, method: str) -> None:
    setup.add("a")
    answer = await setup.client.request(method, "/workers/b:80", json={} if method == "PUT" else None)
    assert (answer.status_code, code(answer)) == (404, "worker_not_found")
    assert "known: a:80" in answer.json()["error"]["message"]


async def test_a_misspelt_change_is_refused(setup: Setup) -> None:
    setup.add("a")
    answer = await setup.client.put("/workers/a:80", json={"drain": True})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "drain")


async def test_a_url_that_is_none_is_refused(setup: Setup) -> None:
    answer = await setup.client.post("/workers", json={"url": "http://a..b"})
    assert (answer.status_code, code(answer)) == (400, "invalid_worker_url")
    assert setup.shared.ops == []


async def test_a_worker_with_a_base_path_has_it_in_its_id(setup: Setup) -> None:
    setup.add("a/base")
    assert (await setup.client.get("/workers/a:80/base")).json()["url"] == "http://a:80/base"


async def test_a_workers_load_and_cache_are_shown(setup: Setup) -> None:
    """Two blocks of 256 tokens held, one request of 700 tokens with half a second of prefill."""
    (a,) = setup.add("a")
    now_us = setup.time.clock.now_us()
    path = bytes(range(1, 17))
    setup.shared.publish(Insert("a:80", path, now_us))
    setup.shared.publish(Placed("x", now_us, "a:80", "r2", 500_000, 600, 700, (path,)))
    setup.registry.described(a, (ServedModel("m"),), "vllm", 1000)
    one = (await setup.client.get("/workers/a:80")).json()
    assert (one["held_tokens"], one["inflight_requests"], one["inflight_tokens"]) == (512, 1, 700)
    assert one["backlog_s"] == pytest.approx(0.5, abs=0.01)
    assert (one["engine"], one["models"], one["circuit"]) == ("vllm", ["m"], "closed")
    assert one["connections"] == {"open": 0, "idle": 0}
    loads = (await setup.client.get("/get_loads")).json()
    assert loads == {"loads": [{"worker": "http://a:80", "load": 1, "tokens": 700}]}


async def test_a_workers_circuit_start_and_share_are_shown(setup: Setup) -> None:
    """Ejected by a sibling for 60 s; restarted four of the ten seconds ago that a slow start takes."""
    setup.add("a")
    one = (await setup.client.get("/workers/a:80")).json()
    assert (one["circuit"], one["circuit_by"], one["circuit_wait_s"]) == ("closed", None, 0.0)
    assert (one["share"], one["started_unix_s"]) == (1.0, None)
    setup.registry._ramp_us = 10e6
    now_us = setup.time.clock.now_us()
    setup.shared.publish(CircuitSet("a:80", now_us, "r2", Circuit.OPEN, now_us + 60_000_000))
    setup.shared.publish(Started("a:80", now_us - 4_000_000, "r2", 1_763_700_123_250, cold=True))
    one = (await setup.client.get("/workers/a:80")).json()
    assert (one["circuit"], one["circuit_by"]) == ("open", "r2")
    assert one["circuit_wait_s"] == pytest.approx(60, abs=0.1)
    assert one["share"] == pytest.approx(0.4, abs=0.01)
    assert one["started_unix_s"] == 1_763_700_123.25


async def test_the_older_routers_spelling_works(setup: Setup) -> None:
    assert (await setup.client.post("/add_worker", params={"url": "http://a"})).json()["worker_id"] == "a:80"
    assert (await setup.client.get("/list_workers")).json() == {"urls": ["http://a:80"]}
    assert (await setup.client.post("/remove_worker", params={"url": "http://a:80"})).status_code == 200
    again = await setup.client.post("/remove_worker", params={"url": "http://a:80"})
    assert (again.status_code, code(again)) == (404, "worker_not_found")
    assert (await setup.client.post("/add_worker")).status_code == 400


# Flushing.


async def test_a_flush_asks_every_worker_in_its_own_way_and_forgets_those_that_did(setup: Setup) -> None:
    setup.add("sglang", "vllm", "broken", "gone")

    def answer(request: httpx.Request) -> httpx.Response:
        match request.url.host:
            case "vllm" if request.url.path == "/flush_cache":
                return httpx.Response(404)
            case "broken":
                return httpx.Response(500)
            case "gone":
                return unreachable(request)
        return httpx.Response(200)

    setup.answer = answer
    flushed = await setup.client.post("/flush_cache")
    assert flushed.status_code == 200
    assert flushed.json() == {
        "flushed": ["sglang:80", "vllm:80"],
        "failed": {"broken:80": "HTTP 500", "gone:80": "ConnectError"},
    }
    assert [op.worker for op in setup.shared.said(Forget)] == ["sglang:80", "vllm:80"]
    assert "POST vllm/reset_prefix_cache" in setup.asked


async def test_a_slow_worker_does_not_keep_the_others_from_flushing(setup: Setup) -> None:
    setup.add("slow", "well")
    flushed = asyncio.Event()

    async def slow() -> httpx.Response:
        await flushed.wait()
        return httpx.Response(200)

    def answer(request: httpx.Request) -> Any:
        if request.url.host == "slow":
            return slow()
        flushed.set()
        return httpx.Response(200)

    setup.answer = answer
    assert (await setup.client.post("/flush_cache")).json()["flushed"] == ["slow:80", "well:80"]


async def test_a_flush_that_no_worker_did_is_an_error(setup: Setup) -> None:
    setup.add("a")
    setup.answer = unreachable
    assert (await setup.client.post("/flush_cache")).status_code == 502
    assert not setup.shared.said(Forget)


# Roles.


async def shown(setup: Setup, worker_id: str) -> dict[str, Any]:
    answer = await setup.client.get(f"/workers/{worker_id}")
    return dict(answer.json())


@pytest.mark.parametrize(
    "said",
    [
        {"role": "prefill"},
        {"worker_type": "prefill"},
        {"role": "prefill", "worker_type": "prefill", "labels": {}},
        {"worker_type": "prefill", "labels": None, "bootstrap_port": None, "priority": 50},
    ],
)
async def test_a_role_is_said_in_our_word_or_the_peers(setup: Setup, said: dict[str, Any]) -> None:
    await setup.client.post("/workers", json={"url": "http://a:1", **said})
    one = await shown(setup, "a:1")
    assert (one["role"], one["worker_type"], one["labels"]) == ("prefill", "prefill", {})


async def test_a_plain_worker_is_regular_to_the_peers(setup: Setup) -> None:
    await setup.client.post("/workers", json={"url": "http://a:1", "worker_type": "regular"})
    one = await shown(setup, "a:1")
    assert (one["role"], one["worker_type"]) == ("plain", "regular")
    assert [one[key] for key in ("handover", "bootstrap_host", "bootstrap_port", "partners")] == [None] * 4


async def test_two_words_for_a_role_must_agree(setup: Setup) -> None:
    answer = await setup.client.post(
        "/workers", json={"url": "http://a:1", "role": "prefill", "worker_type": "decode"}
    )
    assert (answer.status_code, code(answer)) == (400, "invalid_value")
    assert answer.json()["error"]["message"] == "role prefill and worker_type decode differ; give one of them"
    assert setup.shared.ops == []


async def test_what_the_gateway_reads_of_a_worker_has_fields_of_its_own_and_is_kept_as_labels(
    setup: Setup,
) -> None:
    """A field is stronger than a label of its name."""
    await setup.client.post(
        "/workers",
        json={
            "url": "http://a:1",
            "role": "prefill",
            "site": "dc2",
            "handover": "mooncake",
            "bootstrap_host": "10.0.0.7",
            "bootstrap_port": 9000,
            "convertible": True,
            "dp_size": 8,
            "labels": {"worker_class": "h200", "site": "dc1"},
        },
    )
    one = await shown(setup, "a:1")
    assert one["labels"] == {
        "worker_class": "h200",
        "site": "dc2",
        "handover": "mooncake",
        "bootstrap_host": "10.0.0.7",
        "bootstrap_port": "9000",
        "convertible": "true",
        "dp_size": "8",
    }
    assert (one["site"], one["handover"], one["convertible"]) == ("dc2", "mooncake", True)
    assert (one["bootstrap_host"], one["bootstrap_port"]) == ("10.0.0.7", 9000)


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ({"bootstrap_port": "x"}, "bootstrap_port 'x' is not a port"),
        ({"handover": "rdma"}, "handover 'rdma' is not known"),
        ({"site": "a>b"}, "site 'a>b' is no name"),
    ],
)
async def test_labels_that_the_gateway_reads_are_checked(
    setup: Setup, labels: dict[str, str], sentence: str
) -> None:
    setup.add("a:1")
    for method, path in (("POST", "/workers"), ("PUT", "/workers/a:1")):
        body = {"labels": labels} if method == "PUT" else {"url": "http://b:1", "labels": labels}
        answer = await setup.client.request(method, path, json=body)
        assert (answer.status_code, code(answer)) == (400, "invalid_value")
        assert sentence in answer.json()["error"]["message"]


async def test_a_change_of_role_or_site_leaves_the_rest_as_it_was(setup: Setup) -> None:
    spec = {"url": "http://a:1", "role": "prefill", "bootstrap_port": 9, "capacity_tokens": 7}
    await setup.client.post("/workers", json=spec)
    await setup.client.put("/workers/a:1", json={"role": "decode", "site": "dc2"})
    one = await shown(setup, "a:1")
    assert (one["role"], one["capacity_tokens"]) == ("decode", 7)
    assert one["labels"] == {"bootstrap_port": "9", "site": "dc2"}
    await setup.client.put("/workers/a:1", json={"labels": {"note": "new"}, "convertible": False})
    one = await shown(setup, "a:1")
    assert (one["role"], one["labels"]) == ("decode", {"note": "new", "convertible": "false"})


async def test_a_prefill_worker_says_where_decode_workers_find_it(setup: Setup) -> None:
    await setup.client.post("/workers", json={"url": "http://a:1", "role": "prefill", "handover": "sglang"})
    await setup.client.post("/workers", json={"url": "http://n:1", "role": "prefill", "handover": "nixl"})
    one, other = await shown(setup, "a:1"), await shown(setup, "n:1")
    assert (one["bootstrap_host"], one["bootstrap_port"]) == ("a", 8998)
    assert (other["bootstrap_host"], other["bootstrap_port"]) == (None, None)


async def test_partners_speak_the_same_protocol(setup: Setup) -> None:
    """Of two decode workers one is not well; a third speaks another protocol, as its engine does."""
    for name, role, handover in (
        ("a", "prefill", "sglang"),
        ("b", "decode", "sglang"),
        ("c", "decode", "sglang"),
    ):
        await setup.client.post(
            "/workers", json={"url": f"http://{name}:1", "role": role, "handover": handover}
        )
    await setup.client.post("/workers", json={"url": "http://d:1", "role": "decode"})
    for name in ("a:1", "b:1", "d:1"):
        local = setup.registry.get(name)
        assert local is not None
        setup.registry.probed(local, ok=True, refused=False, detail="")
        setup.registry.described(local, (), "vllm", 0)
    listed = {one["id"]: one for one in (await setup.client.get("/workers")).json()["workers"]}
    assert listed["a:1"]["partners"] == {"ready": 1, "total": 2}
    assert listed["b:1"]["partners"] == {"ready": 1, "total": 1}
    assert (listed["d:1"]["handover"], listed["d:1"]["partners"]) == ("nixl", {"ready": 0, "total": 0})


async def test_the_older_spelling_names_roles_and_ports(setup: Setup) -> None:
    said = {"url": "http://a:1", "worker_type": "prefill", "bootstrap_port": 9000}
    assert (await setup.client.post("/add_worker", params=said)).json()["worker_id"] == "a:1"
    one = await shown(setup, "a:1")
    assert (one["role"], one["labels"]) == ("prefill", {"bootstrap_port": "9000"})
    wrong = await setup.client.post("/add_worker", params={"url": "http://b", "bootstrap_port": 70000})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "bootstrap_port")
