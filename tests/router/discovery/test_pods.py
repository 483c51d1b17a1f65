"""Pods' declarations, and the workers that they become."""

import asyncio
from collections.abc import Collection
from typing import Any

import msgspec
import pytest
from fakes.cluster import Cluster, pod
from fakes.discovering import Replica
from hypothesis import given
from hypothesis import strategies as st

from router.destinations import Destinations
from router.discovery.pods import Pod, PodRules, PodWorker, Refusal, Refused, read_pod


def parsed(obj: dict[str, Any]) -> Pod:
    return msgspec.json.decode(msgspec.json.encode(obj), type=Pod)


def read(
    obj: dict[str, Any], roles: Collection[str] = ("",), rules: PodRules | None = None
) -> tuple[PodWorker, ...] | Refused:
    return read_pod(parsed(obj), roles, rules or PodRules())


def said(
    obj: dict[str, Any], roles: Collection[str] = ("",), rules: PodRules | None = None
) -> dict[str, str]:
    """Return the declaration of a pod's only worker."""
    workers = read(obj, roles, rules)
    assert not isinstance(workers, Refused), workers
    (worker,) = workers
    return dict(worker.declared)


def urls(obj: dict[str, Any], rules: PodRules | None = None) -> list[str]:
    workers = read(obj, rules=rules)
    assert not isinstance(workers, Refused), workers
    return [worker.url for worker in workers]


def refusal(obj: dict[str, Any], roles: Collection[str] = ("",), rules: PodRules | None = None) -> Refused:
    refused = read(obj, roles, rules)
    assert isinstance(refused, Refused), refused
    return refused


def test_a_pod_that_says_nothing_is_a_plain_worker() -> None:
    assert read(pod()) == (PodWorker("http://10.0.0.1:8000", {"role": "plain"}),)


def test_what_a_pod_says_becomes_labels_of_its_worker() -> None:
    """An annotation wins over a label of the same name; values are short, and not empty."""
    obj = pod(
        labels={"cacheway.io/site": "dc1", "cacheway.io/bucket": "64K", "cacheway.io/worker-class": ""},
        annotations={
            "cacheway.io/site": "dc2",
            "cacheway.io/cache-pool": " l3 ",
            "cacheway.io/dp_size": "8",
            "cacheway.io/convertible": "true",
            "cacheway.io/handover": "NIXL",
            "cacheway.io/capacity-tokens": "500000",
            "cacheway.io/bootstrap-port": "8997",
            "cacheway.io/bootstrap-host": "host",
            "other.io/site": "dc3",
        },
    )
    assert said(obj) == {
        "site": "dc2",
        "bucket": "64K",
        "cache_pool": "l3",
        "dp_size": "8",
        "convertible": "true",
        "handover": "nixl",
        "capacity_tokens": "500000",
        "bootstrap_port": "8997",
        "bootstrap_host": "host",
        "role": "plain",
    }


def test_names_of_the_peers_are_understood_and_ours_win() -> None:
    obj = pod(
        labels={"llm-d.ai/role": "prefill"},
        annotations={"sglang.ai/bootstrap-port": "8998", "smg.ai/kv-connector": "mooncake"},
    )
    assert said(obj) == {"role": "prefill", "bootstrap_port": "8998", "handover": "mooncake"}
    obj["metadata"]["labels"]["cacheway.io/role"] = "decode"
    obj["metadata"]["labels"]["cacheway.io/bootstrap-port"] = "9000"
    assert (said(obj)["role"], said(obj)["bootstrap_port"]) == ("decode", "9000")
    assert said(pod(labels={"llm-d.ai/role": "both"}))["role"] == "plain"
    assert "bootstrap_port" not in said(pod(annotations={"sglang.ai/bootstrap-port": "none"}))


# Roles.


