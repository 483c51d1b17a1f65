"""Parsing of the calls that language workers make."""

import json

import pytest

from router.encoding.calls import EncoderCall, decoded
from router.errors import ClientError


def call(*items: object, req_id: str = "r_local_part_0") -> EncoderCall:
    fields = {"req_id": req_id, "mm_items": items, "modality": "IMAGE", "prefill_host": "h", "num_parts": 1}
    return decoded(json.dumps(fields).encode())


def test_media_are_keyed_by_content_however_they_are_written() -> None:
    """Newer engines send an object; a hash in it is preferred to its address."""
    key = call("data:image/png;base64,AAAA").key

    assert call({"url": "data:image/jpeg;base64,AAAA", "detail": "low"}).key == key
    assert call("data:image/png;base64,AAAB").key != key
    assert (
        call({"url": "https://x/1.png", "content_hash": "h"}).key
        == call({"url": "y", "content_hash": "h"}).key
    )


def test_a_conversation_that_goes_on_keeps_its_key() -> None:
    assert call("a", "b", "c").key == call("a").key != call("b").key


def test_a_part_has_a_short_name_of_its_own() -> None:
    """Ids of requests may contain anything, so they do not go into the log."""
    one, other = call(req_id="r_local_part_0"), call(req_id="r_local_part_1")
    assert len(one.part("")) == len(one.part("acme")) == 16
    assert len({one.part(""), one.part("acme"), one.part("other"), other.part("")}) == 4
    assert call().key == 0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"req_id": ""}',
        b'{"req_id": 1}',
        b'{"req_id": "r", "mm_items": [1]}',
        b'{"req_id": "%b"}' % (b"r" * 513),
    ],
)
def test_what_is_no_call_is_refused(body: bytes) -> None:
    with pytest.raises(ClientError, match=r"call of an encoder|req_id must") as refused:
        decoded(body)
    assert refused.value.code == "invalid_encoder_call"
