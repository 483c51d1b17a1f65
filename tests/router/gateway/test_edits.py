"""Members of a JSON object are found, written over and taken out; all else stays to the byte."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import ClientError
from router.gateway.edits import TIMES_MAX, appended, members, removal
from router.offsets import edited

names = st.sampled_from(["rid", "request_id", "model", "a", ""])
values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.text(max_size=8)
    | st.sampled_from(['"rid":1', "}", ","]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=5,
)
spaces = st.text(" \t\r\n", max_size=2)


@st.composite
def objects(draw: st.DrawFn) -> tuple[bytes, list[tuple[str, Any]]]:
    """The text of an object, oddly spaced and with escapes in its names, and its pairs."""
    pairs = draw(st.lists(st.tuples(names, values), max_size=6))
    written = []
    for name, value in pairs:
        escaped = "".join(f"\\u{ord(c):04x}" if draw(st.booleans()) else c for c in name)
        s = [draw(spaces) for _ in range(4)]
        written.append(f'{s[0]}"{escaped}"{s[1]}:{s[2]}{json.dumps(value)}{s[3]}')
    return f"{{{','.join(written) or draw(spaces)}}}{draw(spaces)}".encode(), pairs


def read(text: bytes) -> list[tuple[str, Any]]:
    """The pairs of an object, those twice there too."""
    depths: list[list[tuple[str, Any]]] = []

    def hook(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        depths.append(pairs)
        return dict(pairs)

    json.loads(text, object_pairs_hook=hook)
    return depths[-1]


@given(objects(), names.filter(bool))
def test_each_member_of_a_name_is_found_and_can_be_written_over(
    made: tuple[bytes, list[tuple[str, Any]]], name: str
) -> None:
    text, pairs = made
    found = members(text, name)
    assert [json.loads(text[each.start : each.end]) for each in found] == [v for n, v in pairs if n == name]
    edits = [(each.start, each.end, b'"new"') for each in found]
    assert read(b"".join(edited(text, edits))) == [(n, "new" if n == name else v) for n, v in pairs]


@given(objects(), st.sets(names.filter(bool)))
def test_members_are_taken_out_wherever_they_are(
    made: tuple[bytes, list[tuple[str, Any]]], taken: set[str]
) -> None:
    text, pairs = made
    found = [each for name in taken for each in members(text, name)]
    rest = b"".join(edited(text, removal(text, found)))
    assert read(rest) == [(name, value) for name, value in pairs if name not in taken]


def test_without_edits_a_body_is_not_touched() -> None:
    body = b"{}"
    assert edited(body, ())[0] is body


def test_pieces_are_the_bodys_own() -> None:
    body = json.dumps({"rid": "x", "prompt": "word " * 10_000}).encode()
    pieces = edited(body, removal(body, members(body, "rid")))
    assert sum(len(piece) for piece in pieces if isinstance(piece, bytes)) < 100


def test_half_a_character_elsewhere_hides_nothing() -> None:
    """Python reads lone surrogates, and so do engines."""
    body = rb'{"a":"\ud83d","r\u0069d":"x","b":"\\ud83d\uDE00"}'
    (found,) = members(body, "rid")
    assert body[found.begin : found.end] == rb'"r\u0069d":"x"'


def test_a_name_that_is_there_very_often_is_refused() -> None:
    body = b"{%b}" % b",".join([b'"rid":1'] * (TIMES_MAX + 1))
    with pytest.raises(ClientError):
        members(body, "rid")
    assert len(members(body.replace(b'"rid":1,', b"", 1), "rid")) == TIMES_MAX


@pytest.mark.parametrize("text", [b'{"a":1}', b'{"a":{"b":[1]} }  ', b'{"routed_dp_rank":7,"a":1\n}'])
def test_members_appended_to_an_object_are_its_last_of_their_names(text: bytes) -> None:
    edit = appended(text, ("routed_dp_rank", "data_parallel_rank"), 3)
    found = json.loads(b"".join(edited(text, (edit,))))
    assert (found["routed_dp_rank"], found["data_parallel_rank"]) == (3, 3)
    assert found["a"] == json.loads(text)["a"]
