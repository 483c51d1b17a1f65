"""The chart is an image of the size that was meant, whatever was measured."""

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


def test_a_spread_is_seen(tmp_path: Path) -> None:
    """Rounds of 40, 50 and 90 have the median of three rounds of 50, and a whisker."""
    steady, noisy = tmp_path / "steady.png", tmp_path / "noisy.png"
    draw(Results(RUN, [ONE]), steady)
    rounds = (
        replace(ONE, round_number=number, cpu_us_per_request=value)
        for number, value in enumerate((40.0, 50.0, 90.0))
    )
    draw(Results(RUN, rounds), noisy)

    assert steady.read_bytes() != noisy.read_bytes()


def test_a_run_without_any_figure_still_gives_an_image(tmp_path: Path) -> None:
    path = tmp_path / "none.png"
    draw(Results(RUN, [replace(ONE, failed=1)]), path)

    assert size(path)[0] == WIDTH_IN * DPI
