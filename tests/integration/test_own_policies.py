"""A policy of a user in a real gateway: it decides, fails without losing a request, and is seen to be off."""

import sys
from pathlib import Path

import pytest
from fakes.running import Fleet, RunningGateway, until

from loadtest.processes import free_port
from router.own_policies import load_rule

CODE = """
def last(request, workers):
    if request.prompt_tokens > 10_000:
        raise RuntimeError("too long for me")
    return -workers.worker_hash.astype(float)

def shy(request, workers):
    if request.prompt_tokens > 10_000:
        raise RuntimeError("too long for me")
    return workers.inflight_requests
"""


async def ask(gateway: RunningGateway, prompt: str) -> int:
    answer = await gateway.client.post(
        "/v1/completions", json={"model": "emulated", "prompt": prompt, "max_tokens": 1}
    )
    return answer.status_code


async def test_a_policy_that_fails_is_off_and_no_request_is_lost(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_rules_here.py").write_text(CODE)
    try:
        engines = [await fleet.engine() for _ in range(3)]
        gateway = await fleet.gateway(
            *(engine.url for engine in engines),
            admin={"port": free_port()},
            placement={
                "policy": "own_rules_here:last",
                "own_policies": ["own_rules_here:shy"],
                "shadow_policy": "own_rules_here:shy",
                "shadow_ratio": 1.0,
            },
        )
        process = gateway.process
        admin = f"http://127.0.0.1:{process.settings.admin.port}"

        assert await ask(gateway, "short") == 200
        before = (await gateway.client.get(f"{admin}/policies")).json()
        assert before["active"]["placement"]["policy"] == "own_rules_here:last"
        assert {each["name"]: each["state"] for each in before["own"]} == {
            "own_rules_here:last": "in_use",
            "own_rules_here:shy": "in_use",
        }
        assert process.gateway.placing.decider.shadow is not None

        assert await ask(gateway, "long " * 20_000) == 200
        await until(lambda: process.gateway.placing.decider.policy.name == "expected_cost")
        assert process.gateway.placing.decider.shadow is None
        after = (await gateway.client.get(f"{admin}/policies")).json()
        assert all("too long for me" in each["why_off"] for each in after["own"])
        assert any("own_rules_here:last is off" in each for each in process.degraded())
        metrics = (await gateway.client.get("/metrics")).text
        assert 'cacheway_own_policy_off{policy="own_rules_here:last",reason="raised"} 1.0' in metrics
        assert await ask(gateway, "long " * 20_000) == 200
    finally:
        sys.modules.pop("own_rules_here", None)
        load_rule.cache_clear()


async def test_an_administrator_chooses_only_what_was_loaded(fleet: Fleet, tmp_path: Path) -> None:
    engine = await fleet.engine()
    gateway = await fleet.gateway(engine.url, admin={"port": free_port()})
    admin = f"http://127.0.0.1:{gateway.process.settings.admin.port}"
    (tmp_path / "evil_module.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    sys.path.insert(0, str(tmp_path))
    try:
        for key in ("placement.policy", "placement.shadow_policy", "placement.prefill_policy"):
            answer = await gateway.client.patch(
                f"{admin}/settings", json={"values": {key: "evil_module:rule"}}
            )
            assert answer.status_code == 400, answer.text
            assert "was not loaded when this replica started" in answer.text
        answer = await gateway.client.patch(
            f"{admin}/settings", json={"values": {"placement.own_policies": ["evil_module:rule"]}}
        )
        assert "needs a restart" in answer.text
        answer = await gateway.client.post(
            f"{admin}/explain",
            json={
                "request": {"prompt": "x"},
                "endpoint": "/v1/completions",
                "policy": "evil_module:rule",
            },
        )
        assert answer.status_code == 400, answer.text
    finally:
        sys.path.remove(str(tmp_path))
    assert not (tmp_path / "ran").exists()
    assert "evil_module" not in sys.modules
