from typing import Any

import pytest

from loadtest.engine.job import Job, State

NOBODY: Any = None


@pytest.mark.parametrize("state", list(State))
def test_a_job_is_done_once_it_has_left_or_only_holds_blocks_for_another_engine(state: State) -> None:
    job = Job(b"", 1, 1, b"", 1, NOBODY)
    job.state = state

    assert job.done == (state in (State.HELD, State.DONE))
