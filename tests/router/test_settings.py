"""The tree itself: that it is frozen, closed, and refuses what no single value shows to be wrong."""

from dataclasses import FrozenInstanceError

import pytest
from pydantic import ValidationError

from policies import POLICIES
from router.settings import (
    AdminSettings,
    FleetSettings,
    ModelSettings,
    OffloadSettings,
    PlacementSettings,
    ServerSettings,
    Settings,
    UpstreamSettings,
)


def test_every_default_is_a_valid_value() -> None:
    """Defaults are validated too (`validate_default`), so building the tree is the test."""
    assert Settings().server.port == 30000


def test_settings_cannot_be_changed_after_the_start() -> None:
    settings = Settings()
    with pytest.raises(FrozenInstanceError):
        settings.server.port = 1  # type: ignore[misc]


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(ValidationError):
        Settings.model_validate({"server": {"prot": 1}})


@pytest.mark.parametrize("policy", POLICIES)
def test_every_registered_policy_can_be_chosen(policy: str) -> None:
    assert PlacementSettings(policy=policy).policy == policy


def test_certificate_and_key_are_given_together_or_not_at_all() -> None:
    assert ServerSettings(ssl_certfile="c.pem", ssl_keyfile="k.pem").ssl_keyfile == "k.pem"
    with pytest.raises(ValidationError, match="together"):
        ServerSettings(ssl_certfile="c.pem")


def test_a_client_key_without_its_certificate_is_refused() -> None:
    assert UpstreamSettings(client_cert="both.pem").client_key == ""
    with pytest.raises(ValidationError, match="needs client_cert"):
        UpstreamSettings(client_key="k.pem")


def test_the_target_backlog_is_within_its_own_bound() -> None:
    with pytest.raises(ValidationError, match="must not be below"):
        Settings.model_validate({"admission": {"backlog_target_s": 5, "backlog_target_s_max": 4}})


def test_the_rule_of_windows_is_each_workers_own_unless_the_model_says_it() -> None:
    assert ModelSettings(attention="linear").profile.dialect is None
    assert ModelSettings(attention="linear", engine_rule="sglang").profile.dialect == "sglang"
    with pytest.raises(ValidationError):
        ModelSettings(engine_rule="other")  # type: ignore[arg-type]


def test_a_window_belongs_to_sliding_window_attention_only() -> None:
    assert ModelSettings(attention="sliding_window", window_tokens=128).window_tokens == 128
    with pytest.raises(ValidationError, match="window_tokens"):
        ModelSettings(attention="sliding_window")
    with pytest.raises(ValidationError, match="window_tokens"):
        ModelSettings(attention="full", window_tokens=128)


def test_a_secret_does_not_show_when_the_tree_is_printed() -> None:
    settings = Settings.model_validate({"server": {"api_key": "hunter2"}})
    assert "hunter2" not in repr(settings)


@pytest.mark.parametrize(
    ("classes", "default", "sentence"),
    [
        ({"a": 1}, "b", "default_class must be one of a"),
        ({}, "normal", "default_class must be one of the classes"),
        ({"a": 0}, "a", "must be above 0"),
        ({"a/b": 1}, "a/b", "is no name"),
        ({"High": 1}, "High", "is no name"),
    ],
)
def test_classes_of_requests_have_names_and_shares(
    classes: dict[str, float], default: str, sentence: str
) -> None:
    with pytest.raises(ValidationError, match=sentence):
        Settings.model_validate({"queue": {"classes": classes, "default_class": default}})


def test_bounds_of_length_buckets_ascend_and_are_tokens_as_people_write_them() -> None:
    assert PlacementSettings().length_buckets == ("64K", "256K", "1M")
    assert PlacementSettings(length_buckets=[32768, "1M"]).length_buckets == (
        "32768",
        "1M",
    )
    for bounds, says in ((["64K", "32K"], "ascend"), ([], "ascend"), (["64KB"], "write 65536 or 64K")):
        with pytest.raises(ValidationError, match=says):
            PlacementSettings(length_buckets=bounds)


def fleet(**given: object) -> FleetSettings:
    return FleetSettings(**given)


def test_workers_named_in_the_settings_have_roles_and_labels() -> None:
    named = fleet(worker_urls=["http://p"], prefill=["http://a 9 site=x"], decode=["http://d"]).workers
    assert [(worker.url, worker.role, worker.labels) for worker in named] == [
        ("http://p", "plain", {}),
        ("http://a", "prefill", {"bootstrap_port": "9", "site": "x"}),
        ("http://d", "decode", {}),
    ]


