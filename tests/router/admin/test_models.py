"""The models of all workers, and what engines say of themselves."""

import httpx
import pytest
from fakes.admin import Setup, code, unreachable

from router.fleet import ServedModel


async def test_models_are_merged_with_the_length_that_every_worker_takes(setup: Setup) -> None:
    a, b, c = setup.add("a", "b", "c")
    setup.registry.described(a, (ServedModel("m", 8192, "vllm"), ServedModel("x")), "", 0)
    setup.registry.described(b, (ServedModel("m", 4096),), "", 0)
    setup.registry.described(c, (ServedModel("m"),), "", 0)
    listed = (await setup.client.get("/v1/models")).json()
    models = {model["id"]: (model["workers"], model["max_model_len"]) for model in listed["data"]}
    assert models == {"m": (3, 4096), "x": (1, None)}
    assert (await setup.client.get("/v1/models/m")).json()["owned_by"] == "vllm"
    missing = await setup.client.get("/v1/models/org/name")
    assert (missing.status_code, code(missing)) == (404, "model_not_found")


@pytest.mark.parametrize("path", ["/get_model_info", "/get_server_info", "/server_info"])
async def test_what_a_worker_says_of_itself_passes_through(setup: Setup, path: str) -> None:
    a, _ = setup.add("a", "b")
    setup.registry.probed(a, ok=False, refused=True, detail="")
    setup.answer = lambda request: httpx.Response(203, json={"path": request.url.path})
    answer = await setup.client.get(path)
    assert (answer.status_code, answer.json()) == (203, {"path": path})
    assert answer.headers["x-cacheway-worker"] == "b:80"


async def test_without_a_worker_to_ask_the_answer_says_when_to_come_back(setup: Setup) -> None:
    answer = await setup.client.get("/get_model_info")
    assert (answer.status_code, code(answer)) == (503, "no_worker_available")
    assert answer.headers["retry-after"] == "2"


async def test_a_worker_that_does_not_answer_is_a_bad_gateway(setup: Setup) -> None:
    setup.add("a")
    setup.answer = unreachable
    answer = await setup.client.get("/get_model_info")
    assert (answer.status_code, code(answer)) == (502, "upstream_error")
