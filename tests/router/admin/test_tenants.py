"""``GET /tenants``, and the paths that a tenant's key opens."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import httpx
import pytest
from fakes.admin import Setup as Bare

from policies import Placed, WorkerPut, owner_of
from router.tenant import Tenant
from router.tenants import Keyring, KeysWatch, Limiter
from router.tenants.keys import digest_of

KEYS = {name: f"sha256:{digest_of(name.encode()).hex()}" for name in ("one", "two", "three", "four")}

CONTENT = f"""
tenants:
  acme:
    keys:
      - {KEYS["one"]}
      - {{hash: {KEYS["two"]}, expires: 1970-01-02}}
      - {{hash: {KEYS["three"]}, not_before: 2999-01-01}}
    weight: 2
    class: high
    salt: 0123456789abcdef
    limits: {{requests_per_minute: 600}}
  guest:
    keys: [{{hash: {KEYS["four"]}, expires: 2999-01-01}}]
"""


class FakeLimiter:
    """A limiter that works and knows one tenant."""

    degraded_reason = None

    def left(self, tenant: Tenant) -> dict[str, int] | None:
        return {"requests": 593} if tenant.name == "acme" else None


class Setup(Bare):
    """An API with tenants, and the gateway's own key."""

    def __init__(self, file: Path | None) -> None:
        self.keys = None if file is None else KeysWatch(str(file), Keyring(), now_unix_s=lambda: 1e9)
        if self.keys is not None:
            self.keys.load()
        super().__init__(admin_key="ours", keys=self.keys, limiter=cast(Limiter, FakeLimiter()))

    async def get(self, path: str, key: str = "ours") -> httpx.Response:
        return await self.client.get(path, headers={"authorization": f"Bearer {key}"})


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[Setup]:
    file = tmp_path / "keys.yaml"
    file.write_text(CONTENT)
    setup = Setup(file)
    async with setup.client:
        yield setup


async def test_tenants_are_shown_without_anything_secret(setup: Setup) -> None:
    answer = await setup.get("/tenants")
    assert setup.keys is not None
    assert answer.json() == {
        "file": {"path": str(setup.keys.path), "loaded_unix_s": 1e9, "problem": None},
        "limits_degraded": None,
        "tenants": [
            {
                "name": "acme",
                "weight": 2.0,
                "class": "high",
                "isolated": True,
                "limits": {"requests_per_minute": 600, "tokens_per_minute": None, "concurrent_tokens": None},
                "left": {"requests": 593},
                "keys": {"valid": 1, "not_yet": 1, "expired": 1, "end_unix_s": None},
                "cache": None,
            },
            {
                "name": "guest",
                "weight": 1.0,
                "class": None,
                "isolated": False,
                "limits": {"requests_per_minute": None, "tokens_per_minute": None, "concurrent_tokens": None},
                "left": None,
                "keys": {"valid": 1, "not_yet": 0, "expired": 0, "end_unix_s": 32472144000.0},
                "cache": None,
            },
        ],
        "total": 2,
    }
    assert not any(secret.removeprefix("sha256:") in answer.text for secret in KEYS.values())
    assert "0123456789abcdef" not in answer.text


async def test_with_a_quota_every_tenant_is_shown_with_the_kv_space_that_it_fills(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text("tenants: {acme: {cache_share: 0.25}, guest: {}}")
    setup = Setup(file)
    fleet = setup.parts.gateway.fleet
    fleet.apply(WorkerPut("a:1", 1, "r", "http://a:1", capacity_tokens=2560))
    fleet.apply(Placed("x", 2, "a:1", "r", 0, 0, 0, (bytes(range(24)),), owner=owner_of("acme")))
    async with setup.client:
        tenants = (await setup.get("/tenants")).json()["tenants"]
    assert [tenant["cache"] for tenant in tenants] == [
        {"share": 0.25, "tokens": 768, "space_tokens": 2560},
        {"share": 1.0, "tokens": 0, "space_tokens": 2560},
    ]


async def test_a_file_that_cannot_be_used_is_shown(setup: Setup) -> None:
    assert setup.keys is not None
    setup.keys.path.write_text("tenants: [")
    for _ in range(2):
        await setup.keys.look()
    shown = (await setup.get("/tenants")).json()
    assert "is not YAML" in shown["file"]["problem"]
    assert shown["total"] == 2


async def test_without_a_keys_file_there_are_no_tenants_to_show() -> None:
    setup = Setup(None)
    async with setup.client:
        assert (await setup.get("/tenants")).json() == {"file": None, "tenants": [], "total": 0}


@pytest.mark.parametrize("path", ["/tenants", "/workers", "/docs", "/get_server_info", "/v1/modelsx"])
async def test_a_tenants_key_does_not_administer(setup: Setup, path: str) -> None:
    """Any valid key, and no other, learns that a path does not exist."""
    answer = await setup.get(path, key="one")
    told = (404, "not_found") if path in ("/docs", "/v1/modelsx") else (403, "admin_only")
    assert (answer.status_code, answer.json()["error"]["code"]) == told
    for key in ("two", "three", "wrong"):
        answer = await setup.get(path, key=key)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")


async def test_a_tenants_key_lists_models(setup: Setup) -> None:
    assert (await setup.get("/v1/models", key="one")).status_code == 200
    assert (await setup.get("/v1/models/m", key="four")).status_code == 404
    assert (await setup.get("/v1/models", key="two")).status_code == 401
