"""Progress of a demo: bars on a terminal, an occasional line elsewhere.

The display reads the tally of the running policy at a fixed pace; the load never waits for it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from loadtest.report import Tally, milliseconds, percent, percentile

REFRESH_S = 0.25
LINE_S = 5.0


@asynccontextmanager
async def shown(
    console: Console, policy: str, request_count: int, tally: Tally, time_scale: float = 1.0
) -> AsyncIterator[None]:
    """Show the progress of one policy while the body runs and fills the tally.

    On a terminal bars, else a line every 5 s; ``time_scale`` as in `loadtest.report.summarize`.
    """
    show = _bars if console.is_terminal else _lines
    task = asyncio.create_task(show(console, policy, request_count, tally, time_scale), name="progress")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _bars(console: Console, policy: str, request_count: int, tally: Tally, time_scale: float) -> None:
    columns = (
        TextColumn("{task.description:<14}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        bar = progress.add_task(policy, total=request_count, figures="")
        try:
            while True:
                await asyncio.sleep(REFRESH_S)
                progress.update(
                    bar, completed=_done(tally), figures=_figures(tally, time_scale), refresh=True
                )
        finally:
            progress.update(bar, completed=_done(tally), figures=_figures(tally, time_scale), refresh=True)


async def _lines(console: Console, policy: str, request_count: int, tally: Tally, time_scale: float) -> None:
    while True:
        await asyncio.sleep(LINE_S)
        console.print(f"{policy}: {_done(tally)}/{request_count} requests, {_figures(tally, time_scale)}")


def _done(tally: Tally) -> int:
    return tally.completed + tally.failed


def _figures(tally: Tally, time_scale: float) -> str:
    median_s = percentile(sorted(tally.ttft_s), 0.5)
    ttft = milliseconds(None if median_s is None else median_s * time_scale)
    failed = f", {tally.failed} failed" if tally.failed else ""
    return f"hit rate {percent(tally.hit_ratio)}, TTFT P50 {ttft}{failed}"
