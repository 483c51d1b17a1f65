"""WebSockets. On sockets: `tests/integration/test_endpoints.py`."""

from router.relaying.tunnel import offer


def test_a_key_in_a_subprotocol_stays_here_where_keys_are_the_gateways() -> None:
    headers = [
        (b"cookie", b"a=b"),
        (b"sec-websocket-key", b"k"),
        (b"sec-websocket-protocol", b"realtime, openai-insecure-api-key.sk-1, openai-beta.realtime-v1"),
    ]
    kept = offer(headers, keeps_keys=True)
    assert b"sk-1" in kept
    taken = offer(headers, keeps_keys=False)
    assert taken == (b"sec-websocket-key: k\r\nsec-websocket-protocol: realtime, openai-beta.realtime-v1\r\n")
    alone = [(b"sec-websocket-protocol", b"openai-insecure-api-key.sk-1")]
    assert offer(alone, keeps_keys=False) == b""
