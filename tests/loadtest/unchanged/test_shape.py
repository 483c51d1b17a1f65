"""The shape of code is counted as its head says."""

from pathlib import Path

import pytest

from loadtest.unchanged import shape

CODE = '''"""A module."""

# A comment.
class Thing:
    def first(self, one, *, two):
        """Two
        lines."""
        assert one is not None
        return two


async def second():
    pass
'''


def test_docstrings_comments_and_self_do_not_count(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(CODE)
    found = shape.shape([file])
    assert (found["modules"], found["lines"], found["modules < 25 code lines"]) == ("1", "13", "1")
    assert (found["functions"], found["lines of a function"]) == ("2", "2 / 3 / 3")
    assert (found["parameters"], found["asserts; is not None"]) == ("0 / 2 / 2", "1; 1")


def test_a_checkout_is_shown_by_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("router", "policies", "radix", "loadtest", "tests"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "module.py").write_text(CODE)
    shape.main([str(tmp_path)])
    heads, _, modules, *_ = capsys.readouterr().out.splitlines()
    assert heads == "|  | router | policies | radix | product | loadtest | tests |"
    assert modules == "| modules | 1 | 1 | 1 | 3 | 1 | 1 |"
