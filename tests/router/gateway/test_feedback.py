"""A cache that a worker has lost is logged."""

import pytest
from fakes.gateway import FakeShared

from policies import Attempt, BareRequest, Chosen, Usage, WorkerPut
from router.gateway.feedback import Feedback

SECOND = 1_000_000
START_US = 1_000 * SECOND
PATHS = [b"".join((1_000 * branch + n).to_bytes(8, "little") for n in range(16)) for branch in range(4)]


def test_a_worker_that_lost_its_cache_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """It answers four prompts, reuses one, and then has nothing of three that it must have."""
    shared = FakeShared()
    shared.publish(WorkerPut("w:80", START_US, "r1", "http://w:80"))
    feedback = Feedback(shared.fleet, publish=shared.publish, replica="r1", bytes_per_token=4.0)
    feedback.understood("w:80", Usage(1, 1, 1))
    script = [*((branch, 0, 0) for branch in range(4)), (0, 4096, 4096), *((b, 0, 4096) for b in (1, 2, 3))]

    flushed = []
    for number, (branch, cached_tokens, predicted_tokens) in enumerate(script, 1):
        at_us = START_US + number * SECOND
        chosen = Chosen(0, predicted_tokens, predicted_tokens, 4096 - predicted_tokens, 0.3, 0.3, "cold")
        attempt = Attempt(f"a{number}", "w:80", chosen, at_us, at_us, 256.0, 0.0)
        request = BareRequest("m", (PATHS[branch],), 0, 1, 1, prompt_token_ids=4096)
        usage = Usage(4096, cached_tokens, 1)
        flushed.append(feedback.answered(request, attempt, usage, None, at_us + SECOND // 2))

    assert flushed == [False] * 7 + [True]
    (line,) = caplog.records
    assert (line.levelname, vars(line)["event"], vars(line)["worker_id"]) == (
        "WARNING",
        "worker.flushed",
        "w:80",
    )
