"""Azure's traces of arrivals and lengths as workloads."""

from pathlib import Path

import pytest

from loadtest.simulator.azure import read_azure
from loadtest.traces import TraceError

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROWS = """2023-11-16 18:17:03.9799600,300,70
2023-11-16 18:17:04.4799600,100,0

2023-11-16 18:18:03.9799600,400,1
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "azure.csv"
    path.write_text(text)
    return path


def test_arrivals_count_from_the_first_row_and_prompts_share_nothing(tmp_path: Path) -> None:
    workload = read_azure(written(tmp_path, HEADER + ROWS))

    requests = [session.requests[0] for session in workload.sessions]
    assert [session.start_s for session in workload.sessions] == pytest.approx([0.0, 0.5, 60.0])
    assert [(one.tokens, one.output_tokens) for one in requests] == [(300, 70), (100, 1), (400, 1)]
    assert len({one.blocks[:8] for one in requests}) == 3
    workload.check()


def test_a_shared_start_is_in_every_prompt_as_far_as_it_reaches(tmp_path: Path) -> None:
    """Three blocks of 200 shared tokens are full; a prompt of 100 tokens has one block."""
    workload = read_azure(written(tmp_path, HEADER + ROWS), shared_tokens=200)

    long, short, other = (session.requests[0].blocks for session in workload.sessions)
    assert long[:24] == other[:24]
    assert long[24:32] != other[24:32]
    assert short == long[:8]
    workload.check()


def test_a_window_is_cut_out(tmp_path: Path) -> None:
    (session,) = read_azure(written(tmp_path, HEADER + ROWS), start_s=0.25, end_s=60.0).sessions

    assert session.start_s == pytest.approx(0.25)
    assert session.requests[0].tokens == 100


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a,b,c\n", "line 1: expected the header"),
        (HEADER + "2023-11-16 18:17:03,300\n", "line 2.*expected a timestamp"),
        (HEADER + "yesterday,300,1\n", "line 2.*yesterday"),
        (HEADER + "2023-11-16 18:17:03,0,1\n", "line 2: 0 prompt"),
    ],
)
def test_what_is_wrong_is_said_with_the_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(TraceError, match=problem):
        read_azure(written(tmp_path, text))
