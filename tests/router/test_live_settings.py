"""Settings that change while the gateway serves: judged as a whole, shared, withdrawn, rolled back."""

import logging
from typing import Any

import pytest
from fakes.gateway import ALONE_STATUS
from hypothesis import given
from hypothesis import strategies as st

from policies import FleetState, Op, SettingsChanged, decode_ops, encode_ops
from router.app import GatewayProcess
from router.catalogue import CATALOGUE
from router.errors import ClientError
from router.live_settings import LiveSettings, value_of
from router.model_rules import Adapter, Split
from router.models import ModelReader
from router.settings import Settings
from router.shared import LogPort
from router.sources import Loaded, Origin

NOWHERE = "redis://127.0.0.1:1"


class Replica:
    """One replica's settings; the test delivers its operations to the others."""

    def __init__(self, name: str = "one", **sections: dict[str, Any]) -> None:
        self.fleet = FleetState()
        self.said: list[Op] = []
        self.told: list[Settings] = []
        self.now_us = 1_000_000
        started = Settings.model_validate(sections)
        self.live = LiveSettings(
            Loaded(started, {"queue.size": Origin("flag", "--queue-size")}),
            self.fleet.overrides,
            LogPort(name, self._publish, self._tick, lambda: ALONE_STATUS, lambda: (name,)),
            parts={"part": self.told.append},
        )

    def _publish(self, op: Op) -> None:
        self.said.append(op)
        self.fleet.apply(op)

    def _tick(self) -> int:
        self.now_us += 1
        return self.now_us

    def hears(self, *ops: Op) -> None:
        for op in ops:
            self.fleet.apply(op)
        self.live.follow()

    def __getitem__(self, key: str) -> Any:
        return value_of(self.live.current, key)


def refusal(replica: Replica, values: dict[str, Any], **more: Any) -> ClientError:
    """Return the reason why a change is refused; it changes nothing."""
    before = replica.live.current
    with pytest.raises(ClientError) as caught:
        replica.live.change(values, **more)
    assert replica.live.current is before
    assert replica.said == []
    return caught.value


def test_a_change_counts_here_at_once_and_elsewhere_when_it_is_heard() -> None:
    one, two = Replica("one"), Replica("two", queue={"size": 5})
    outcome = one.live.change({"queue.size": 7, "placement.policy": "min_ttft"}, actor="ann", comment="try")
    assert outcome.values == {
        "placement.policy": ("expected_cost", "min_ttft"),
        "queue.size": (10_000, 7),
    }
    assert one.told == [one.live.current]
    (said,) = one.said
    assert isinstance(said, SettingsChanged)
    assert (said.change_id, said.actor, said.comment) == (outcome.change_id, "ann", "try")
    two.hears(said)
    assert (two["queue.size"], two["placement.policy"]) == (7, "min_ttft")
    assert two.told == [two.live.current]


def test_a_value_that_is_taken_back_is_what_each_replica_was_started_with() -> None:
    one, two = Replica("one"), Replica("two", queue={"size": 5})
    one.live.change({"queue.size": 7})
    one.live.change({"queue.size": None})
    two.hears(*one.said)
    assert (one["queue.size"], two["queue.size"]) == (10_000, 5)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"queue.sise": 7}, "there is no setting queue.sise; did you mean queue.size"),
        ({"server.port": 7}, "server.port cannot change while the gateway serves; it needs a restart"),
        ({"queue.size": "many"}, "'many' is not allowed for queue.size; give a whole number, at least 0"),
        ({"queue.size": True}, "no number"),
        ({"placement.policy": "min_tft"}, "did you mean min_ttft?"),
        ({"admission.backlog_target_s": 9}, "backlog_target_s_max must not be below backlog_target_s"),
        ({"placement.policy_options": {"match_weight": 2}}, "has no option 'match_weight'"),
        ({"queue.classes": {"high": 1}}, "default_class must be one of"),
        ({"queue.classes": {"normal": 1}}, "only shares may change, those of high, normal, low"),
        ({"queue.classes": {"low": 1, "normal": 4, "high": 8}}, "in this order"),
        ({"fleet.health_check_endpoint": "/" + "x" * 5000}, "longer than 4096 characters"),
        ({"queue.size": 10**20}, "above 1e+12"),
        ({"queue.timeout_s": 1e300}, "above 1e+12"),
        ({"queue.classes": {"high": 1e300, "normal": 1, "low": 1}}, "above 1e+12"),
        ({"upstream.idle_timeout_s": 1e-9}, "below 0.001 s"),
    ],
)
def test_a_change_with_anything_wrong_in_it_changes_nothing(values: dict[str, Any], why: str) -> None:
    replica = Replica()
    error = refusal(replica, {"observability.request_logs": False, **values})
    assert (error.status, error.code) == (400, "invalid_settings")
    assert why in error.message
    assert "runtime:" not in error.message


