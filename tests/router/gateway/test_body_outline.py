import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.gateway.body_outline import BodyOutline, Sizes, Unusual, packed_ids
from router.gateway.conversation import encode

SMALL = Sizes(slice_bytes=64, text_bytes=16, long_value_bytes_min=32)


def outline(body: bytes, sizes: Sizes = SMALL) -> BodyOutline:
    found = BodyOutline(body, sizes)
    for _ in found.cut():
        pass
    return found


def filled(found: BodyOutline, *pieces: bytes) -> bytes:
    return b"".join(found.filled(pieces))


def test_what_is_long_is_cut_out_and_what_is_short_stays() -> None:
    long, short = "x" * 33, "y" * 20
    found = outline(json.dumps({"long": long, "short": short, "ids": [7] * 20}).encode())

    skeleton = json.loads(found.skeleton)

    assert skeleton["short"] == short
    assert filled(found, skeleton["long"].encode()) == long.encode()
    assert b"".join(found.token_ids(skeleton["ids"]) or ()) == packed_ids([7] * 20)


@given(
    st.lists(st.text('"\\u0000/ {}[]:,é日😀x', max_size=120), max_size=8), st.booleans(), st.integers(2, 80)
)
def test_strings_are_found_whatever_is_in_them(texts: list[str], ascii_only: bool, slice_bytes: int) -> None:
    """Quotes and brackets within strings end nothing, in slices of any size."""
    body = json.dumps(texts, ensure_ascii=ascii_only).encode()
    found = outline(body, Sizes(slice_bytes, 16, 32))

    skeleton = json.loads(found.skeleton)

    assert [filled(found, text.encode()) for text in skeleton] == [text.encode() for text in texts]


@given(
    st.text(["a", '"', "\\", "\n", "é", "日", "😀", "\ud83d", "\ude00"], min_size=40, max_size=400),
    st.booleans(),
)
def test_a_string_is_read_the_same_wherever_it_is_sliced(text: str, ascii_only: bool) -> None:
    """No slice ends within a character, an escape, or a pair of surrogates. A lone surrogate is one."""
    joined = text.encode("utf-16", "surrogatepass").decode(
        "utf-16", "surrogatepass" if ascii_only else "replace"
    )
    found = outline(json.dumps(joined, ensure_ascii=ascii_only).encode())

    assert filled(found, json.loads(found.skeleton).encode()) == encode(joined)


def test_a_client_cannot_write_a_placeholder() -> None:
    """A client would need to know a random number of 64 bits, which differs in every process."""
    found = outline(json.dumps(["x" * 100]).encode())

    (placeholder,) = json.loads(found.skeleton)

    assert len(placeholder.split("-")[1]) == 16


def test_numbers_where_text_belongs_are_not_read_as_text() -> None:
    found = outline(json.dumps({"text": [1] * 40}).encode())
    with pytest.raises(Unusual):
        filled(found, json.loads(found.skeleton)["text"].encode())


@pytest.mark.parametrize("ids", [b"[1.5%b]", b"[true%b]", b"[4294967296%b]", b"[-1%b]", b"[null%b]"])
def test_an_array_of_something_else_is_no_token_ids(ids: bytes) -> None:
    found = outline(ids % (b",1" * 40))
    with pytest.raises(Unusual):
        list(found.token_ids(json.loads(found.skeleton)) or ())


@pytest.mark.parametrize("raw", [b"\n" * 50, b"\\x" * 50, b"\xff" * 50, b"\\ud83" * 20])
def test_a_long_string_that_is_not_json_is_refused(raw: bytes) -> None:
    found = outline(b'"%b"' % raw)
    with pytest.raises(ValueError):
        filled(found, json.loads(found.skeleton).encode())


def test_canonical_json_gets_back_what_is_missing_in_it() -> None:
    value = {"b": 'quote " and \n newline' * 9, "a": [1, 2, 3] * 20, "c": "x" * 50}
    found = outline(json.dumps(value).encode())
    canonical = json.dumps(json.loads(found.skeleton), sort_keys=True, separators=(",", ":")).encode()

    restored = filled(found, canonical)

    assert restored == json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def test_what_was_hashed_with_something_missing_is_hashed_again_with_it() -> None:
    value = {"data": "x" * 500}
    found, other = (outline(json.dumps(v).encode()) for v in (value, {"data": "y" * 500}))

    digests = [filled(f, f.digest(f.skeleton.replace(b" ", b""))) for f in (found, other)]

    assert digests[0] != digests[1]
    assert digests[0] == outline(b"{}").digest(json.dumps(value, separators=(",", ":")).encode())