def test_the_flag_of_vllms_router_says_how_its_engines_hand_over() -> None:
    """A label of a worker itself is stronger, and plain workers hand nothing over."""
    named = fleet(
        worker_urls=["http://p"],
        prefill=["http://a", "http://b handover=nixl"],
        decode=["http://d"],
        vllm_pd_disaggregation=True,
        kv_connector="mooncake",
    ).workers
    assert [worker.labels.get("handover") for worker in named] == [None, "mooncake", "nixl", "mooncake"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"prefill": ["http://a"], "decode": ["http://a"]}, "http://a is named twice, as prefill and decode"),
        ({"prefill": ["http://a", "http://a 9"]}, "http://a is named twice, as prefill; name it once"),
        ({"worker_urls": ["http://a"], "decode": ["http://a"]}, "named twice, as plain and decode"),
        (
            {
                "pd_disaggregation": True,
                "vllm_pd_disaggregation": True,
                "prefill": ["http://a"],
                "decode": ["http://d"],
            },
            "for both engines in one gateway, neither",
        ),
        ({"site": "a", "links": {"a->b": {"gbps": 1}}}, "'a->b' is not a link; write FROM>TO"),
        ({"site": "a", "links": {"a>a": {"gbps": 1}}}, "'a>a' is not a link"),
        ({"links": {"b>a": {"gbps": 1}}}, "site must name this gateway's site; give one of a, b"),
        ({"site": "a", "links": {"b>a": {}}}, "gbps"),
        ({"site": "a", "links": {"b>a": {"gbps": 0}}}, "gbps"),
        ({"site": "a", "links": {"b>a": {"gbps": 1, "cap_ratio": 1.1}}}, "cap_ratio"),
        ({"site": "a b"}, "site"),
    ],
)
def test_workers_and_links_that_cannot_work_stop_the_start(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        fleet(**given)


# Workers that are pods.


@pytest.mark.parametrize(
    ("given", "discovery", "sentence"),
    [
        ({"pd_disaggregation": True, "decode": ["http://d"]}, {}, "pd_disaggregation needs prefill workers"),
        (
            {"vllm_pd_disaggregation": True, "prefill": ["http://a"]},
            {},
            "needs decode workers; name them with --decode",
        ),
        (
            {"pd_disaggregation": True},
            {"service_discovery": True, "prefill_selector": ["part=p"]},
            "select their pods with --service-discovery --decode-selector",
        ),
        (
            {"pd_disaggregation": True},
            {"prefill_selector": ["part=p"], "decode_selector": ["part=d"]},
            "needs prefill workers",
        ),
        ({}, {"service_discovery": True}, "needs the labels of the workers"),
        ({}, {"selector": ["app in ()"]}, "needs values"),
        ({}, {"namespaces": ["*", "a"]}, "give it alone"),
        ({}, {"namespaces": ["A"]}, "no name of a namespace"),
        ({}, {"namespaces": ["a", "a"]}, "more than once"),
        ({}, {"ports": ["0"]}, "neither a port"),
        ({}, {"ports": ["a_b"]}, "neither a port"),
        ({}, {"ports": 70000}, "neither a port"),
    ],
)
def test_pods_that_cannot_be_found_stop_the_start(
    given: dict[str, object], discovery: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ValidationError, match=sentence):
        Settings.model_validate({"fleet": given, "discovery": discovery})


def test_pods_may_prefill_and_decode_in_place_of_named_workers() -> None:
    by_role = {"service_discovery": True, "prefill_selector": ["part=p"], "decode_selector": ["part=d"]}
    assert Settings.model_validate({"fleet": {"pd_disaggregation": True}, "discovery": by_role})
    by_label = {"service_discovery": True, "selector": ["app=a"]}
    assert Settings.model_validate({"fleet": {"vllm_pd_disaggregation": True}, "discovery": by_label})


def test_a_link_has_bounds_of_its_own() -> None:
    link = fleet(site="a", links={"b>a": {"gbps": 100}}).links["b>a"]
    assert (link.gbps, link.rtt_ms, link.cap_ratio, link.loss_ratio_max) == (100, 0, 0.9, 0.01)


def test_a_window_that_weighs_something_has_a_length() -> None:
    with pytest.raises(ValidationError, match="window_bytes_per_token needs window_tokens"):
        ModelSettings(window_bytes_per_token=1.0)


def test_scarce_and_abundant_are_apart() -> None:
    with pytest.raises(ValidationError, match="abundant_below must be below scarce_above"):
        OffloadSettings(scarce_above=0.5, abundant_below=0.5)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "gateway.example"])
def test_an_admin_api_that_anybody_may_use_stays_on_this_machine(host: str) -> None:
    with pytest.raises(ValidationError, match=r"admin\.host: .*admin\.tokens_file or server\.api_key"):
        Settings.model_validate({"admin": {"host": host}})
    for guard in (
        {"admin": {"host": host, "tokens_file": "t.yaml"}},
        {"admin": {"host": host}, "server": {"api_key": "ours"}},
        {"admin": {"host": host}, "tenancy": {"keys_file": "k.yaml"}},
        {"admin": {"host": host, "port": 0}},
    ):
        assert Settings.model_validate(guard).admin.host == host


def test_the_admin_port_is_not_the_data_port() -> None:
    with pytest.raises(ValidationError, match=r"admin\.port: 30000 is the data port; 0 serves both there"):
        Settings.model_validate({"admin": {"port": 30000}})


def test_tls_of_the_admin_api_needs_both_its_files() -> None:
    with pytest.raises(ValidationError, match="given together"):
        AdminSettings(ssl_certfile="c.pem")
    with pytest.raises(ValidationError, match="ssl_ca_certs needs ssl_certfile"):
        AdminSettings(ssl_ca_certs="ca.pem")
