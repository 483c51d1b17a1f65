"""A colour stands for one thing, in both modes."""

import colorsys

from loadtest.simulator.theme import DARK, PAPER, SERIES, VARIABLES, series


def lightness(colour: str) -> float:
    return colorsys.rgb_to_hls(*(int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)))[1]


def test_no_colour_stands_for_two_things() -> None:
    """Two equal ones in one mode could not differ in the other."""
    assert len(VARIABLES) == len(DARK) == len(set(VARIABLES.values()))


def test_lines_are_darker_than_a_light_page_and_lighter_than_a_dark_one() -> None:
    for colour in SERIES:
        assert lightness(colour) < lightness(PAPER) - 0.3
        assert lightness(DARK[colour]) > lightness(DARK[PAPER]) + 0.3


def test_twelve_policies_have_twelve_looks() -> None:
    """The registry has as many."""
    assert len({str(series(number)) for number in range(12)}) == 12
