"""Settings over HTTP: the view, and changes."""

from typing import Any

import pytest
from fakes.admin import Setup, code

from policies import POLICIES, Audited, SettingsChanged
from router.admin.settings_view import described
from router.catalogue import CATALOGUE
from router.settings import PlacementSettings, Settings
from router.sources import Origin


async def patched(setup: Setup, values: dict[str, Any], **more: Any) -> dict[str, Any]:
    answer = await setup.client.patch("/settings", json={"values": values, **more})
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def test_every_setting_is_told_with_where_it_comes_from(setup: Setup) -> None:
    setup.live.started = setup.live.current = Settings.model_validate(
        {"server": {"api_key": "geheim"}, "shared": {"redis_url": "redis://ann:geheim@redis:6379/0"}}
    )
    setup.live._origins = {"server.api_key": Origin("environment", "CACHEWAY_API_KEY")}
    told = await patched(setup, {"queue.size": 7}, comment="smaller")
    answer = await setup.client.get("/settings")
    assert "geheim" not in answer.text
    page = answer.json()
    assert page["settings"].keys() == CATALOGUE.keys()
    size = page["settings"]["queue.size"]
    assert (size["value"], size["started"], size["default"], size["live"]) == (7, 10_000, 10_000, True)
    assert (size["source"], size["refused"], size["flag"]) == ("runtime", None, "--queue-size")
    assert size["change"] == {
        "change_id": told["change_id"],
        "at_unix_s": pytest.approx(setup.time.clock.now_us() / 1e6, abs=0.1),
        "replica": "r1",
        "actor": "anonymous",
        "comment": "smaller",
        "undoes": None,
    }
    key = page["settings"]["server.api_key"]
    assert (key["value"], key["source"], key["place"]) == ("********", "environment", "CACHEWAY_API_KEY")
    assert (key["live"], key["change"]) == (False, None)
    assert page["settings"]["queue.timeout_s"]["source"] == "default"
    assert page["revision"] == told["revision"]


async def test_a_change_says_what_it_changed_and_the_audit_says_who(setup: Setup) -> None:
    told = await patched(setup, {"queue.size": 7, "roles.mode": "off", "queue.timeout_s": 180})
    assert told["changed"] == {
        "queue.size": {"before": 10_000, "after": 7},
        "queue.timeout_s": {"before": 180, "after": 180},
        "roles.mode": {"before": "recommend", "after": "off"},
    }
    assert (told["shared"], told["note"], told["refused"], told["dry_run"]) == (True, None, {}, False)
    (said,) = setup.shared.said(SettingsChanged)
    assert (said.change_id, said.actor) == (told["change_id"], "anonymous")
    (audited,) = setup.shared.said(Audited)
    assert (audited.action, audited.target) == ("PATCH /settings", "queue.size, queue.timeout_s, roles.mode")
    assert told["change_id"] in audited.detail


async def test_what_changes_nothing_is_in_no_history_and_no_audit(setup: Setup) -> None:
    told = await patched(setup, {"queue.size": 7}, dry_run=True)
    assert (told["change_id"], told["dry_run"]) == (None, True)
    assert told["changed"] == {"queue.size": {"before": 10_000, "after": 7}}
    told = await patched(setup, {"queue.size": None})
    assert (told["change_id"], told["changed"]) == (None, {})
    assert setup.shared.said(SettingsChanged) == setup.shared.said(Audited) == []


async def test_without_redis_it_is_said_that_only_this_replica_knows(setup: Setup) -> None:
    setup.status = setup.status.__class__(**{**_fields(setup.status), "connected": False})
    told = await patched(setup, {"queue.size": 7})
    assert not told["shared"]
    assert "lost" in told["note"]
    assert setup.live.current.queue.size == 7


def _fields(status: Any) -> dict[str, Any]:
    return {name: getattr(status, name) for name in status.__slots__}


@pytest.mark.parametrize(
    ("body", "param", "word"),
    [
        ({"values": {"queue.size": -1}}, "queue.size", "give a whole number, at least 0"),
        ({"values": {"server.port": 1}}, "server.port", "restart"),
        ({"values": {"x": 1}}, "x", "there is no setting x"),
        ({"values": {}}, "values", "at least 1"),
        ({"values": {"queue.size": 1}, "force": True}, "force", "not permitted"),
        ({"values": {"queue.size": 1}, "comment": "x" * 301}, "comment", "at most 300"),
        ([], None, "dictionary"),
    ],
)
async def test_what_cannot_be_is_refused_whole(setup: Setup, body: Any, param: str | None, word: str) -> None:
    answer = await setup.client.patch("/settings", json=body)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["param"] == param
    assert word in error["message"]
    assert setup.shared.said(SettingsChanged) == []


