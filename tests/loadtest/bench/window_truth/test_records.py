"""Recorded truth: the reuse of real engines, against the rules that this tree has now."""

from pathlib import Path

import pytest

from loadtest.bench.window_truth.judges import BLOCK_TOKENS, SWA_GROUPS
from loadtest.bench.window_truth.records import Record, read, replayed, write
from loadtest.bench.window_truth.table import Line, lines

RECORDS = sorted(Path(__file__).parent.glob("*.json"))
PRESSED = [path for path in RECORDS if read(path).kv_blocks < 1000]
ROOMY = [path for path in RECORDS if path not in PRESSED]


def table(path: Path) -> dict[str, Line]:
    return {line.name: line for line in lines(list(replayed(read(path))), BLOCK_TOKENS)}


def test_there_is_a_record_of_every_kind_of_model() -> None:
    assert {read(path).kind for path in ROOMY} == SWA_GROUPS.keys()
    assert PRESSED


@pytest.mark.parametrize("path", ROOMY, ids=lambda path: path.stem)
def test_history_foretells_what_a_real_engine_reused(path: Path) -> None:
    """To a block on average, and too much for no more than one request in a hundred.

    Where prompts come back to answers, a model with full attention only reuses more than requests show.
    """
    found = table(path)
    hybrid = SWA_GROUPS[read(path).kind] > 0

    assert found["all" if hybrid else "prompts alone"].errors["window-safe"].kept
    assert found["all"].errors["window-safe"].over_ratio == 0.0


@pytest.mark.parametrize("path", ROOMY, ids=lambda path: path.stem)
def test_a_plain_match_promises_too_much_exactly_where_there_are_windows(path: Path) -> None:
    over_ratio = table(path)["fork"].errors["match"].over_ratio

    assert over_ratio > 0.3 if SWA_GROUPS[read(path).kind] else over_ratio == 0.0


@pytest.mark.parametrize("path", ROOMY, ids=lambda path: path.stem)
def test_the_simulators_model_is_exact_while_nothing_is_evicted(path: Path) -> None:
    assert table(path)["all"].errors["simulator"].error_blocks == 0.0


@pytest.mark.parametrize("path", PRESSED, ids=lambda path: path.stem)
def test_the_simulators_model_evicts_nearly_what_a_pressed_engine_does(path: Path) -> None:
    """Half of the repeated blocks are gone; steps of the engine, not recorded, decide which goes first."""
    errors = table(path)["all"].errors["simulator"]

    assert errors.error_blocks < 0.2
    assert errors.over_ratio < 0.02


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = Record("gemma3", 5, 400, 256, [0, 32])
    write(tmp_path / "new", record)

    assert read(tmp_path / "new" / "gemma3-400.json") == record
