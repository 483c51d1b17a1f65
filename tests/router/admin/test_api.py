"""Routes on each port."""

import httpx
import pytest
from fakes.admin import Setup, code
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from router.admin import make_admin_api, make_data_api
from router.admin.api import TAGS

DATA = ("/v1/models", "/list_encoder_urls", "/server_info")
ADMIN = ("/workers", "/queue", "/tenants", "/links", "/offload", "/roles", "/buckets", "/openapi.json")
BOTH = ("/health", "/liveness", "/readiness", "/metrics")


async def test_links_remote_prefill_and_roles_have_views(setup: Setup) -> None:
    """The tests of each view cover its contents."""
    assert (await setup.client.get("/links")).json() == {"links": []}
    assert (await setup.client.get("/offload")).json()["enabled"] is False
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
    """FastAPI's pages of documentation load scripts from the internet."""
    for path in ("/docs", "/redoc"):
        assert (await setup.client.get(path)).status_code == 404


async def asked(setup: Setup, path: str) -> list[httpx.Response]:
    """Return the answers of the two ports."""
    answers = []
    for api in (make_data_api(setup.parts, None), make_admin_api(setup.parts, setup.console)):
        transport = httpx.ASGITransport(api)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answers.append(await client.get(path))
    return answers


async def test_all_routes_are_described(setup: Setup) -> None:
    """Routes that need a gateway are described, too, so the tests here cover all routes."""
    paths = (await setup.client.get("/openapi.json")).json()["paths"]
    for path in ("/explain", "/decisions", "/shadow", "/tree", "/tree/workers", "/discovery"):
        assert path in paths
    assert {"/events", "/settings", "/settings/rollback", "/policies", "/audit", "/replicas"} <= paths.keys()
    assert len(paths) == len({route.path_format for route in setup.api.routes if shown(route)})


def shown(route: BaseRoute) -> bool:
    return isinstance(route, APIRoute) and route.include_in_schema


async def test_every_operation_has_a_title_a_group_and_its_errors(setup: Setup) -> None:
    document = (await setup.client.get("/openapi.json")).json()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            where = f"{method} {path}"
            assert operation["summary"], where
            assert operation["description"], where
            assert set(operation["tags"]) <= TAGS.keys(), where
            assert {"4XX", "5XX"} <= operation["responses"].keys(), where
            for parameter in operation.get("parameters", ()):
                if parameter["in"] != "header":
                    assert parameter.get("description"), f"{where}: {parameter['name']}"


async def test_who_may_use_an_operation_is_said(setup: Setup) -> None:
    paths = (await setup.client.get("/openapi.json")).json()["paths"]
    assert "security" not in paths["/readiness"]["get"]
    assert (paths["/workers"]["get"]["x-role"], paths["/workers"]["post"]["x-role"]) == ("read", "write")


async def test_groups_are_explained_and_nothing_comes_from_elsewhere(setup: Setup) -> None:
    answer = await setup.client.get("/openapi.json")
    assert all(tag["description"] for tag in answer.json()["tags"])
    assert "cdn" not in answer.text


async def test_the_data_port_answers_at_its_root_and_tells_nothing(setup: Setup) -> None:
    """Coding agents send HEAD / before their first request, and some balancers probe it."""
    on_data, on_admin = await asked(setup, "/")
    assert (on_data.status_code, on_data.json()) == (200, {"status": "ok"})
    assert "text/html" in on_admin.headers["content-type"]
    transport = httpx.ASGITransport(make_data_api(setup.parts, None))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.head("/")).status_code == 200