@pytest.mark.parametrize(
    ("own", "selected", "role"),
    [
        ("", ("",), "plain"),
        ("", ("prefill",), "prefill"),
        ("", ("", "decode"), "decode"),
        ("encode", ("",), "encode"),
        ("decode", ("decode",), "decode"),
        ("both", ("decode",), "decode"),
        ("Regular", ("",), "plain"),
    ],
)
def test_a_selector_of_a_role_says_it_else_the_pod(own: str, selected: tuple[str, ...], role: str) -> None:
    assert said(pod(labels={"cacheway.io/role": own} if own else {}), selected)["role"] == role


@pytest.mark.parametrize(
    ("own", "selected"), [("", ("decode", "prefill")), ("prefill", ("decode",)), ("encode", ("", "prefill"))]
)
def test_two_roles_are_a_conflict(own: str, selected: tuple[str, ...]) -> None:
    assert refusal(pod(labels={"cacheway.io/role": own}), selected).reason is Refusal.ROLE_CONFLICT


def test_pair_labels_are_for_those_who_hand_over_and_say_nothing_else() -> None:
    rules = PodRules(pair_labels={"handover": "mooncake"})
    assert said(pod(), ("prefill",), rules)["handover"] == "mooncake"
    assert said(pod(annotations={"cacheway.io/handover": "nixl"}), ("decode",), rules)["handover"] == "nixl"
    assert "handover" not in said(pod(), (), rules)


# Addresses and ports.


def test_an_ipv6_address_is_written_in_brackets() -> None:
    assert urls(pod(ip="fd00:0::0a")) == ["http://[fd00::a]:8000"]


@pytest.mark.parametrize("ip", ["", "host", "1.2.3"])
def test_what_is_no_address_is_none(ip: str) -> None:
    assert refusal(pod(ip=ip)).reason is Refusal.NO_ADDRESS


@pytest.mark.parametrize("ip", ["0.0.0.0", "::", "224.0.0.1", "169.254.169.254", "fe80::1"])
def test_what_is_no_address_of_a_worker_is_not_asked(ip: str) -> None:
    """At 169.254.169.254 clouds serve the secrets of a machine."""
    assert refusal(pod(ip=ip)).reason is Refusal.ADDRESS_REFUSED
    obj = pod(annotations={"cacheway.io/bootstrap-host": ip})
    assert refusal(obj).reason is Refusal.ADDRESS_REFUSED


def test_pods_are_workers_only_where_workers_may_be() -> None:
    rules = PodRules(check_host=Destinations(["10.1.0.0/16"]).check_host)
    assert refusal(pod(), rules=rules).reason is Refusal.ADDRESS_REFUSED
    assert urls(pod(ip="10.1.0.1"), rules) == ["http://10.1.0.1:8000"]


@pytest.mark.parametrize(
    ("declared", "own", "default", "ports"),
    [
        ({"api": 30000}, "", (), [30000]),
        ({"metrics": 9000, "http": 8000}, "", (), [8000]),
        ({"metrics": 9000, "http": 8000}, "", ("9000",), [9000]),
        ({"metrics": 9000, "api": 8000}, "", ("api",), [8000]),
        ({"metrics": 9000, "api": 8000}, "metrics", ("api",), [9000]),
        ({}, "8000,8001, 8000", ("api",), [8000, 8001]),
        ({}, "", ("8000", "8001"), [8000, 8001]),
        ({"a": 1, "b": 2}, "b,7", (), [2, 7]),
    ],
)
def test_ports_are_the_pods_own_then_the_settings_then_declared_ones(
    declared: dict[str, int], own: str, default: tuple[str, ...], ports: list[int]
) -> None:
    obj = pod(ports=declared, annotations={"cacheway.io/port": own} if own else {})
    assert urls(obj, PodRules(ports=default)) == [f"http://10.0.0.1:{port}" for port in ports]


