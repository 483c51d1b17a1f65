"""Progress on a terminal and in a log file."""

import io

from rich.console import Console

from loadtest.simulator.bars import LINE_S, Bars


def test_a_terminal_shows_a_bar_for_each_simulation_and_takes_them_away() -> None:
    screen = io.StringIO()
    with Bars(Console(file=screen, force_terminal=True, width=80), ["one", "two"]) as bars:
        bars.told(0, 50, 200)
        bars.told(1, 200, 200)
        assert "50/200" in screen.getvalue()
        assert "200/200" in screen.getvalue()
    assert "\x1b[2K" * 2 in screen.getvalue()[-40:].replace("\x1b[1A", "")


def test_a_file_gets_an_occasional_line_about_what_is_not_done() -> None:
    now_s = [0.0]
    file = io.StringIO()
    with Bars(Console(file=file, width=80), ["one", "two"], clock=lambda: now_s[0]) as bars:
        bars.told(0, 200, 200)
        bars.told(1, 50, 200)
        assert file.getvalue() == ""
        now_s[0] = LINE_S
        bars.told(1, 60, 200)
        bars.told(1, 61, 200)
    assert file.getvalue() == "two 30 %\n"
