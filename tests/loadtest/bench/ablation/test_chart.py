"""The chart has a row of panels for each kind of model."""

import struct
from pathlib import Path

from fakes.ablated import run

from loadtest.bench.ablation.chart import DPI, WIDTH_IN, draw


def size(path: Path) -> tuple[int, int]:
    """Width and height in the header of a PNG file (RFC 2083, 11.2)."""
    width, height = struct.unpack(">II", path.read_bytes()[16:24])
    return width, height


def test_another_kind_of_model_makes_it_higher_and_not_wider(tmp_path: Path) -> None:
    one, two = tmp_path / "one.png", tmp_path / "two.png"
    draw([run(), run(arm="events")], one)
    draw([run(), run(model="gemma3")], two)

    assert size(one)[0] == size(two)[0] == WIDTH_IN * DPI
    assert size(one)[1] < size(two)[1]
