"""Discovery's notes at a worker, and their fate when operators change the worker."""

import pytest

from router.fleet.discovered import (
    DISCOVERED_LABEL,
    NOTE_LABEL,
    REGISTERED_LABEL,
    Note,
    kept,
    note_of,
    note_text,
)

NOTE = Note("uid", 7, "scope", said={"role": "plain"})


def noted(note: Note) -> dict[str, str]:
    return {DISCOVERED_LABEL: "kubernetes:llm/a", NOTE_LABEL: note_text(note), "site": "dc1"}


def test_a_note_is_read_as_it_was_written() -> None:
    assert note_of(noted(NOTE)) == NOTE


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {DISCOVERED_LABEL: "kubernetes:llm/a"},
        {NOTE_LABEL: note_text(NOTE)},
        {DISCOVERED_LABEL: "x", NOTE_LABEL: "{"},
        {DISCOVERED_LABEL: "x", NOTE_LABEL: '{"uid": 1}'},
    ],
)
def test_what_is_no_note_leaves_the_worker_to_whoever_made_it(labels: dict[str, str]) -> None:
    assert note_of(labels) is None
    assert kept(labels, {"zone": "b"}, drain_said=True) == {"zone": "b"}


def test_labels_given_by_hand_replace_all_but_the_note() -> None:
    labels = kept(noted(NOTE), {"zone": "b", NOTE_LABEL: "forged"}, drain_said=False)
    assert (labels["zone"], note_of(labels)) == ("b", NOTE)
    assert "site" not in labels


def test_who_says_whether_it_drains_takes_the_drain_over() -> None:
    drained = Note("uid", 7, "scope", "not_ready")
    untouched = note_of(kept(noted(drained), {}, drain_said=False))
    taken_over = note_of(kept(noted(drained), {}, drain_said=True))
    assert untouched is not None
    assert taken_over is not None
    assert (untouched.drained, taken_over.drained) == ("not_ready", "")


def test_nobody_says_by_hand_how_a_worker_came() -> None:
    """The source of a worker decides if an encoder may remove it, and if it gets the fleet's key."""
    forged = {**noted(NOTE), REGISTERED_LABEL: "encoder"}
    assert kept({}, forged, drain_said=False) == {"site": "dc1"}
    assert kept({REGISTERED_LABEL: "encoder"}, {"zone": "b"}, drain_said=True) == {
        "zone": "b",
        REGISTERED_LABEL: "encoder",
    }
