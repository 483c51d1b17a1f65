"""The table's figures."""

import pytest

from loadtest.bench.window_truth.asking import Truth
from loadtest.bench.window_truth.judges import Predicted
from loadtest.bench.window_truth.script import Asked, Kind
from loadtest.bench.window_truth.table import Errors, lines, markdown


def truth(kind: Kind, matched: int, reusable: int, simulated: int, cached: int) -> Truth:
    asked = Asked(kind, (1,), 1)
    return Truth(asked, Predicted(matched, reusable), Predicted(matched, simulated), cached)


FOUND = [
    truth("fork", 128, 0, 0, 0),
    truth("fork", 128, 64, 32, 64),
    truth("continue", 256, 256, 256, 320),
]


def test_errors_are_blocks_and_over_is_a_share_of_the_requests() -> None:
    fork, continued, prompts, answers, everything = lines(FOUND, 32)

    assert (fork.name, fork.requests, fork.reused_blocks) == ("fork", 2, 1.0)
    assert fork.errors["window-safe"] == Errors(0.0, 0.0)
    assert fork.errors["match"] == Errors(3.0, 1.0)
    assert fork.errors["simulator"] == Errors(0.5, 0.0)
    assert continued.errors["window-safe"] == Errors(2.0, 0.0)
    assert (prompts.name, prompts.errors) == ("prompts alone", fork.errors)
    assert (answers.name, answers.errors) == ("with answers", continued.errors)
    assert (everything.name, everything.requests) == ("all", 3)
    assert everything.errors["window-safe"].error_blocks == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("errors", "kept"),
    [
        (Errors(1.0, 0.01), True),
        (Errors(1.01, 0.0), False),
        (Errors(0.0, 0.011), False),
    ],
)
def test_a_promise_is_a_block_on_average_and_one_request_in_a_hundred(errors: Errors, kept: bool) -> None:
    assert errors.kept is kept


def test_the_table_is_markdown_with_a_line_for_what_there_is() -> None:
    text = markdown(lines(FOUND, 32)).splitlines()

    assert len({line.count("|") for line in text}) == 1
    assert text[2] == "| fork | 2 | 1.00 | 0.000 | 0.0% | 3.000 | 100.0% | 0.500 | 0.0% |"
    assert not any("refork" in line for line in text)
