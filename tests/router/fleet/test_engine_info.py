"""Engines' descriptions of themselves as seen on the wire, and other possible ones."""

from typing import Any

import pytest

from router.fleet.engine_info import MODELS_MAX, ServedModel, cached_as, served_models, started_unix_ms


def test_models_are_read_with_their_length_and_base() -> None:
    answer = {
        "object": "list",
        "data": [
            {"id": "tiny", "owned_by": "vllm", "root": "/models/tiny", "max_model_len": 8192},
            {"id": "tiny-sql", "object": "model", "owned_by": "vllm", "parent": "tiny"},
        ],
    }
    assert served_models(answer) == (
        ServedModel("tiny", 8192, "vllm", "/models/tiny"),
        ServedModel("tiny-sql", 0, "vllm", "tiny", "tiny"),
    )


@pytest.mark.parametrize(
    "answer", [None, [], {}, {"data": None}, {"data": [None, 3, {}, {"id": ""}, {"id": 3}]}, "text", 3]
)
def test_unusable_model_lists_are_empty(answer: Any) -> None:
    assert served_models(answer) == ()


@pytest.mark.parametrize(
    ("line", "expected_ms"),
    [
        ("process_start_time_seconds 1.76370012325e+09", 1_763_700_123_250),
        ('process_start_time_seconds{pid="7"} 1763700123.25 1763700999000', 1_763_700_123_250),
        ("process_start_time_seconds\t1763700123", 1_763_700_123_000),
        ("process_start_time_seconds NaN", 0),
        ("process_start_time_seconds +Inf", 0),
        ("process_start_time_seconds 1e300", 0),
        ("process_start_time_seconds -5", 0),
        ("process_start_time_seconds soon", 0),
        ("process_start_time_seconds", 0),
        ("my_process_start_time_seconds 5", 0),
        ("process_start_time_seconds_total 5", 0),
        ("", 0),
    ],
)
def test_a_process_says_when_it_started(line: str, expected_ms: int) -> None:
    text = f"# TYPE process_start_time_seconds gauge\n{line}\nother 1\n"
    assert started_unix_ms(text) == expected_ms


def test_other_names_of_a_model_are_cached_as_the_first_and_adapters_as_themselves() -> None:
    """As vLLM lists them: names of the model itself have its path as root, adapters their base as parent."""
    models = served_models(
        {
            "data": [
                {"id": "/models/m", "root": "/models/m", "parent": None},
                {"id": "m", "root": "/models/m", "parent": None},
                {"id": "adapter", "root": "/adapters/a", "parent": "/models/m"},
                {"id": "second", "root": "/adapters/b", "parent": "/models/m"},
                {"id": "plain"},
            ]
        }
    )
    names = ["/models/m", "m", "adapter", "second", "plain", "unknown"]
    assert [cached_as(models, name) for name in names] == [
        *("/models/m", "/models/m", "adapter", "second", "plain"),
        None,
    ]


@pytest.mark.parametrize(
    "number", [2**53, 2**64, 10**400, True, -1, 1.5, "7"], ids=lambda number: str(number)[:20]
)
def test_numbers_beyond_their_bounds_are_not_said(number: object) -> None:
    assert served_models({"data": [{"id": "m", "max_model_len": number}]}) == (ServedModel("m"),)


def test_models_that_cannot_be_written_are_left_out_and_lists_end() -> None:
    ids = ["\ud800", "x" * 257, "a\nb", "", 7, None, "good"]
    answer = {"data": [{"id": each, "owned_by": "\udfff", "root": {}, "parent": "\n"} for each in ids]}
    assert served_models(answer) == (ServedModel("good"),)
    assert len(served_models({"data": [{"id": f"m{number}"} for number in range(50_000)]})) == MODELS_MAX
