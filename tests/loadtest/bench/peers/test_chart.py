"""The chart is an image of the intended size for any measurements."""

import struct
from dataclasses import replace
from pathlib import Path

from fakes.measured import ONE, RUN, measured

from loadtest.bench.peers.chart import DPI, WIDTH_IN, draw
from loadtest.bench.peers.results import Results


def size(path: Path) -> tuple[int, int]:
    """Width and height in the header of a PNG file (RFC 2083, 11.2)."""
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", content[16:24])
    return width, height


def test_more_workloads_make_a_higher_image_of_the_same_width(tmp_path: Path) -> None:
    one, all_of_them = tmp_path / "one.png", tmp_path / "all.png"
    draw(Results(RUN, [ONE]), one)
    draw(measured(), all_of_them)

    assert size(one)[0] == size(all_of_them)[0] == WIDTH_IN * DPI
    assert size(one)[1] < size(all_of_them)[1]


def test_the_least_of_the_rounds_is_seen(tmp_path: Path) -> None:
    """Median and most are the same in both."""
    drawn = []
    for least in (10.0, 49.0):
        values = enumerate((least, 50.0, 90.0))
        rounds = (replace(ONE, round_number=number, cpu_us_per_request=value) for number, value in values)
        draw(Results(RUN, rounds), tmp_path / "chart.png")
        drawn.append((tmp_path / "chart.png").read_bytes())

    assert drawn[0] != drawn[1]


def test_a_run_without_any_figure_still_gives_an_image(tmp_path: Path) -> None:
    path = tmp_path / "none.png"
    draw(Results(RUN, [replace(ONE, failed=1)]), path)

    assert size(path)[0] == WIDTH_IN * DPI
