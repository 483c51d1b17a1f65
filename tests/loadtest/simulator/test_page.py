"""The report: one file that needs nothing else."""

import re
from html.parser import HTMLParser

import pytest
from fakes.simulated import runs

from loadtest.simulator.figures import FIGURES
from loadtest.simulator.page import report_page

VOID = {"meta", "br", "path", "use", "rect", "image", "line"}


class Reader(HTMLParser):
    """Checks that every opened tag is closed, and collects text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def page() -> str:
    return report_page(
        runs(["expected_cost", "a<b"]),
        title="Policies & caches",
        facts={"engine": "8 × <mimo>"},
        notes=["Modelled, not measured."],
        command="cacheway simulate --policy 'a<b'",
    )


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    return reader


def test_the_page_is_whole_and_has_every_chart_and_figure(page: str) -> None:
    reader = read(page)

    assert reader.open == []
    assert reader.tags.count("svg") == reader.tags.count("figcaption") == 7
    text = "".join(reader.text)
    for figure in FIGURES:
        assert figure.name in text


def test_the_page_loads_nothing_and_runs_nothing(page: str) -> None:
    """Namespaces are names, not addresses."""
    addresses = set(re.findall(r'https?://[^"\s<)]+', page))

    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert not {"script", "link", "iframe", "img"} & set(read(page).tags)
    assert "url(http" not in page
    assert "@import" not in page


def test_what_users_named_is_text_and_never_markup(page: str) -> None:
    text = "".join(read(page).text)

    assert "cacheway simulate --policy 'a<b'" in text
    assert "8 × <mimo>" in text
    assert "<mimo>" not in page
    assert "a<b" not in page


def test_the_best_of_a_row_stands_out(page: str) -> None:
    row = next(line for line in page.splitlines() if "TTFT, P90" in line)

    assert row.count("class=best") == 1
    assert row.index("class=best") < row.rindex("<td>")