def test_all_that_is_wrong_is_told_together() -> None:
    error = refusal(Replica(), {"queue.size": -1, "queue.timeout_s": 0})
    assert "queue.size" in error.message
    assert "queue.timeout_s" in error.message


def test_a_dry_run_says_what_would_change_and_changes_nothing() -> None:
    replica = Replica()
    outcome = replica.live.change({"queue.size": 7}, dry_run=True)
    assert (outcome.change_id, outcome.values) == ("", {"queue.size": (10_000, 7)})
    assert (replica.said, replica.told, replica["queue.size"]) == ([], [], 10_000)


def test_what_is_so_already_is_not_said_again() -> None:
    """A value equal to the start's is published: other replicas may have started with another one."""
    replica = Replica()
    assert replica.live.change({"queue.size": 10_000}).change_id
    assert not replica.live.change({"queue.size": 10_000}).change_id
    assert not replica.live.change({"queue.timeout_s": None}).change_id
    assert len(replica.said) == 1
    assert replica.told == [], "nothing is another value"


def test_a_value_is_kept_in_one_form() -> None:
    replica = Replica()
    replica.live.change({"queue.timeout_s": "5"})
    assert replica.fleet.overrides.values() == {"queue.timeout_s": "5.0"}
    assert not replica.live.change({"queue.timeout_s": 5}).change_id


def test_what_a_replica_was_started_with_can_be_taken_back_however_odd() -> None:
    replica = Replica(roles={"dwell_s_min": 1e-6})
    replica.live.change({"roles.dwell_s_min": 5})
    assert replica.live.change({"roles.dwell_s_min": None}).change_id
    assert replica["roles.dwell_s_min"] == 1e-6


def test_an_empty_text_is_none_where_a_setting_may_be_none() -> None:
    replica = Replica(placement={"prefill_policy": "lmetric"})
    replica.live.change({"placement.prefill_policy": ""})
    assert replica["placement.prefill_policy"] is None
    replica.live.change({"placement.prefill_policy": None})
    assert replica["placement.prefill_policy"] == "lmetric"


def test_who_expects_another_revision_is_told_so() -> None:
    one, two = Replica("one"), Replica("two")
    known = one.live.overrides.digest()
    two.live.change({"queue.size": 5})
    assert one.live.change({"queue.size": 7}, expected=known).change_id
    two.hears(*one.said)
    error = refusal_of(lambda: two.live.change({"queue.size": 9}, expected=known))
    assert (error.status, error.code) == (409, "settings_changed")
    error = refusal_of(lambda: two.live.roll_back("any", expected=known))
    assert error.status == 409


def refusal_of(asked: Any) -> ClientError:
    with pytest.raises(ClientError) as caught:
        asked()
    return caught.value


def test_where_a_value_came_from_is_known() -> None:
    replica = Replica(queue={"size": 5})
    assert str(replica.live.origin("queue.size")) == "flag --queue-size"
    assert str(replica.live.origin("queue.timeout_s")) == "default"
    change_id = replica.live.change({"queue.size": 7}).change_id
    assert replica.live.origin("queue.size") == Origin("runtime", change_id)
    replica.live.change({"queue.size": None})
    assert replica.live.origin("queue.size").kind == "flag"


# Rolling back.


def test_a_rollback_restores_what_was_before_a_change_and_may_be_rolled_back() -> None:
    replica = Replica()
    replica.live.change({"queue.size": 1, "roles.mode": "off"})
    second = replica.live.change({"queue.size": 2, "placement.policy": "min_ttft"}).change_id
    replica.live.change({"queue.size": None, "queue.timeout_s": 9})

    undone = replica.live.roll_back(second, actor="ann")
    assert undone.values == {
        "placement.policy": ("min_ttft", "expected_cost"),
        "queue.size": (10_000, 1),
        "queue.timeout_s": (9.0, 180.0),
    }
    assert (replica["queue.size"], replica["roles.mode"]) == (1, "off")
    newest = replica.fleet.overrides.history[-1]
    assert (newest.undoes, newest.actor) == (second, "ann")

    replica.live.roll_back(undone.change_id)
    assert (replica["queue.size"], replica["placement.policy"]) == (10_000, "min_ttft")
    assert replica["queue.timeout_s"] == 9


