import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.handover.fields import Fields

NAMES = ("stream", "max_tokens", "kv_transfer_params", "n")
FIELDS = Fields(*NAMES)

texts = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | texts, inner, max_size=3)
    ),
    max_leaves=8,
)
objects = st.dictionaries(st.sampled_from(NAMES) | texts, values, max_size=6)
spaces = st.text(" \t\r\n", max_size=3)


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    assert len(set(names)) == len(names)
    return dict(pairs)


@given(objects, st.dictionaries(st.sampled_from(NAMES), values), spaces, spaces, st.booleans(), st.data())
def test_an_object_has_its_other_fields_as_they_were_and_none_twice(
    sent: dict[str, Any], wanted: dict[str, Any], before: str, after: str, ascii_only: bool, data: Any
) -> None:
    """Also with white space around it, in pieces, and with the same names further down."""
    text = json.dumps(sent, ensure_ascii=ascii_only, indent=data.draw(st.sampled_from([None, 1])))
    body = (before + text + after).encode()
    cut = data.draw(st.integers(0, len(body)))
    pieces = data.draw(st.sampled_from([(body,), (memoryview(body),), (body[:cut], memoryview(body)[cut:])]))
    having = FIELDS.find(pieces).having({name: json.dumps(value).encode() for name, value in wanted.items()})

    assert json.loads(b"".join(having), object_pairs_hook=once) == sent | wanted


@given(objects)
def test_a_field_is_found_where_it_is(sent: dict[str, Any]) -> None:
    found = FIELDS.find((json.dumps(sent).encode(),))

    assert {name for name in NAMES if name in found} == sent.keys() & set(NAMES)


def test_a_long_prompt_is_not_copied() -> None:
    prompt = "x" * 1_000_000
    body = json.dumps({"stream": True, "prompt": prompt, "max_tokens": 7}).encode()
    having = FIELDS.find((body,)).having({"stream": b"false", "n": b"1"})

    large = [piece for piece in having if len(piece) > 100]
    assert len(large) == 1
    assert isinstance(large[0], memoryview)
    assert large[0].obj is body


def test_a_name_that_is_written_with_escapes_is_the_same_name() -> None:
    having = FIELDS.find((b'{"str\\u0065am": true}',)).having({"stream": b"false"})

    assert json.loads(b"".join(having)) == {"stream": False}


def test_of_a_name_that_the_client_wrote_twice_the_last_one_is_ours() -> None:
    having = FIELDS.find((b'{"stream": true, "stream": true}',)).having({"stream": b"false"})

    assert json.loads(b"".join(having)) == {"stream": False}


@pytest.mark.parametrize("body", [b'{"temperature": NaN, "stream": true}', b'{"x": "\\ud800", "stream": 1}'])
def test_what_only_its_engine_can_read_gets_the_last_word_at_its_end(body: bytes) -> None:
    having = b"".join(FIELDS.find((body,)).having({"stream": b"false"}))

    assert json.loads(having)["stream"] is False


def test_a_byte_order_mark_stays() -> None:
    body = b'\xef\xbb\xbf{"stream": true, "x": 1}'

    assert (
        b"".join(FIELDS.find((body,)).having({"stream": b"false"}))
        == b'\xef\xbb\xbf{"stream": false, "x": 1}'
    )
