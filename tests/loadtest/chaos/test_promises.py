"""Each promise of every play is broken by a run that breaks it; a stage that fails to come up is reported."""

from dataclasses import replace

import pytest

from loadtest.chaos.play import Play, Seen
from loadtest.chaos.promises import always, first, perform
from loadtest.chaos.testbed import Troupe
from loadtest.processes import ChildFailed

SEEN = Seen(Play(Troupe([], {}), [], 0.0))


def broken(seen: Seen) -> list[str]:
    return [promise.name for promise in always(seen) if not promise.kept]


def test_a_run_in_which_nothing_happened_keeps_them() -> None:
    assert broken(SEEN) == []


@pytest.mark.parametrize(
    ("seen", "name"),
    [
        (replace(SEEN, sent=1), "every client is accounted for"),
        (replace(SEEN, unsent=1), "every client is accounted for"),
        (replace(SEEN, left=["r1: waiting 1"]), "nothing is left behind"),
        (replace(SEEN, errors=["r1: {}"]), "no replica logs an error"),
    ],
)
def test_each_is_broken_by_itself(seen: Seen, name: str) -> None:
    assert broken(seen) == [name]


def test_of_many_lines_the_first_is_told() -> None:
    assert first(["one", "two"]) == "2: one"
    assert first([], "all empty") == "all empty"


def test_a_process_that_does_not_come_up_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run(_: Play) -> Seen:
        raise ChildFailed("r1 ended")

    monkeypatch.setattr("loadtest.chaos.promises.run_play", run)
    assert perform(SEEN.play, always, lambda _: iter(())) == 1
    assert "FAILED: r1 ended" in capsys.readouterr().err
