"""Tables of the measurements."""

from fakes.ablated import run

from loadtest.bench.ablation.report import fill, line, markdown, rows

RUNS = [
    run(cached_tokens=400, round_number=0),
    run(cached_tokens=600, round_number=1),
    run(arm="round-robin"),
]


def test_a_row_has_means_over_the_rounds_in_the_order_of_the_arms() -> None:
    first, second, ideal = rows(RUNS)

    assert [first[0], second[0], ideal[0]] == ["round robin", "history", "one infinite cache"]
    assert second[1] == "50.0 %"
    assert ideal[1:] == ["80.0 %", *[""] * 7]


def test_a_document_gets_the_table_of_each_kind_and_keeps_its_words() -> None:
    document = (
        "Words.\n<!-- ablation: qwen3 -->\nold\n<!-- end -->\nMore.\n<!-- study: x -->\n1\n<!-- end -->\n"
    )
    filled = fill(document, RUNS)

    assert filled == fill(filled, RUNS)
    assert "old" not in filled
    assert filled.startswith("Words.\n<!-- ablation: qwen3 -->\n\n10 requests a run on average; rounds: 2.")
    assert filled.endswith("<!-- end -->\nMore.\n<!-- study: x -->\n1\n<!-- end -->\n")


def test_what_was_not_measured_is_said() -> None:
    assert markdown("gemma3", RUNS) == "Not measured.\n"


def test_a_run_is_told_in_a_line() -> None:
    assert "reused 50.0 % (ideal 80.0 %), TTFT mean 100 ms" in line(run())