@pytest.mark.parametrize(
    "body",
    [
        b'{"values": {"que\\ud800": 1}}',
        b'{"values": {"queue.size": "\\ud800"}}',
        b'{"values": {"queue.size": 1}, "comment": "\\ud800"}',
        b'{"values": {"queue.size": 1}, "expected_revision": "\\ud800"}',
        b'{"values": {"queue.size": NaN}}',
        b'{"values": {"queue.size": 1' + b"0" * 400 + b"}}",
        b'{"values": {"' + b"x" * 10_000 + b'": 1}}',
    ],
)
async def test_text_that_is_no_text_and_numbers_that_are_none_are_refused(setup: Setup, body: bytes) -> None:
    answer = await setup.client.patch("/settings", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert len(answer.text) < 1000
    assert setup.shared.said(SettingsChanged) == []


async def test_somebody_elses_change_is_not_overwritten_unseen(setup: Setup) -> None:
    seen = (await setup.client.get("/settings")).json()["revision"]
    await patched(setup, {"queue.size": 7}, expected_revision=seen)
    body = {"values": {"queue.size": 9}, "expected_revision": seen}
    answer = await setup.client.patch("/settings", json=body)
    assert (answer.status_code, code(answer)) == (409, "settings_changed")


async def test_the_history_tells_each_change_with_what_was_before(setup: Setup) -> None:
    first = await patched(setup, {"queue.size": 7}, comment="smaller")
    second = await patched(setup, {"queue.size": None, "roles.mode": "off"})
    page = (await setup.client.get("/settings/history")).json()
    assert [change["change_id"] for change in page["changes"]] == [second["change_id"], first["change_id"]]
    assert page["changes"][0]["values"] == {
        "queue.size": {"before": 7, "after": None},
        "roles.mode": {"before": None, "after": "off"},
    }
    assert page["changes"][1]["comment"] == "smaller"
    assert (page["total"], page["revision"]) == (2, second["revision"])
    page = (await setup.client.get("/settings/history?limit=1")).json()
    assert [change["change_id"] for change in page["changes"]] == [second["change_id"]]
    assert (await setup.client.get("/settings/history?limit=0")).status_code == 400


async def test_a_rollback_is_a_change_like_any_other(setup: Setup) -> None:
    first = await patched(setup, {"queue.size": 7})
    await patched(setup, {"queue.size": 9})
    body = {"change_id": first["change_id"], "comment": "it was worse"}
    told = (await setup.client.post("/settings/rollback", json=body)).json()
    assert told["changed"] == {"queue.size": {"before": 9, "after": 10_000}}
    newest = (await setup.client.get("/settings/history")).json()["changes"][0]
    assert (newest["undoes"], newest["comment"]) == (first["change_id"], "it was worse")
    assert setup.shared.said(Audited)[-1].action == "POST /settings/rollback"
    body = {"change_id": told["change_id"]}
    await setup.client.post("/settings/rollback", json=body)
    assert setup.live.current.queue.size == 9


async def test_what_is_not_in_the_history_cannot_be_rolled_back(setup: Setup) -> None:
    answer = await setup.client.post("/settings/rollback", json={"change_id": "nothing"})
    assert (answer.status_code, code(answer)) == (404, "change_not_found")


async def test_what_this_replica_cannot_use_is_told_everywhere(setup: Setup) -> None:
    setup.shared.publish(SettingsChanged("c1", 5, "newer", {"future.thing": "1", "roles.mode": '"fly"'}))
    setup.shared.publish(SettingsChanged("c2", 6, "newer", {"queue.timeout_s": "{"}))
    setup.live.follow()
    page = (await setup.client.get("/settings")).json()
    assert page["refused"].keys() == {"future.thing", "roles.mode", "queue.timeout_s"}
    assert "'fly' is not allowed" in page["settings"]["roles.mode"]["refused"]
    assert page["settings"]["roles.mode"]["source"] == "default"
    ready = (await setup.client.get("/readiness")).json()
    assert ready["settings_refused"] == ["future.thing", "queue.timeout_s", "roles.mode"]
    history = (await setup.client.get("/settings/history")).json()["changes"]
    assert history[0]["values"]["queue.timeout_s"]["after"] == "{"


async def test_the_policies_are_told_with_what_they_decide_now(setup: Setup) -> None:
    page = (await setup.client.get("/policies")).json()
    assert [policy["name"] for policy in page["policies"]] == list(POLICIES)
    first = page["policies"][0]
    assert (first["name"], first["decides"], first["uses_cache"]) == (
        "expected_cost",
        ["placement", "prefill"],
        True,
    )
    assert first["picks"].startswith("Cost of a placement")
    assert page["decode_only"]["decides"] == ["decode"]
    assert page["shadow"] is None

    values = {
        "placement.policy": "affinity",
        "placement.policy_options": {"match_weight": 3},
        "placement.shadow_policy": "lmetric",
        "placement.shadow_ratio": 0.5,
    }
    await setup.client.patch("/settings", json={"values": values})
    page = (await setup.client.get("/policies")).json()
    assert page["active"]["placement"] == {"policy": "affinity", "options": {"match_weight": 3.0}}
    assert page["shadow"] == {"policy": "lmetric", "options": {}, "ratio": 0.5}


def test_options_are_told_with_their_ranges() -> None:
    settings = PlacementSettings(policy="least_load", prefill_policy="affinity", decode_policy="round_robin")
    page = described(settings)
    by_name = {policy["name"]: policy for policy in page["policies"]}
    (option, *_) = by_name["affinity"]["options"]
    assert option.keys() == {"name", "default", "low", "high"}
    assert by_name["least_load"]["options"] == []
    assert [by_name[name]["decides"] for name in ("least_load", "affinity", "round_robin")] == [
        ["placement"],
        ["prefill"],
        ["decode"],
    ]
    assert page["decode_only"]["decides"] == []
