"""What is told of the changes that people made."""

import pytest
from fakes.admin import Setup, code

from policies import Audited


async def test_the_newest_changes_of_all_replicas_come_first(setup: Setup) -> None:
    setup.shared.publish(
        Audited(5, "r2", "q", "ann", "10.0.0.1:7", "PATCH /settings", "queue.size", 200, '{"to":7}', 9500000)
    )
    setup.add("a")
    await setup.client.delete("/workers/a:80")
    told = (await setup.client.get("/audit")).json()
    assert [change["action"] for change in told["changes"]] == [
        "DELETE /workers/{worker_id}",
        "PATCH /settings",
    ]
    assert told["total"] == 2
    assert told["changes"][1] == {
        "at_unix_s": 9.5,
        "replica": "r2",
        "actor": "ann",
        "client": "10.0.0.1:7",
        "action": "PATCH /settings",
        "target": "queue.size",
        "status": 200,
        "request_id": "q",
        "detail": {"to": 7},
    }
    assert len((await setup.client.get("/audit?limit=1")).json()["changes"]) == 1


@pytest.mark.parametrize("limit", ["0", "1001", "many"])
async def test_a_limit_has_bounds(setup: Setup, limit: str) -> None:
    answer = await setup.client.get(f"/audit?limit={limit}")
    assert (answer.status_code, code(answer)) == (400, "invalid_value")
