"""Live progress on a terminal and elsewhere."""

import asyncio
import io

import pytest
from rich.console import Console

from loadtest import progress
from loadtest.progress import shown
from loadtest.report import Tally


async def wait_for(text: str, file: io.StringIO) -> None:
    async with asyncio.timeout(60):
        while text not in file.getvalue():  # noqa: ASYNC110 - a console has no signal
            await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "REFRESH_S", 0.01)
    monkeypatch.setattr(progress, "LINE_S", 0.01)


@pytest.mark.parametrize("terminal", [True, False])
async def test_the_figures_so_far_are_shown_while_the_run_goes_on(terminal: bool) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, color_system=None, width=120)
    tally = Tally(completed=3, failed=1, prompt_tokens=200, cached_tokens=50, ttft_s=[0.3, 0.1, 0.2])

    async with shown(console, "round_robin", 40, tally, time_scale=2.0):
        await wait_for("4/40", file)

    for text in ("round_robin", "hit rate 25.0 %", "TTFT P50 400 ms", "1 failed"):
        assert text in file.getvalue()


async def test_nothing_goes_on_behind_the_block() -> None:
    file = io.StringIO()
    tally = Tally()

    async with shown(Console(file=file, force_terminal=False), "random", 1, tally):
        await wait_for("random", file)

    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name() == "progress"] == []