def test_ports_of_all_containers_count() -> None:
    """Sidecars that begin before the others are written as init containers; UDP is no port for HTTP."""
    obj = pod(ports={})
    obj["spec"]["containers"].append({"name": "quic", "ports": [{"containerPort": 443, "protocol": "UDP"}]})
    obj["spec"]["initContainers"] = [{"name": "proxy", "ports": [{"name": "http", "containerPort": 8080}]}]
    assert urls(obj) == ["http://10.0.0.1:8080"]


@pytest.mark.parametrize(
    ("declared", "own"),
    [
        ({}, ""),
        ({"a": 1, "b": 2}, ""),
        ({"a": 1}, "b"),
        ({}, "0"),
        ({}, "65536"),
        ({}, ",".join(map(str, range(1, 70)))),
    ],
)
def test_a_port_that_is_not_clear_is_not_guessed(declared: dict[str, int], own: str) -> None:
    obj = pod(ports=declared, annotations={"smg.ai/worker-ports": own} if own else {})
    assert refusal(obj).reason is Refusal.NO_PORT


def test_each_port_has_its_bootstrap_port_or_all_have_the_same() -> None:
    def ports(text: str) -> list[str]:
        obj = pod(annotations={"smg.ai/worker-ports": "1,2", "sglang.ai/bootstrap-port": text})
        workers = read(obj, ("prefill",))
        assert not isinstance(workers, Refused), workers
        return [worker.declared["bootstrap_port"] for worker in workers]

    assert ports("8998,8999") == ["8998", "8999"]
    assert ports("8998") == ["8998", "8998"]
    obj = pod(annotations={"smg.ai/worker-ports": "1,2", "sglang.ai/bootstrap-port": "1,2,3"})
    assert refusal(obj).reason is Refusal.BAD_LABEL


def test_an_engine_may_serve_tls() -> None:
    assert urls(pod(annotations={"cacheway.io/scheme": "https"})) == ["https://10.0.0.1:8000"]


# Impossible values.


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("role", "chief", "role 'chief' is not known"),
        ("scheme", "ftp", "give http or https"),
        ("site", "a b", "site"),
        ("bootstrap-port", "x", "bootstrap_port 'x' is not a port"),
        ("handover", "moriio", "give sglang or nixl or mooncake"),
        ("convertible", "yes", "give true or false"),
        ("dp-size", "0", "dp_size"),
        ("capacity-tokens", "-1", "no whole number"),
        ("discovered", "me", "not for pods to say"),
        ("discovery", "{}", "not for pods to say"),
        ("turning", "decode", "not for pods to say"),
        ("site", "x" * 300, "256 printable"),
        ("bucket", "a\nb", "256 printable"),
    ],
)
def test_a_label_that_cannot_be_refuses_the_pod_and_says_why(name: str, value: str, words: str) -> None:
    refused = refusal(pod(annotations={f"cacheway.io/{name}": value}))
    assert refused.reason is Refusal.BAD_LABEL
    assert words in refused.detail


def test_a_pod_that_says_too_much_is_refused() -> None:
    many = {f"cacheway.io/label-{number}": "x" for number in range(40)}
    assert refusal(pod(annotations=many)).reason is Refusal.BAD_LABEL


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_a_pod_that_has_ended_is_no_worker(phase: str) -> None:
    assert refusal(pod(phase=phase, ready=False)).reason is Refusal.ENDED


# The state of a pod.


def test_only_a_running_pod_with_its_condition_is_ready() -> None:
    assert parsed(pod()).ready
    assert not parsed(pod(ready=False)).ready
    assert not parsed(pod(phase="Pending")).ready
    assert not parsed(pod(conditions=None)).ready


def test_what_kubernetes_leaves_out_or_writes_as_null_is_read() -> None:
    bare = parsed(
        {"metadata": {"resourceVersion": "7", "creationTimestamp": None}, "spec": {"containers": None}}
    )
    assert (bare.version, bare.uid, bare.ready, bare.deleting) == (7, "", False, False)
    assert isinstance(read_pod(bare, ("",), PodRules()), Refused)
    assert parsed({"metadata": {"resourceVersion": "opaque"}}).version == 0


