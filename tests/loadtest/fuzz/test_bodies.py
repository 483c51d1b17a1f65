"""Bodies are requests as clients write them; most are valid JSON with a hostile field."""

import json
from random import Random

from loadtest.fuzz.actions import NUMBERED
from loadtest.fuzz.bodies import ENDPOINTS, bodies, floods, request


def body_of(data: bytes) -> bytes:
    return data.partition(b"\r\n\r\n")[2]


def test_a_request_says_how_long_its_body_is() -> None:
    data = request("/v1/completions", b"{}")
    assert data.startswith(b"POST /v1/completions HTTP/1.1\r\n")
    assert b"\r\ncontent-length: 2\r\n" in data
    assert body_of(data) == b"{}"


def test_all_endpoints_are_asked_and_most_bodies_are_json() -> None:
    wires = [bodies(Random(seed)) for seed in range(600)]
    paths = {b"".join(wire.pieces).split(b" ", 2)[1].decode() for wire in wires}
    assert set(ENDPOINTS) <= paths
    assert {wire.replica for wire in wires} == {0, 1}
    whole = [body_of(b"".join(wire.pieces)) for wire in wires if not wire.leaves]
    sound = 0
    for each in whole:
        try:
            json.loads(each)
        except (ValueError, RecursionError):
            continue
        sound += 1
    assert len(whole) / 4 < sound < len(whole)


def test_floods_differ_by_their_number_alone() -> None:
    wires = [floods(Random(seed)) for seed in range(100)]
    assert all(
        NUMBERED in wire.pieces[0] and wire.repeat >= 100
        for wire in wires
        if b'emulated"}' not in wire.pieces[0] or b"x-tenant-id" in wire.pieces[0]
    )
    registering = [wire for wire in wires if b"/scheduler_receive_url" in wire.pieces[0]]
    assert all(wire.repeat * len(wire.pieces[0]) > 20_000_000 for wire in registering)