def test_a_rollback_may_be_tried_first() -> None:
    replica = Replica()
    change_id = replica.live.change({"queue.size": 1}).change_id
    assert replica.live.roll_back(change_id, dry_run=True).values == {"queue.size": (1, 10_000)}
    assert replica["queue.size"] == 1


def test_what_the_history_does_not_have_cannot_be_rolled_back() -> None:
    error = refusal_of(lambda: Replica().live.roll_back("nothing"))
    assert (error.status, error.code) == (404, "change_not_found")


def test_a_rollback_takes_back_what_another_version_set() -> None:
    replica = Replica()
    replica.hears(SettingsChanged("c1", 5, "newer", {"future.thing": "1", "queue.size": "3"}))
    assert replica["queue.size"] == 3
    assert replica.live.roll_back("c1").values == {"queue.size": (3, 10_000)}
    assert replica.fleet.overrides.values() == {}


# Unusable values.


def test_what_another_version_set_is_left_out_and_told(caplog: pytest.LogCaptureFixture) -> None:
    replica = Replica()
    values = {
        "future.thing": "1",
        "queue.size": "3",
        "server.port": "5",
        "queue.timeout_s": "{",
        "roles.mode": '"fly"',
    }
    replica.hears(
        SettingsChanged("c1", 5, "newer", {key: values[key] for key in ("queue.size", "future.thing")})
    )
    replica.hears(
        SettingsChanged("c2", 6, "newer", {key: values[key] for key in ("server.port", "queue.timeout_s")})
    )
    replica.hears(SettingsChanged("c3", 7, "newer", {"roles.mode": values["roles.mode"]}))
    assert replica["queue.size"] == 3
    assert replica.live.refused.keys() == {"future.thing", "server.port", "queue.timeout_s", "roles.mode"}
    assert replica.live.current == Settings.model_validate({"queue": {"size": 3}})
    assert replica.live.origin("roles.mode").kind == "default"
    assert [getattr(record, "event", "") for record in caplog.records].count("settings.refused") == 3


def test_of_changes_that_contradict_each_other_the_newest_counts() -> None:
    """Two replicas got them at once; the same one wins everywhere."""
    older = SettingsChanged(
        "c1", 5, "a", {"admission.backlog_target_s": "5.0", "admission.backlog_target_s_max": "10.0"}
    )
    newer = SettingsChanged("c2", 6, "b", {"admission.backlog_target_s_max": "2.0", "queue.size": "3"})
    for order in ((older, newer), (newer, older)):
        replica = Replica()
        replica.hears(*order)
        assert replica["admission.backlog_target_s"] == 0.5
        assert replica["admission.backlog_target_s_max"] == 2
        assert replica["queue.size"] == 3
        assert "backlog_target_s_max must not" in replica.live.refused["admission.backlog_target_s"]


def test_a_change_that_needs_an_older_one_has_it() -> None:
    replica = Replica()
    replica.hears(
        SettingsChanged("c1", 5, "a", {"admission.backlog_target_s_max": "10.0"}),
        SettingsChanged("c2", 6, "a", {"admission.backlog_target_s": "5.0"}),
        SettingsChanged("c3", 7, "a", {"roles.mode": '"fly"'}),
    )
    assert replica["admission.backlog_target_s"] == 5
    assert replica.live.refused.keys() == {"roles.mode"}


def test_what_contradicts_the_start_of_one_replica_counts_in_the_others() -> None:
    plain, own = Replica("one"), Replica("two", admission={"backlog_target_s": 3.5})
    plain.live.change({"admission.backlog_target_s_max": 2.0})
    own.hears(*plain.said)
    assert plain["admission.backlog_target_s_max"] == 2
    assert own["admission.backlog_target_s_max"] == 4
    assert own.live.refused.keys() == {"admission.backlog_target_s_max"}


