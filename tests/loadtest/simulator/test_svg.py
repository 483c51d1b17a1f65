"""Charts inside a page: they need nothing, clash with nothing and follow the page's colours."""

import re
from xml.etree import ElementTree

from fakes.simulated import runs

from loadtest.simulator.charts import draw_all
from loadtest.simulator.svg import colour_rules, inline_svg
from loadtest.simulator.theme import DARK, VARIABLES

DRAWN = [inline_svg(chart) for chart in draw_all(runs())]


def test_every_colour_is_a_variable_of_the_page() -> None:
    for svg in DRAWN:
        assert not re.findall(r"#[0-9a-fA-F]{6}\b", svg)
        assert set(re.findall(r"var\((--chart-\d+)\)", svg)) <= set(VARIABLES.values())


def test_both_modes_define_every_variable() -> None:
    light, dark = colour_rules().split("@media (prefers-color-scheme: dark)")
    for colour, variable in VARIABLES.items():
        assert f"{variable}:{colour};" in light
        assert f"{variable}:{DARK[colour]};" in dark


def test_two_charts_of_a_page_share_no_name() -> None:
    names = [name for svg in DRAWN for name in re.findall(r'\bid="([^"]*)"', svg)]

    assert names
    assert len(names) == len(set(names))


def test_every_reference_stays_inside_the_chart() -> None:
    for svg in DRAWN:
        names = set(re.findall(r'\bid="([^"]*)"', svg))
        for target in re.findall(r'href="([^"]*)"', svg):
            assert target.startswith("data:image/png;base64,") or target[1:] in names
        assert set(re.findall(r"url\(#([^)]*)\)", svg)) <= names


def test_a_chart_is_well_formed_and_takes_the_width_it_is_given() -> None:
    for svg in DRAWN:
        root = ElementTree.fromstring(svg)
        assert root.get("viewBox")
        assert root.get("width") is None
        assert root.get("height") is None
        assert root.get("aria-label")


def test_the_same_runs_give_the_same_bytes() -> None:
    assert [inline_svg(chart) for chart in draw_all(runs())] == DRAWN


def test_text_stays_text() -> None:
    assert "round_robin</text>" in DRAWN[0]
