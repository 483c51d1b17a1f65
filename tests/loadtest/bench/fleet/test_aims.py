"""Judgements on known measurements."""

from pathlib import Path

import msgspec

from loadtest.bench.fleet.aims import CellRuns, judge, mean_s
from loadtest.bench.fleet.cells import CELLS, Part, Router
from loadtest.bench.fleet.chart import FRONT, draw, draw_front
from loadtest.bench.fleet.interval import Answer
from loadtest.bench.fleet.page import markdown
from loadtest.bench.fleet.results import Outcome, append, of_revision, read
from loadtest.bench.peers.machine import Machine

CELL = CELLS[0]


def outcome(router: Router, repetition: int, mean_ttft_s: float, late_s: float = 0.0) -> Outcome:
    """A run in the first cell, whose P90 is twice its mean."""
    return Outcome(
        cell=CELL.key,
        router=router,
        repetition=repetition,
        revision="r",
        date="2026-01-01",
        seconds=250.0,
        speed=30.0,
        requests=100,
        failed=0,
        hit_ratio=0.9,
        ideal_hit_ratio=0.91,
        ttft_mean_s=mean_ttft_s,
        ttft_p50_s=mean_ttft_s,
        ttft_p90_s=2 * mean_ttft_s,
        ttft_p99_s=3 * mean_ttft_s,
        imbalance=1.1,
        late_s=late_s,
        busy_ratio=0.5,
        wall_s=9.0,
        router_cpu_s=1.0,
        load_cpu_s=0.5,
        worker_cpu_s=0.5,
    )


def field() -> list[Outcome]:
    """Cacheway at half of smg's time, and sglang-router at twice of it, in five repetitions."""
    factors = {Router.CACHEWAY: 0.5, Router.NO_QUEUE: 0.5, Router.SMG: 1.0, Router.SGLANG: 2.0}
    return [
        outcome(router, repetition, factor * (2.0 + repetition))
        for repetition in range(5)
        for router, factor in factors.items()
    ]


def test_ratios_are_formed_within_a_repetition() -> None:
    """Times differ by three between repetitions; the ratio to the best peer is one half in all of them."""
    runs = CellRuns(CELL, field())

    assert runs.best_peer(mean_s) is Router.SMG
    seen = runs.ratio(mean_s, Router.SMG)
    assert seen is not None
    assert (seen.mean, seen.low, seen.high, seen.count) == (0.5, 0.5, 0.5, 5)
    assert {verdict.answer for verdict in judge(runs)} == {Answer.YES}
    assert CELL.part is Part.AGENTS


def test_a_run_that_the_bench_delayed_is_left_out() -> None:
    """A delay of a tenth of the mean TTFT is over the 5 % that are allowed."""
    runs = CellRuns(CELL, [outcome(Router.CACHEWAY, 0, 2.0, late_s=0.2)])

    assert len(runs.all) == 1
    assert runs.of(Router.CACHEWAY) == []


def test_a_run_whose_line_was_cut_off_is_made_again(tmp_path: Path) -> None:
    """A line added afterwards is read, too."""
    path = tmp_path / "fleet.jsonl"
    for one in field()[:2]:
        append(path, one)
    path.write_bytes(path.read_bytes()[:-9])

    assert read(path) == field()[:1]
    append(path, field()[1])
    assert read(path) == field()[:2]


def test_results_come_back_and_make_a_page_and_a_chart(tmp_path: Path) -> None:
    """The page has the aims of the cell and a row for each router."""
    path = tmp_path / "fleet.jsonl"
    for one in field():
        append(path, one)

    outcomes = of_revision(read(path), "r")
    assert outcomes == field()
    assert of_revision(outcomes, "other") == []
    page = markdown(outcomes, Machine("a CPU", 2, "Linux 6.1", "CPython 3.12"), "fleet")
    assert f"| {CELL.key} | mean TTFT, ratio | smg | 0.85 | 0.500 (0.500–0.500) | yes |" in page
    assert f"| {CELL.key} | **cacheway** | 2.00 (" in page
    draw(outcomes, tmp_path / "fleet.png")
    assert (tmp_path / "fleet.png").stat().st_size > 10_000


def test_the_front_picture_needs_both_cells_and_all_its_routers(tmp_path: Path) -> None:
    picture = tmp_path / "front.png"
    outcomes = [
        msgspec.structs.replace(one, cell=cell, router=router)
        for cell in FRONT.values()
        for router in (Router.CACHEWAY, Router.SMG, Router.SGLANG)
        for one in field()[:1]
    ]
    draw_front(outcomes[1:], picture)
    assert not picture.exists()
    draw_front(outcomes, picture)
    assert picture.stat().st_size > 10_000