def test_a_part_that_fails_keeps_the_others_from_nothing(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Settings] = []

    def broken(_: Settings) -> None:
        raise RuntimeError("a bug")

    replica = Replica()
    replica.live._parts = {"broken": broken, "sound": told.append}
    with caplog.at_level(logging.INFO):
        replica.live.change({"queue.size": 3})
    assert told == [replica.live.current]
    assert [getattr(record, "event", "") for record in caplog.records] == [
        "settings.changed",
        "settings.failed",
    ]


# Every live setting, in a whole process.

OTHER: dict[str, Any] = {
    "placement.policy": "lmetric",
    "placement.prefill_policy": "round_robin",
    "placement.decode_policy": "least_load",
    "placement.policy_options": {},
    "placement.prefill_tokens_per_s": 12_345.0,
    "fleet.health_check_endpoint": "/other",
    "fleet.unlisted_models": "refuse",
    "queue.classes": {"high": 5.0, "normal": 3.0, "low": 2.0},
    "queue.default_class": "low",
    "roles.mode": "off",
    "placement.session_headers": ("x-team",),
    "placement.session_fields": ("user",),
    "upstream.forward_headers": ("x-team", "anthropic-*"),
    "upstream.pass_through": ("/v1/videos",),
    "upstream.continue_streams": "all",
    "upstream.continue_models": ("m",),
    "observability.log_level": "error",
    "observability.request_log_ratio": 0.25,
    "reliability.retry_budget_ratio": 0.5,
    "reliability.ejected_ratio_max": 0.25,
    "placement.shadow_policy": "kv_cost",
    "placement.shadow_policy_options": {},
    "placement.shadow_ratio": 0.5,
    "offload.scarce_above": 0.9,
    "offload.abundant_below": 0.1,
    "models.aliases": {"claude-*": "m"},
    "models.adapters": {"sql": Adapter(path="/sql", base="m")},
    "models.mirror_model": "v2",
    "models.mirror_ratio": 0.5,
    "models.splits": {"m": Split(ratio=0.1, label="version=v2")},
}
"""Another value than the default, where that is not a little more or the opposite."""

NOT_RULES = {
    "server.shutdown_delay_s",
    "server.shutdown_grace_s",
    "placement.policy_options",
    "placement.shadow_policy_options",
    "observability.log_level",
    "models.list_aliases",
}
"""Read from the settings when needed, or empty here and tested by their effect."""

LIVE = [key for key, row in CATALOGUE.items() if row.live]


def other(key: str) -> Any:
    default = CATALOGUE[key].default
    if key in OTHER:
        return OTHER[key]
    return not default if isinstance(default, bool) else default + 2


def rules_of(process: GatewayProcess) -> dict[str, Any]:
    """Return all parts of a process that depend on settings."""
    gateway, registry, fleet = process.gateway, process.registry, process.fleet
    decider = gateway.placing.decider
    order = None if decider._turns is None else decider._turns.order
    decode_policy = process.pairs.decode_selector.policy
    local = registry.all()[0]
    assert local.breaker is None or local.breaker.rules == registry.circuits._rules
    return {
        "gateway": [
            (
                gateway.sending.exchanges.timeout_s,
                gateway.placing.retry_after_s,
                gateway.placing.decider._expected_output_tokens,
            ),
            gateway.reports.rules,
            (gateway.sending.at_workers_max, gateway.sending._queues, gateway.reader._default_flow),
        ],
        "redispatch": gateway.sending.retry_budget.rules,
        "exchanges": gateway.sending.exchanges.timeout_s,
        "feedback": gateway.placing.feedback.bytes_per_token_default,
        "stalls": process.pairs.stall_detector.rules,
        "classes": (gateway.reader.priorities.named(b"1"), gateway.reader.priorities.named(b"0")),
        "room": gateway.placing.room.rules,
        "admission": gateway.placing.admission.rules,
        "policies": (decider.policy.name, decider.prefill_policy.name, decider._expected_output_tokens),
        "shadow": gateway.placing._shadowed,
        "decode_policy": None if decode_policy is None else decode_policy.name,
        "order": None
        if order is None
        else (order.k, None if order.rejection is None else order.rejection.level),
        "offload": (
            decider.offloading.offload.rules,
            decider.offloading.offload.states.rules,
        ),
        "fleet": (
            fleet.columns.congestion_max_per_s,
            fleet.rules.lifetime_s_max,
            fleet.hot.horizon_s,
            fleet.service_model("default"),
            fleet.fairness._slack_ratio,
            [fleet.fairness.weight_of(name) for name in ("high", "normal", "low")],
        ),
        "bodies": process.clients.held._bytes_max,
        "clients": (
            process.protocol.limits,
            process.clients.clients._quota,
            process.protocol.watches_requests,
        ),
        "registry": registry.rules,
        "circuits": registry.circuits._rules,
        "health": process.workers.health._rules,
        "engine_metrics": (
            process.workers.engine_metrics.rules,
            process.workers.engine_metrics.timeout_s,
        ),
        "roles": (process.roles.rules, process.roles.level),
        "pools": local.pool.rules,
        "streams": (
            process.stream_keeper._rules.mode,
            process.stream_keeper._rules.times_max,
            process.stream_keeper._rules._models,
        ),
        "sessions": (
            process.sessions._headers,
            process.sessions._fields,
            process.sessions._most,
            process.sessions._ttl_s,
            process.session_homes._ttl_s,
        ),
        "responses": (process.responses._most, process.responses._ttl_s),
        "headers": (
            gateway.reader._noted,
            gateway.reader.forwarding.headers._exact,
            gateway.reader.forwarding.headers._begins,
        ),
        "models": models_of(process),
        "routes": (process.routes._more._exact, process.routes._more._below),
    }


