"""The fields of a worker."""

from typing import Any

import pytest
from fakes.admin import Setup, code


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
    """A field is stronger than the label of the same name."""
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
