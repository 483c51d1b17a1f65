from typing import Any

import pytest

from loadtest.engine.outputs import Output
from loadtest.engine.replies.reply import Facts
from loadtest.engine.served import Extra, served_job

NOBODY: Any = None


def jobs(cached: Any) -> Any:
    """Two prompts of three tokens with two answers of five tokens each."""
    made = [
        served_job(b"abcd" * 3, Extra(), Output(5), NOBODY, block_tokens=1, index=index) for index in range(4)
    ]
    for job in made:
        job.emitted_tokens = 5
        job.cached_tokens = cached
    return made


@pytest.mark.parametrize(
    ("vllm", "report", "cached", "details"),
    [
        (True, True, 2, {"cached_tokens": 4}),
        (False, True, 2, {"cached_tokens": 4}),
        (True, True, 0, {"cached_tokens": 0}),
        (False, True, 0, None),
        (True, False, 2, None),
    ],
)
def test_prompts_count_once_however_many_answers_they_have(
    vllm: bool, report: bool, cached: Any, details: Any
) -> None:
    usage = Facts("id", "m", 1, vllm, choices=2, cache_report=report).usage(jobs(cached))

    assert usage == {
        "prompt_tokens": 6,
        "completion_tokens": 20,
        "total_tokens": 26,
        "prompt_tokens_details": details,
    }
