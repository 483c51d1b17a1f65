"""The end of a session."""

import pytest
from fakes.admin import Setup


async def test_a_session_that_is_not_known_has_ended(setup: Setup) -> None:
    for _ in range(2):
        answer = await setup.client.post("/finish_session", params={"session_id": "s"})
        assert (answer.status_code, answer.json()) == (200, {"session_id": "s", "finished": False})


@pytest.mark.parametrize("params", [{}, {"session_id": ""}, {"session_id": "x" * 257}])
async def test_a_session_has_a_name(setup: Setup, params: dict[str, str]) -> None:
    assert (await setup.client.post("/finish_session", params=params)).status_code == 400
