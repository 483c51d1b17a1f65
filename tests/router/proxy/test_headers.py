from router.proxy.headers import end_to_end


def test_headers_of_one_connection_do_not_cross() -> None:
    headers = [
        (b"host", b"a"),
        (b"accept", b"*/*"),
        (b"connection", b"keep-alive"),
        (b"transfer-encoding", b"chunked"),
        (b"x-request-id", b"1"),
        (b"te", b"trailers"),
    ]

    assert end_to_end(headers) == [(b"accept", b"*/*"), (b"x-request-id", b"1")]


def test_a_header_that_connection_names_stays_behind() -> None:
    headers = [(b"x-hop", b"1"), (b"connection", b"close, X-Hop"), (b"x-end", b"2")]

    assert end_to_end(headers) == [(b"x-end", b"2")]


def test_repeated_headers_keep_their_order() -> None:
    headers = [(b"set-cookie", b"a"), (b"b", b"1"), (b"set-cookie", b"c")]

    assert end_to_end(headers) == headers
