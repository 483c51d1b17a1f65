"""Events of a stream: its first token, and its end.

The events are vLLM 0.32's, shortened.
"""

import pytest

from router.gateway.endpoints import Endpoint
from router.gateway.stream_events import SPEAKS_EARLY, has_token, is_over

CREATED = (
    b'event: response.created\ndata: {"response":{"instructions":"event: x\\nevent: y","output":[]},'
    b'"sequence_number":0,"type":"response.created"}\n\n'
    b'event: response.in_progress\ndata: {"sequence_number":1,"type":"response.in_progress"}\n\n'
)
ITEM = b'event: response.output_item.added\ndata: {"item":{"id":"msg_1"},"sequence_number":2}\n\n'
STARTED = b'event: message_start\ndata: {"type":"message_start","message":{"content":[]}}\n\n'
PING = b'event: ping\ndata: {"type": "ping"}\n\n'
BLOCK = b'event: content_block_start\ndata: {"type":"content_block_start","index":0}\n\n'


@pytest.mark.parametrize(
    ("endpoint", "early", "token"),
    [
        (Endpoint.RESPONSES, CREATED, ITEM),
        (Endpoint.RESPONSES, CREATED.replace(b"\n", b"\r\n"), ITEM.replace(b"\n", b"\r\n")),
        (Endpoint.RESPONSES, b"", b'event: error\ndata: {"type":"error"}\n\n'),
        (Endpoint.RESPONSES, CREATED, b'event: response.failed\ndata: {"type":"response.failed"}\n\n'),
        (Endpoint.MESSAGES, STARTED + PING, BLOCK),
        (
            Endpoint.CHAT,
            b": ping\n\n",
            b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n',
        ),
        (Endpoint.COMPLETIONS, b":\n\n: still here\n\n", b'data: {"choices":[{"text":"a"}]}\n\n'),
    ],
)
def test_what_is_sent_before_the_first_token_is_none(endpoint: Endpoint, early: bytes, token: bytes) -> None:
    """Bytes may be cut anywhere; an event that is cut in its name may be missed, the next one is not."""
    stream = early + token + token
    assert not has_token(endpoint, early)
    assert has_token(endpoint, token)
    assert has_token(endpoint, stream)
    for cut in range(len(early) + 1):
        assert not has_token(endpoint, stream[:cut])
    for cut in range(len(early) + len(token) + 1):
        assert has_token(endpoint, stream[cut:])


def test_only_two_endpoints_speak_early() -> None:
    """Streams of all other endpoints begin with a token, so their bytes are not searched."""
    assert sorted(SPEAKS_EARLY) == [Endpoint.MESSAGES, Endpoint.RESPONSES]


@pytest.mark.parametrize(
    ("endpoint", "last"),
    [
        (Endpoint.CHAT, b"data: [DONE]\n\n"),
        (Endpoint.COMPLETIONS, b"data: [DONE]\r\n\r\n"),
        (Endpoint.GENERATE, b"data: [DONE]\n\n"),
        (Endpoint.MESSAGES, b'event: message_stop\ndata: {"type":"message_stop"}\n\n'),
        (Endpoint.RESPONSES, b'event: response.completed\ndata: {"usage":{},"sequence_number":9}\n\n'),
        (Endpoint.RESPONSES, b'event: response.incomplete\r\ndata: {"type":1}\r\n\r\n'),
    ],
)
def test_a_stream_is_over_with_its_last_event(endpoint: Endpoint, last: bytes) -> None:
    """Whole, up to the blank line behind it."""
    before = ITEM if endpoint is Endpoint.RESPONSES else b'data: {"text":"data: [DONE]"}\n\n'
    stream = before + last
    assert is_over(endpoint, stream)
    blank = len(last) - len(last.rstrip())
    for cut in range(len(stream) - blank):
        assert not is_over(endpoint, stream[:cut])


def test_a_last_event_that_is_longer_than_what_is_kept_of_it_is_the_last() -> None:
    kept = b'word","usage":{"input_tokens":9}},"sequence_number":12,"type":"response.completed"}\n\n'
    assert is_over(Endpoint.RESPONSES, kept)
    assert not is_over(Endpoint.RESPONSES, kept.replace(b"completed", b"in_progress"))
