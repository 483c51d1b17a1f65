"""Fingerprints change with the behaviour of the code, and with nothing else."""

from pathlib import Path

import pytest

from loadtest.unchanged.revision import Revision, confirm, confirmed, present, same_decisions, syntax_of

SOURCE = '''"""Module."""
LIMIT = 3
"""Of requests."""


def place(load: int) -> bool:
    """Docstring."""
    return load < LIMIT  # a comment
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Module.", "Another."),
        ("Of requests.", "Of others."),
        ("Docstring.", "Words."),
        ("  # a comment", ""),
    ],
)
def test_words_change_no_fingerprint(old: str, new: str) -> None:
    assert syntax_of(SOURCE.replace(old, new)) == syntax_of(SOURCE)


@pytest.mark.parametrize(("old", "new"), [("<", "<="), ("= 3", "= 4"), ("load: int", "load: float")])
def test_code_changes_a_fingerprint(old: str, new: str) -> None:
    assert syntax_of(SOURCE.replace(old, new)) != syntax_of(SOURCE)


def test_syntax_is_written_in_one_way_under_all_versions() -> None:
    """Python 3.12 gave functions type parameters, which are left out where there are none."""
    assert syntax_of("def f():\n    'words'\n    return None") == (
        "Module(body=[FunctionDef(name='f',args=arguments(),body=[Return(value=Constant())])])"
    )


def test_decisions_and_model_have_fingerprints_of_their_own(tmp_path: Path) -> None:
    deciding, simulating = tmp_path / "policies" / "place.py", tmp_path / "loadtest" / "engine" / "rank.py"
    showing = tmp_path / "loadtest" / "study" / "chart.py"
    for path in (deciding, simulating, showing):
        path.parent.mkdir(parents=True)
        path.write_text("x = 1")
    before = present(tmp_path)

    showing.write_text("x = 2")
    assert present(tmp_path) == before
    simulating.write_text("x = 2")
    assert present(tmp_path).decisions == before.decisions
    assert present(tmp_path).model != before.model
    deciding.write_text("x = 2")
    assert present(tmp_path).decisions != before.decisions


def test_listed_code_decides_the_same_as_other_listed_code(tmp_path: Path) -> None:
    path = tmp_path / "same.txt"
    confirm([Revision("one", "m"), Revision("two", "m"), Revision("two", "m")], path)

    listed = confirmed(path)

    assert listed == [Revision("one", "m"), Revision("two", "m")]
    assert same_decisions("one", "two", listed)
    assert same_decisions("other", "other", listed)
    assert not same_decisions("one", "other", listed)


def test_code_that_decides_the_same_alone_is_listed_for_one_replica_only(tmp_path: Path) -> None:
    path = tmp_path / "same.txt"
    older, now = Revision("older", "m"), Revision("now", "m")

    confirm([now], path, alone=[older, now])

    assert confirmed(path) == [older, now]
    assert confirmed(path, replicas=4) == [now]