_texts = st.text(max_size=20)
_names = st.sampled_from(
    ["role", "port", "scheme", "site", "dp-size", "bootstrap-port", "capacity-tokens", "handover", "x", ""]
)


@given(
    labels=st.dictionaries(_names, _texts, max_size=4),
    annotations=st.dictionaries(_names, _texts | st.integers(-1, 70000).map(str), max_size=6),
    ip=st.ip_addresses().map(str) | _texts,
    roles=st.sets(st.sampled_from(["", "prefill", "decode", "encode"]), min_size=1),
)
def test_whatever_a_pod_says_it_is_read_or_refused(
    labels: dict[str, str], annotations: dict[str, str], ip: str, roles: set[str]
) -> None:
    """No value of a pod may stop the round that looks at the other pods."""
    obj = pod(
        ip=ip,
        labels={f"cacheway.io/{name}": value for name, value in labels.items()},
        annotations={f"cacheway.io/{name}": value for name, value in annotations.items()},
    )
    workers = read(obj, roles)
    if isinstance(workers, Refused):
        assert workers.detail
    else:
        assert workers
        assert len({worker.url for worker in workers}) == len(workers)


NUMBERS = ["²", "٣", "9" * 5000, "-1", "1e3", "0x10", "1_0", " 1 ", "0", "65536", str(10**18), "\u0000", "½"]
TEXTS = st.one_of(st.sampled_from(NUMBERS), st.text(max_size=300))
NAMES = st.one_of(
    st.sampled_from(
        [
            *(
                f"cacheway.io/{name}"
                for name in ("role", "port", "scheme", "capacity-tokens", "bootstrap-port")
            ),
            *(
                "cacheway.io/dp-size",
                "cacheway.io/running-max",
                "cacheway.io/bucket",
                "cacheway.io/cache-pool",
            ),
            *("cacheway.io/bootstrap-host", "cacheway.io/kv-events", "cacheway.io/discovery", "cacheway.io/"),
            *("sglang.ai/bootstrap-port", "smg.ai/worker-ports", "smg.ai/kv-connector", "llm-d.ai/role"),
        ]
    ),
    st.text(max_size=40).map("cacheway.io/".__add__),
)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("name", ["port", "capacity-tokens", "bootstrap-port", "dp-size"])
def test_a_number_that_is_none_is_refused(name: str, number: str) -> None:
    """``"²".isdigit()`` is true, and so is ``"٣".isdecimal()``."""
    refused = read(pod(annotations={f"cacheway.io/{name}": number}))
    if number.strip() == "1" or (name == "capacity-tokens" and number in ("0", "65536")):
        assert not isinstance(refused, Refused)
    else:
        assert isinstance(refused, Refused)
        assert refused.reason in (Refusal.BAD_LABEL, Refusal.NO_PORT)


@given(st.dictionaries(NAMES, TEXTS, max_size=40), st.dictionaries(NAMES, TEXTS, max_size=5))
def test_nothing_that_a_pod_says_raises(annotations: dict[str, str], labels: dict[str, str]) -> None:
    """The worker read from any value fits into the shared log, or is refused with a reason."""
    replica = Replica(Cluster())
    cluster = replica.cluster
    metadata = {"annotations": {name: text for name, text in annotations.items() if _writable(name + text)}}
    bad = pod("bad", ip="10.0.0.2", **metadata)
    bad["metadata"]["labels"] |= {name: text for name, text in labels.items() if _writable(name + text)}
    cluster.put(bad)
    cluster.put(pod("good"))
    asyncio.run(replica.list())
    assert replica.worker("10.0.0.1:8000").role == "plain"
    for sighting in replica.discovery.sightings.values():
        assert sighting.refused is None or sighting.refused.detail
    asyncio.run(replica.list())


def _writable(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)
