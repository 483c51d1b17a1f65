"""The handler of each method and path, and the page that lists them."""

import re
from pathlib import Path

import pytest

from router.gateway.endpoints import ENCODER_PATHS, ENDPOINTS, UPLOADS, Endpoint
from router.pass_through import ADMINISTERING
from router.proxy import Route
from router.relaying import Routes
from router.relaying.routes import methods_of, placed_by, response_id_of
from router.settings import Settings

PAGE = Path(__file__).parents[3] / "docs" / "endpoints.md"


@pytest.fixture
def routes() -> Routes:
    return Routes(Settings())


@pytest.mark.parametrize("path", sorted(ENDPOINTS.keys() | ENCODER_PATHS))
def test_json_is_posted_to_an_endpoint(routes: Routes, path: bytes) -> None:
    assert routes(b"POST", path) is Route.WHOLE
    assert routes(b"GET", path) is Route.APPLICATION
    assert routes(b"POST", path + b"/") is Route.APPLICATION


@pytest.mark.parametrize("endpoint", sorted(UPLOADS))
def test_forms_are_streamed(routes: Routes, endpoint: Endpoint) -> None:
    assert routes(b"POST", endpoint.encode()) is Route.STREAMED
    assert routes(b"GET", endpoint.encode()) is Route.APPLICATION


@pytest.mark.parametrize(
    ("method", "path", "endpoint"),
    [
        (b"GET", b"/v1/responses/resp_a-1", Endpoint.RESPONSE),
        (b"DELETE", b"/v1/responses/resp_a-1", Endpoint.RESPONSE),
        (b"POST", b"/v1/responses/resp_a-1", None),
        (b"POST", b"/v1/responses/resp_a-1/cancel", Endpoint.RESPONSE_CANCEL),
        (b"GET", b"/v1/responses/resp_a-1/cancel", None),
        (b"GET", b"/v1/responses/", None),
        (b"GET", b"/v1/responses/a/b", None),
        (b"GET", b"/v1/responses/..", None),
        (b"GET", b"/v1/responses/%2e", None),
        (b"GET", b"/v1/responses/render", None),
        (b"GET", b"/v1/responses/" + b"a" * 129, None),
        (b"GET", b"/v1/realtime", Endpoint.REALTIME),
        (b"POST", b"/v1/realtime", None),
        (b"GET", b"/version", Endpoint.VERSION),
        (b"GET", b"/v1/videos", None),
    ],
)
def test_others_are_told_by_method_and_path(
    routes: Routes, method: bytes, path: bytes, endpoint: Endpoint | None
) -> None:
    assert routes.endpoint_of(method, path) is endpoint
    assert bool(routes(method, path)) == (endpoint is not None)
    assert (routes(method, path) is Route.TUNNELLED) == (endpoint is Endpoint.REALTIME)


@pytest.mark.parametrize("name", sorted(ADMINISTERING))
def test_no_list_leads_to_an_engines_administration(routes: Routes, name: str) -> None:
    for method in (b"GET", b"POST", b"PUT", b"DELETE"):
        for path in (f"/{name}", f"/v1/{name}"):
            assert routes(method, path.encode()) is Route.APPLICATION


def test_an_id_is_taken_from_its_path() -> None:
    assert response_id_of(b"/v1/responses/resp_1/cancel") == "resp_1"
    assert response_id_of(b"/v1/responses") == ""


def test_the_page_lists_what_is_served_and_how_it_is_placed() -> None:
    rows = re.findall(r"^\| `([A-Z]+) (/\S*)` \| ([^|]+) \|", PAGE.read_text(), re.MULTILINE)
    listed = {(method, path): placed for method, path, placed in rows}
    served = {
        (method, endpoint.value): placed_by(endpoint)
        for endpoint in Endpoint
        if endpoint is not Endpoint.MORE
        for method in methods_of(endpoint)
    }
    assert listed == served
    assert len(rows) == len(served)