def models_of(process: GatewayProcess) -> Any:
    reader = process.gateway.reader
    assert isinstance(reader, ModelReader)
    return (
        None if reader.aliases is None else reader.aliases._patterns,
        None if reader.splits is None else reader.splits._splits,
        None if reader.adapters is None else reader.adapters.rules,
        process.models.loader.per_worker_max,
        process.models.mirror.rules,
        process.gateway.tokenizing is not None,
    )


def process_of(values: dict[str, Any]) -> GatewayProcess:
    sections: dict[str, dict[str, Any]] = {"fleet": {"worker_urls": ["http://a:1"]}, "admin": {"port": 0}}
    for key, value in values.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    return GatewayProcess(Settings.model_validate(sections), redis_url=NOWHERE)


async def test_every_live_setting_changes_what_the_process_goes_by_until_it_is_taken_back() -> None:
    process = process_of({})
    untouched = rules_of(process)
    for key in LIVE:
        process.live.change({key: other(key)})
        assert value_of(process.settings, key) == other(key)
        assert key in NOT_RULES or rules_of(process) != untouched, key
        process.live.change({key: None})
        assert rules_of(process) == untouched, key


@pytest.mark.parametrize("off", [True, False])
async def test_a_process_goes_by_changes_as_if_it_had_been_started_so(off: bool) -> None:
    """All live settings together, with all switches on and off."""
    values = {key: other(key) for key in LIVE if key != "observability.log_level"}
    values |= {key: off for key in values if ".disable_" in key}
    process = process_of({})
    process.live.change(values)
    assert process.live.refused == {}
    assert rules_of(process) == rules_of(process_of(values))


async def test_workers_that_come_later_get_the_new_timeouts() -> None:
    process = process_of({})
    process.live.change({"upstream.connect_timeout_s": 1.5})
    process.registry.add("http://b:1")
    assert [local.pool.rules.connect_timeout_s for local in process.registry.all()] == [1.5, 1.5]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, 1, -1, 2**63, 2**64, 10**400, 0.5, 1e308])
    | st.floats(allow_nan=True)
    | st.text(max_size=5)
    | st.sampled_from(["", "off", "min_ttft", "affinity", "low", "\x00", "/", "1e5"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=9), inner, max_size=2),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from(LIVE) | st.text(max_size=9), json_values, max_size=3))
def test_whatever_is_asked_is_done_or_refused_in_words(values: dict[str, Any]) -> None:
    """All replicas can apply an accepted change: it survives the log."""
    one, two = Replica("one"), Replica("two")
    try:
        outcome = one.live.change(values)
    except ClientError:
        assert one.said == []
        return
    assert bool(outcome.change_id) == bool(one.said)
    two.hears(*decode_ops(encode_ops(one.said))[0])
    assert two.live.current == one.live.current
    assert two.live.refused == one.live.refused == {}
    if outcome.change_id:
        one.live.roll_back(outcome.change_id)
    assert one.live.current == one.live.started
