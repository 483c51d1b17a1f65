"""Contents of the Markdown report."""

from dataclasses import replace

import pytest
from fakes.measured import ONE, RUN, measured

from loadtest.bench.peers.field import PEERS, WORKLOADS
from loadtest.bench.peers.report import markdown, number
from loadtest.bench.peers.results import Results


def section(text: str, head: str) -> list[str]:
    """The lines below a head."""
    return text.partition(f"\n## {head}")[2].partition("\n## ")[0].splitlines()


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.123, "0.12"), (9.876, "9.88"), (12.34, "12.3"), (123.4, "123"), (12345.6, "12,346")],
)
def test_a_number_has_three_digits_or_all_before_the_point(value: float, text: str) -> None:
    assert number(value) == text


def test_the_cheapest_comes_first_with_its_ratio_to_cacheway() -> None:
    rows = section(markdown(measured(cacheway=100, nginx=20, smg_ca=250)), "W1:")
    rows = [row for row in rows if row.startswith("|")][2:]

    assert len(rows) == len(PEERS)
    assert rows[0].startswith("| nginx | 20.0 | 0.20 |")
    assert rows[-2].startswith("| **cacheway** | 100 | 1.00 |")
    assert rows[-1].startswith("| smg, cache-aware | 250 | 2.50 |")


def test_a_spread_shows_unless_there_is_none() -> None:
    again = replace(ONE, round_number=1, cpu_us_per_request=70.0)
    nginx = replace(ONE, peer="nginx")

    rows = section(markdown(Results(RUN, [ONE, again, nginx])), "W1:")

    assert any(row.startswith("| **cacheway** | 60.0 (50.0–70.0) |") for row in rows)
    assert any(row.startswith("| nginx | 50.0 |") for row in rows)


def test_failures_are_in_the_last_column_and_a_dash_in_place_of_figures() -> None:
    text = markdown(Results(RUN, [ONE, replace(ONE, peer="nginx", failed=7)]))

    assert "| nginx | - | - | - | - | - | - | 7 |" in text


def test_a_promise_says_limit_seen_ratio_and_whether_it_was_kept() -> None:
    text = markdown(measured(cacheway=49.0, sglang_ca=100, smg_ca=120, vllm_ca=130, sglang_rr=40))
    rows = section(text, "What was promised")

    kept = "at most the cheapest cache-aware | 100 µs | 49.0 µs | 0.49 × sglang-router, cache-aware | yes"
    broken = "at most 0.4 × the cheapest cache-aware | 20.0 µs | 50.0 µs | 1.00 × sglang-router, cache-aware"
    assert f"| W1 | {kept} |" in rows
    assert f"| W3 | {broken} | **no** |" in rows
    assert "| W6 | P99 below 3.00 ms | 3.00 ms | 4.00 ms | - | **no** |" in rows


def test_all_workloads_have_a_section_if_they_were_measured() -> None:
    heads = [f"## {workload.key}: {workload.title}" for workload in WORKLOADS]

    everything = markdown(measured())
    only_w1 = markdown(Results(RUN, [ONE]))

    assert [head for head in heads if head in everything] == heads
    assert [head for head in heads if head in only_w1] == heads[:1]


def test_every_table_has_as_many_cells_in_a_row_as_in_its_head() -> None:
    tables = markdown(measured()).split("\n\n")

    for table in (part.splitlines() for part in tables if part.startswith("|")):
        assert {row.count("|") for row in table} == {table[0].count("|")}


def test_the_run_and_its_machine_are_told() -> None:
    text = markdown(measured())

    for fact in (
        "2026-01-02",
        "Some CPU, 2 CPUs, Linux 6.1",
        "CPython 3.11.7",
        "cacheway 0.1.0, nginx 1.22.1",
    ):
        assert fact in text
