"""The checker of wording finds the patterns of the house style, in the right places only."""

from pathlib import Path

import pytest

from deploy import language
from deploy.language import ROOT, findings, problems


@pytest.mark.parametrize(
    "sentence",
    [
        "What a client is told if no worker is free.",
        "The queue is short. Of some candidates, those that are idle.",
        "So many tokens that a request may be shorter.",
        "| setting | What it does |",
        "## What happens to a request",
        "Nobody reads it.",
        "Replicas count it anew.",
        "The decode worker prefills again: right, and dear.",
    ],
)
def test_a_sentence_that_hides_its_actor_is_found(sentence: str) -> None:
    assert list(problems(sentence, sentences=True))


@pytest.mark.parametrize(
    "sentence",
    [
        "The gateway rejects a request if no worker is free.",
        "What does a client see?",
        "The worker reports what it holds.",
        "A field named `nobody` passes.",
        "See [the seed of hashes](0059-hashes-have-a-seed-that-nobody-can-guess.md).",
        "So the replica waits.",
    ],
)
def test_a_plain_sentence_passes(sentence: str) -> None:
    assert not list(problems(sentence, sentences=True))


def test_findings_name_the_line_and_leave_data_of_tests_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language, "ROOT", tmp_path)
    code = '"""Whether it works.\n\nIt is.\n"""\n\nMESSAGE = "a message that nobody reads"  # read anew\n'
    page = "A title\n\n```sh\nnobody\n```\n\nWhoever reads it.\n"
    for name, text in (("a.py", code), ("tests/a.py", code), ("b.md", page)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = [
        one.rsplit(": ", 2)[0]
        for one in findings([tmp_path / name for name in ("a.py", "tests/a.py", "b.md")])
    ]
    places = [one.split(": ")[0] for one in found]
    assert sorted(places) == ["a.py:1", "a.py:6", "a.py:6", "b.md:7", "tests/a.py:1", "tests/a.py:6"]


def test_the_checker_reads_the_repository() -> None:
    assert Path(language.__file__) == ROOT / "deploy" / "language.py"
