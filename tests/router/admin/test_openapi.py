"""What the admin API says of itself."""

from fakes.admin import Setup
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from router.admin.openapi import TAGS


async def test_all_routes_are_described(setup: Setup) -> None:
    """Those that need a gateway behind them, too, so that all that is said here holds for all of them."""
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
