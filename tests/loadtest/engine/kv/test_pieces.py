"""Spans of blocks, and the boundary that sliding windows allow."""

import pytest

from loadtest.engine.kv.pieces import Span, append, clip, join, length_of, window_end


def test_spans_are_clipped_joined_and_counted() -> None:
    assert clip([(0, 4), (6, 9)], 2, 7) == [(2, 4), (6, 7)]
    assert clip([(0, 4)], 4, 7) == []
    assert join([(0, 4), (8, 9)], [(3, 6), (9, 10)]) == [(0, 6), (8, 10)]
    assert length_of([(0, 6), (8, 10)]) == 8


def test_a_span_that_begins_where_the_last_one_ends_continues_it() -> None:
    spans: list[Span] = [(0, 2), (5, 7)]
    append(spans, [(7, 8), (9, 10)])

    assert spans == [(0, 2), (5, 8), (9, 10)]


@pytest.mark.parametrize(
    ("windows", "start", "reach", "boundary"),
    [
        ([(8, 10)], 0, 20, 10),
        ([(8, 10), (18, 20)], 0, 20, 20),
        ([(8, 10), (18, 20)], 0, 19, 10),
        ([(8, 10), (18, 20)], 9, 19, 9),
        ([(8, 10), (10, 11)], 0, 20, 11),
        ([(8, 12)], 0, 11, 11),
        ([(0, 1)], 0, 20, 1),
        ([(1, 2)], 1, 20, 1),
        ([], 3, 20, 3),
    ],
)
def test_a_boundary_needs_two_blocks_of_window_data_that_are_read(
    windows: list[Span], start: int, reach: int, boundary: int
) -> None:
    """Or fewer that begin at block 0: a sequence shorter than its window is complete."""
    assert window_end(windows, start, reach, 2) == boundary


def test_full_attention_needs_no_windows() -> None:
    assert window_end([], 3, 20, 0) == 20
