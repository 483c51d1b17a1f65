"""The fields of chunks that are read."""

import pytest

from router.continuing.chunks import decode, without_usage


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'data: {"choices":[],"usage":null}\n\n', b'data: {"choices":[]}\n\n'),
        (b'data: {"a":1 , "usage" : {"x":1,"d":{"y":2}},"b":2}\n\n', b'data: {"a":1 ,"b":2}\n\n'),
        (
            b'data: {"a":1,"usage":{"x":1}}\n\ndata: {"a":2,"usage":{"x":1}}\n\n',
            b'data: {"a":1}\n\ndata: {"a":2}\n\n',
        ),
        (b'data: {"a":"\\"usage\\":{}"}\n\n', b'data: {"a":"\\"usage\\":{}"}\n\n'),
        (b'{"usage":{"x":1}}', b'{"usage":{"x":1}}'),
        (b'{"a":1,"usage":3}', b'{"a":1,"usage":3}'),
        (b"", b""),
    ],
)
def test_counts_are_taken_out_and_all_else_stays(before: bytes, after: bytes) -> None:
    if before.startswith(b'data: {"a":1 , '):
        assert without_usage(before) in (after, b'data: {"a":1 ,"b":2}\n\n')
    else:
        assert without_usage(before) == after


def test_many_events_are_no_deep_recursion() -> None:
    events = b'data: {"a":1,"usage":{"x":1}}\n\n' * 5000
    assert b"usage" not in without_usage(events)


@pytest.mark.parametrize(
    ("error", "failed"),
    [
        (b'{"code":500}', True),
        (b'{"code":503}', True),
        (b'{"code":400}', False),
        (b'"x"', False),
        (b"{}", False),
    ],
)
def test_a_failure_of_the_engine_has_code_500_or_more(error: bytes, failed: bool) -> None:
    assert decode(b'{"error":' + error + b"}").is_engines_failure is failed


def test_only_text_is_plain() -> None:
    for field, plain in (
        (b'"role":"assistant","content":"x"', True),
        (b'"content":"x","reasoning_content":null,"tool_calls":[]', True),
        (b'"reasoning_content":"x"', False),
        (b'"tool_calls":[{}]', False),
        (b'"function_call":{"name":"f"}', False),
    ):
        delta = decode(b'{"choices":[{"delta":{' + field + b"}}]}").choices[0].delta
        assert delta is not None
        assert delta.is_plain is plain
