"""Charts inside a page: they need nothing, clash with nothing and follow the page's colours."""

import re
from xml.etree import ElementTree

import pytest
from fakes.simulated import runs

from loadtest.simulator.charts import draw_all
from loadtest.simulator.svg import colour_rules, inline_svg
from loadtest.simulator.theme import DARK, VARIABLES


@pytest.fixture(scope="module")
def drawn() -> list[str]:
    return [inline_svg(chart) for chart in draw_all(runs())]


def test_every_colour_is_a_variable_of_the_page(drawn: list[str]) -> None:
    for svg in drawn:
        assert not re.findall(r"#[0-9a-fA-F]{6}\b", svg)
        assert set(re.findall(r"var\((--chart-\d+)\)", svg)) <= set(VARIABLES.values())


def test_both_modes_define_every_variable() -> None:
    light, dark = colour_rules().split("@media (prefers-color-scheme: dark)")
    for colour, variable in VARIABLES.items():
        assert f"{variable}:{colour};" in light
        assert f"{variable}:{DARK[colour]};" in dark


def test_two_charts_of_a_page_share_no_name(drawn: list[str]) -> None:
    names = [name for svg in drawn for name in re.findall(r'\bid="([^"]*)"', svg)]

    assert names
    assert len(names) == len(set(names))


def test_every_reference_stays_inside_the_chart(drawn: list[str]) -> None:
    for svg in drawn:
        names = set(re.findall(r'\bid="([^"]*)"', svg))
        for target in re.findall(r'href="([^"]*)"', svg):
            assert target.startswith("data:image/png;base64,") or target[1:] in names
        assert set(re.findall(r"url\(#([^)]*)\)", svg)) <= names


def test_a_chart_is_well_formed_and_takes_the_width_it_is_given(drawn: list[str]) -> None:
    for svg in drawn:
        root = ElementTree.fromstring(svg)
        assert root.get("viewBox")
        assert root.get("width") is None
        assert root.get("height") is None
        assert root.get("aria-label")


def test_the_same_runs_give_the_same_bytes(drawn: list[str]) -> None:
    assert [inline_svg(chart) for chart in draw_all(runs())] == drawn


def test_text_stays_text(drawn: list[str]) -> None:
    assert "round_robin</text>" in drawn[0]
