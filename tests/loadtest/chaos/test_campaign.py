"""The load is the machine's capacity. Whole runs are in ``tests/chaos/test_chaos.py``."""

import httpx
import pytest

from loadtest.chaos import campaign
from loadtest.chaos.campaign import CLIENTS, CLIENTS_RANGE, HASHES_PER_S, disagreeing, fitting_clients
from loadtest.chaos.replica import Replica


@pytest.mark.parametrize(
    ("speed", "clients"),
    [(1.0, CLIENTS), (0.5, CLIENTS // 2), (0.001, CLIENTS_RANGE[0]), (100.0, CLIENTS_RANGE[1])],
)
def test_a_slower_machine_has_fewer_clients(
    speed: float, clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "_machine_speed", lambda: speed * HASHES_PER_S)
    assert fitting_clients() == clients


def test_the_speed_of_this_machine_is_measured() -> None:
    low, high = CLIENTS_RANGE
    assert low <= fitting_clients() <= high


def replica(name: str, *, revision: str = "a", state: str = "healthy", refused: str = "") -> Replica:
    bodies = {
        "/settings/history": {"revision": revision, "refused": {refused: "why"} if refused else {}},
        "/workers": {"workers": [{"id": "host:1", "role": "plain", "state": state}]},
    }
    client = httpx.AsyncClient(
        base_url=f"http://{name}",
        transport=httpx.MockTransport(lambda asked: httpx.Response(200, json=bodies[asked.url.path])),
    )
    return Replica(client)


async def test_replicas_that_say_the_same_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "AGREE_S", 0.0)
    assert await disagreeing([replica("r1"), replica("r2")]) == []


@pytest.mark.parametrize("other", [{"revision": "b"}, {"state": "draining"}])
async def test_another_revision_or_state_of_a_worker_is_told(
    other: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "AGREE_S", 0.0)
    told = await disagreeing([replica("r1"), replica("r2", **other)])
    assert len(told) == 2
    assert next(iter(other.values())) in told[1]


@pytest.mark.parametrize("both", [{"state": "unhealthy"}, {"refused": "placement.policy"}])
async def test_it_is_not_enough_to_agree_that_something_is_wrong(
    both: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "AGREE_S", 0.0)
    assert len(await disagreeing([replica("r1", **both), replica("r2", **both)])) == 2
