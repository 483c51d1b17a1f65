"""The page of the queue agrees with its rows: by hand, whole numbers."""

from dataclasses import replace
from pathlib import Path

import pytest
from fakes.study import CODE

from loadtest.study.queue_page import Figures, QueueCell, QueueRow, aims, draw, tables, write
from loadtest.study.shipped import K

PNG = b"\x89PNG"

FCFS = QueueCell("agentic", 1.1, 0.0)
OURS = replace(FCFS, k=K)
PLAIN = Figures(
    requests=100,
    completed_share=0.975,
    goodput_per_s=2.0,
    kept_share=0.5,
    long_ttft_s=(10.0, 20.0, 30.0),
    short_ttft_s=(1.0, 4.0, 8.0),
    wait_s_max=250.0,
    overdue_share=0.125,
    hit_ratio=0.9,
    inversions=7,
    inversion_s_max=0.125,
    digest="d",
)


def row(cell: QueueCell, figures: Figures = PLAIN) -> QueueRow:
    return QueueRow(CODE, cell, figures)


@pytest.mark.parametrize(
    ("cell", "order"),
    [
        (replace(FCFS, k=None), "no queue"),
        (FCFS, "first come, first served"),
        (OURS, "k = 4"),
        (replace(OURS, early=True, replicas=4, seed=2), "k = 4, early rejection, 4 replicas, seed 2"),
    ],
)
def test_an_order_says_only_what_is_special(cell: QueueCell, order: str) -> None:
    assert cell.order == order
    assert cell.title == f"agentic at 110 %, {order}"


def test_a_line_has_every_figure_in_its_column() -> None:
    lines = tables([row(FCFS)]).splitlines()

    assert lines[0] == "### agentic"
    assert [name.strip() for name in lines[2].strip("|").split("|")][:5] == [
        "load",
        "order",
        "long: P50, s",
        "P90",
        "P99",
    ]
    assert lines[4] == (
        "| 110 % | first come, first served | 10.0 | 20.0 | 30.0 | 1.00 | 4.00 | 8.00 | 250 | 12.5 % | 97.5 %"
        " | 2.00 | 90.0 % | 7 | 0.125 |"
    )


def test_each_kind_of_traffic_has_a_table_by_load_with_other_seeds_behind() -> None:
    other = replace(FCFS, traffic="azure-code")
    cells = [replace(FCFS, seed=2), FCFS, replace(FCFS, load=0.9), other]

    lines = tables([row(cell) for cell in cells]).splitlines()

    shown = [line for line in lines if line.startswith(("### ", "| 90 %", "| 110 %"))]
    assert [line.split(" | ")[:2] for line in shown] == [
        ["### agentic"],
        ["| 90 %", "first come, first served"],
        ["| 110 %", "first come, first served"],
        ["| 110 %", "first come, first served, seed 2"],
        ["### azure-code"],
        ["| 110 %", "first come, first served"],
    ]


def test_the_gain_is_a_change_against_first_come_first_served_at_the_same_load_and_seed() -> None:
    """Long prompts from 20 to 15 s are 25 % less, short ones from 4 to 5 s are 25 % more."""
    ours = replace(PLAIN, long_ttft_s=(1.0, 15.0, 90.0), short_ttft_s=(1.0, 5.0, 9.0), goodput_per_s=2.5)
    elsewhere = [row(replace(FCFS, load=0.9)), row(replace(FCFS, seed=2))]
    elsewhere += [row(replace(cell, replicas=4)) for cell in (FCFS, OURS)]

    lines = aims([row(FCFS), row(OURS, ours), *elsewhere]).splitlines()

    assert lines[2:] == [
        (
            "| agentic, 110 % | 20.0 to 15.0 s, -25 % | 4.00 to 5.00 s, +25 % | 250, 250 "
            "| 12.5 %, 12.5 % | 2.00, 2.50 | - | - |"
        )
    ]


def test_a_gain_is_not_told_without_anything_to_compare_with() -> None:
    assert "agentic" not in aims([row(OURS), row(replace(FCFS, load=0.9))])


def test_nothing_to_wait_for_is_no_change() -> None:
    none = replace(PLAIN, short_ttft_s=(0.0, 0.0, 0.0))

    assert "| 20.0 to 20.0 s, +0 % | - |" in aims([row(FCFS, none), row(OURS, none)])


def test_early_rejection_is_told_with_its_share_of_full_load() -> None:
    early = replace(OURS, early=True)
    kept = replace(PLAIN, goodput_per_s=1.5)

    text = aims([row(FCFS), row(OURS), row(early, kept), row(replace(early, load=1.0))])

    assert text.splitlines()[2].endswith("| 2.00, 2.00 | 1.50 | 75 % |")


def test_seeds_are_compared_in_pairs_with_an_interval() -> None:
    """A quarter less at each of two seeds: nothing is left to chance."""
    rows = []
    for seed, times in ((1, 1.0), (2, 3.0)):
        before = replace(PLAIN, long_ttft_s=(1.0, 20.0 * times, 90.0))
        after = replace(PLAIN, long_ttft_s=(1.0, 15.0 * times, 90.0))
        rows += [row(replace(FCFS, seed=seed), before), row(replace(OURS, seed=seed), after)]

    assert "| agentic, 110 % | 40.0 to 30.0 s, -25 % (-25 to -25 %) |" in aims(rows)


def test_a_chart_leaves_out_what_is_not_of_one_replica_and_the_first_seed(tmp_path: Path) -> None:
    rows = [row(replace(cell, load=load)) for cell in (FCFS, OURS) for load in (0.9, 1.1)]
    special = [row(replace(OURS, seed=2)), row(replace(OURS, replicas=4))]

    draw(rows, tmp_path / "plain.png")
    draw([*rows, *special], tmp_path / "all.png")
    draw([*rows, row(replace(OURS, load=1.2))], tmp_path / "more.png")

    plain, every, more = ((tmp_path / f"{name}.png").read_bytes() for name in ("plain", "all", "more"))
    assert plain.startswith(PNG)
    assert every == plain
    assert more != plain


def test_the_page_is_filled_in_and_its_chart_drawn_beside_it(tmp_path: Path) -> None:
    page = tmp_path / "queue.md"
    page.write_text("Words.\n<!-- study: aims -->\nold\n<!-- end -->\n<!-- study: tables -->\n<!-- end -->\n")

    write(tmp_path, [row(FCFS), row(OURS)])

    text = page.read_text()
    assert text.startswith("Words.\n")
    assert "old" not in text
    assert aims([row(FCFS), row(OURS)]) in text
    assert tables([row(FCFS), row(OURS)]) in text
    assert (tmp_path / "queue.png").read_bytes().startswith(PNG)


def test_without_results_there_is_no_chart(tmp_path: Path) -> None:
    (tmp_path / "queue.md").write_text("<!-- study: tables -->\n<!-- end -->\n")

    write(tmp_path, [])

    assert not (tmp_path / "queue.png").exists()


def test_a_page_that_names_an_unknown_part_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "queue.md").write_text("<!-- study: nothing -->\n<!-- end -->\n")

    with pytest.raises(KeyError, match="nothing"):
        write(tmp_path, [])
