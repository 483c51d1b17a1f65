"""Which routes are on which port."""

import httpx
import pytest
from fakes.admin import Setup, code

from router.admin import make_admin_api, make_data_api

DATA = ("/v1/models", "/list_encoder_urls", "/server_info")
ADMIN = ("/workers", "/queue", "/tenants", "/links", "/offload", "/roles", "/buckets", "/openapi.json")
BOTH = ("/health", "/liveness", "/readiness", "/metrics")


async def test_links_remote_prefill_and_roles_have_views(setup: Setup) -> None:
    """What they say is tested with each of them."""
    assert (await setup.client.get("/links")).json() == {"links": []}
    assert (await setup.client.get("/offload")).json()["threshold_tokens"] == 7
    assert (await setup.client.get("/roles")).json()["mode"] == "recommend"


@pytest.mark.parametrize("path", [*DATA, *ADMIN, *BOTH])
async def test_without_a_port_of_its_own_the_admin_api_is_beside_the_data(setup: Setup, path: str) -> None:
    assert (await setup.client.get(path)).status_code != 404


@pytest.mark.parametrize("path", [*DATA, *ADMIN, *BOTH])
async def test_with_a_port_of_its_own_it_is_only_there(setup: Setup, path: str) -> None:
    on_data, on_admin = await asked(setup, path)
    assert (on_data.status_code != 404) is (path not in ADMIN)
    assert (on_admin.status_code != 404) is (path not in DATA)


async def test_who_asks_the_data_port_for_it_is_told_where_it_is(setup: Setup) -> None:
    on_data, on_admin = await asked(setup, "/list_workers")
    assert (code(on_data), on_admin.status_code) == ("not_found", 200)
    message = on_data.json()["error"]["message"]
    assert "is on port 29100" in message
    assert "--admin-port 0" in message


async def test_who_asks_the_admin_port_for_what_clients_ask_is_told_so(setup: Setup) -> None:
    _, on_admin = await asked(setup, "/v1/models")
    assert code(on_admin) == "not_found"
    assert "data port" in on_admin.json()["error"]["message"]
    assert "/openapi.json" in on_admin.json()["error"]["message"]


async def test_nothing_is_loaded_from_elsewhere(setup: Setup) -> None:
    """FastAPI's pages of documentation come with scripts from the internet."""
    for path in ("/docs", "/redoc"):
        assert (await setup.client.get(path)).status_code == 404


async def asked(setup: Setup, path: str) -> list[httpx.Response]:
    """What the two ports answer."""
    answers = []
    for api in (make_data_api(setup.ports, None), make_admin_api(setup.ports)):
        transport = httpx.ASGITransport(api)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answers.append(await client.get(path))
    return answers
