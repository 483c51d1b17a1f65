"""A small body that takes long to decode, or much memory: JSON bombs, and bodies packed into little.

Before they were bounded, 8 MB of empty messages took 10 s, 3.4 s of them in one step of the event loop.
"""

import gzip
import json
import zlib
from collections import deque
from typing import Any

import pytest
from fakes.attacker import Attacker, post
from fakes.running import Fleet

from router.gateway.endpoints import Endpoint
from router.gateway.large import parse_in_steps
from router.gateway.parsing import Identifier
from router.gateway.step_runner import Steps

SIZE = 4_000_000


def filled(unit: bytes, size: int = SIZE) -> bytes:
    return unit * (size // len(unit))


def completion(prompt: bytes, *more: bytes) -> bytes:
    return b",".join((b'{"model":"m","prompt":' + prompt, *more)) + b"}"


def chat(messages: bytes, *more: bytes) -> bytes:
    return b",".join((b'{"model":"m","messages":' + messages, *more)) + b"}"


BOMBS: dict[str, tuple[bytes, str]] = {
    "deep arrays": (completion(b"[" * (SIZE // 2) + b"]" * (SIZE // 2)), "too_complex"),
    "deep objects": (chat(filled(b'{"a":') + b"1" + filled(b"}", SIZE // 5)), "too_complex"),
    "deep and shallow enough to be small": (chat(b"[" * 5000 + b"]" * 5000), "invalid_json"),
    "never closed": (chat(b"[" * SIZE), "too_complex"),
    "a field nobody reads": (completion(b'"x"', b'"z":[' + filled(b"[],") + b"1]"), "too_complex"),
    "empty messages": (chat(b"[" + filled(b"{},") + b"{}]"), "too_complex"),
    "messages": (chat(b"[" + filled(b'{"role":"user","content":"x"},') + b"{}]"), "too_complex"),
    "parts": (
        chat(b'[{"role":"user","content":[' + filled(b'{"type":"text","text":"x"},') + b"{}]}]"),
        "too_complex",
    ),
    "prompts": (completion(b"[" + filled(b'"x",') + b'"x"]'), "too_complex"),
    "more prompts than a batch has": (completion(json.dumps(["x" * 40] * 17_000).encode()), "too_complex"),
    "prompts of one token": (completion(b"[" + filled(b"[1],") + b"[1]]"), "too_complex"),
    "tools": (chat(b"[]", b'"tools":[' + filled(b"{},") + b"{}]"), "too_complex"),
    "numbers in a tool": (
        chat(b"[]", b'"tools":[{"x":[' + filled(b"1,", 5_000_000) + b"1]}]"),
        "too_complex",
    ),
    "numbers for messages": (chat(b"[" + filled(b"1,", 5_000_000) + b"1]"), "too_complex"),
    "keys": (
        b"{" + b",".join(b'"k%d":1' % n for n in range(300_000)) + b',"model":"m","prompt":"x"}',
        "too_complex",
    ),
    "one key again and again": (completion(b'"x"', filled(b'"model":"m",') + b'"n":1'), "too_complex"),
    "a number of millions of digits": (completion(b'"x"', b'"max_tokens":' + b"9" * SIZE), "invalid_json"),
    "a token of millions of digits": (completion(b"[" + b"9" * 5_000_000 + b"]"), "too_complex"),
    "nothing but space": (b" " * 17_000_000 + completion(b'"x"'), "too_complex"),
    "a model of megabytes": (b'{"prompt":"x","model":"' + b"m" * 5_000_000 + b'"}', "too_complex"),
    "no UTF-8": (completion(b'"' + b"\xff" * SIZE + b'"'), "invalid_json"),
    "infinity": (completion(b'"x"', b'"max_tokens":1e999999999'), "invalid_json"),
}


async def test_a_bomb_is_refused_before_it_goes_off(fleet: Fleet) -> None:
    engine = await fleet.engine()
    gateway = await fleet.gateway(engine.url)
    for name, (body, code) in BOMBS.items():
        path = b"/v1/chat/completions" if b'"messages":' in body[:30] else b"/v1/completions"
        client = (await Attacker.connect(gateway)).send(post(body, path=path))
        (answer,) = await client.answers()

        said = answer.status, json.loads(answer.body)["error"]["code"]
        assert said == ({"too_complex": 413}.get(code, 400), code), name
        assert len(answer.body) < 1000
        assert (await gateway.client.get("/health")).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}] * 30_000},
        ),
        ("/v1/completions", {"prompt": [f"input {n} of many" * 20 for n in range(2048)]}),
        ("/v1/completions", {"prompt": [[n % 1000] * 100 for n in range(2048)]}),
        ("/v1/completions", {"prompt": list(range(1_000_000))}),
        ("/v1/completions", {"prompt": "x", "metadata": {f"key{n}": "value" for n in range(100_000)}}),
    ],
    ids=["messages", "texts", "token ids of a batch", "token ids", "keys"],
)
def test_what_real_clients_send_is_far_below_the_bounds(path: str, body: dict[str, Any]) -> None:
    identifier, large = Identifier("n"), json.dumps({"model": "m", **body}).encode()
    paths: deque[bytes] = deque()

    def parse() -> Steps:
        paths.extend((yield from parse_in_steps(identifier, Endpoint(path), large)).paths)

    deque(parse())
    assert paths


PACKED = {
    b"gzip": gzip.compress(completion(b'"' + b"x" * SIZE + b'"')),
    b"x-gzip": gzip.compress(completion(b'"x"')),
    b"deflate": zlib.compress(completion(b'"x"')),
    b"br": b"\x8b\x03\x80",
    b"zstd": b"\x28\xb5\x2f\xfd\x04\x00",
    b"identity, gzip": gzip.compress(completion(b'"x"')),
    b"nonsense": completion(b'"x"'),
}


async def test_a_packed_body_is_refused_and_not_unpacked(fleet: Fleet) -> None:
    gateway = await fleet.gateway()
    for path in (b"/v1/completions", b"/v1/chat/completions", b"/encode", b"/workers"):
        for coding, body in PACKED.items():
            request = post(body, b"content-encoding: " + coding, path=path)
            (answer,) = await (await Attacker.connect(gateway)).send(request).answers()
            code = json.loads(answer.body)["error"]["code"]
            assert (answer.status, code) == (415, "unsupported_encoding"), (path, coding)


async def test_a_body_that_says_that_it_is_not_packed_is_served(fleet: Fleet) -> None:
    engine = await fleet.engine()
    gateway = await fleet.gateway(engine.url)
    body = b'{"model":"emulated","prompt":"x","max_tokens":1}'
    request = post(body, b"content-encoding: Identity")
    (answer,) = await (await Attacker.connect(gateway)).send(request).answers()
    assert answer.status == 200
