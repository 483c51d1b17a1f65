"""Parameters that a route does not know are refused where a slip would matter."""

import pytest
from fakes.admin import Setup, code


@pytest.mark.parametrize("path", ["/workers?limit=3", "/queue/tickets?limit=3&tenants=a", "/audit?limt=3"])
async def test_a_misspelt_parameter_is_refused_with_those_that_there_are(setup: Setup, path: str) -> None:
    answer = await setup.client.get(path)
    assert (answer.status_code, code(answer)) == (400, "unknown_parameter")
    assert "it knows" in answer.json()["error"]["message"]


async def test_a_slip_removes_no_worker(setup: Setup) -> None:
    """It would be removed at once, and not when it has drained."""
    setup.add("a")
    answer = await setup.client.delete("/workers/a:80?drian=true")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "drian")
    assert len(setup.registry.all()) == 1


@pytest.mark.parametrize("path", ["/health?t=1", "/v1/models?limit=20", "/list_workers?x=1"])
async def test_probes_and_clients_of_others_may_say_more(setup: Setup, path: str) -> None:
    assert (await setup.client.get(path)).status_code == 200
