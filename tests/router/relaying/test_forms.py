"""Forms in pieces of any size."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import ClientError
from router.relaying.forms import HEADERS_BYTES_MAX, PARTS_MAX, FormReader, boundary_of


def part(name: str, value: bytes, more: str = "") -> bytes:
    return f'--B\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + value + b"\r\n"


END = b"--B--\r\n"
FILE = '; filename="a.wav"\r\nContent-Type: audio/wav'


@pytest.mark.parametrize(
    ("form", "model"),
    [
        (part("model", b"m") + END, "m"),
        (part("language", b"en") + part("model", "größer".encode()) + END, "größer"),
        (part("file", b"--B \r\n--Bx\r\n\r\n", FILE) + part("model", b"m") + END, "m"),
        (part("file", b"x", FILE) + END, None),
        (part("model", b"x", FILE) + part("model", b"m") + END, "m"),
        (part("modelx", b"x") + part("xmodel", b"x") + END, None),
        (b"--B\r\ncontent-disposition:form-data;name=model\r\n\r\nm\r\n--B--", "m"),
        (b"preamble\r\n" + part("model", b"") + END, ""),
        (part("file", b"\r\n--B-\r\n--Bad\r\n--\r\n", FILE) + part("model", b"m") + END, "m"),
        (END, None),
    ],
)
@given(st.data())
def test_the_model_is_found_in_any_pieces(form: bytes, model: str | None, data: st.DataObject) -> None:
    field = FormReader(b"B")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(form)), max_size=8)))
    for start, end in zip([0, *cuts], [*cuts, len(form)], strict=True):
        field.feed(form[start:end])
    assert (field.model, field.ended) == (model, True)
    assert len(field._window) < 100


@given(st.binary(max_size=2000))
def test_any_bytes_are_looked_at_without_harm(form: bytes) -> None:
    field = FormReader(b"B")
    with contextlib.suppress(ClientError):
        field.feed(b"--B\r\n" + form)


@pytest.mark.parametrize(
    "form",
    [
        b"--B\r\n" + b"a" * (HEADERS_BYTES_MAX + 1),
        b"--B\r\n" + b"a" * HEADERS_BYTES_MAX + b"aaaa\r\n\r\n",
        part("a", b"") * (PARTS_MAX + 1),
        part("model", b"m") + END + part("vllm_xargs", b"{}"),
        part("file", b"x" * 100_000, FILE) + part("kv_transfer_params", b"{}"),
        part("rid", b"x", FILE),
        part("cache_salt", b"x"),
        b"--B\r\nContent-Disposition: form-data; name*=utf-8''vllm%5Fxargs\r\n\r\n{}",
        b'--B\r\nContent-Disposition: form-data; name="a"; name="b"\r\n\r\n{}',
        b'--B\r\nContent-Disposition: form-data; name="vllm\\_xargs"\r\n\r\n{}',
        b'--B\r\nContent-Disposition: form-data;\r\n name="vllm_xargs"\r\n\r\n{}',
        b'--B\r\nContent-Disposition: form-data; NAME="VLLM_XARGS" ; name=vllm_xargs\r\n\r\n{}',
        b"--B\r\nContent-Disposition: form-data; name=a\r\nContent-Disposition: form-data; name=b\r\n\r\n{}",
        b"--B \r\nContent-Disposition: form-data; name=vllm_xargs\r\n\r\n{}",
        part("model", b"m" * 10_000),
        b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\n' + b"m" * 10_000,
        part("model", b"\xff") + END,
        part("model", b"first") + part("model", b"second") + END,
        part("model", b"first") + END + part("model", b"second", FILE),
    ],
)
def test_what_is_beyond_its_bounds_is_refused(form: bytes) -> None:
    with pytest.raises(ClientError):
        FormReader(b"B").feed(form)


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        (b"multipart/form-data; boundary=abc", b"abc"),
        (b'Multipart/Form-Data; charset=utf-8; boundary="a b"', b"a b"),
        (b"multipart/form-data;boundary=abc; x=y", b"abc"),
        (b"multipart/form-data", b""),
        (b"multipart/mixed; boundary=abc", b""),
        (b"multipart/form-data; boundary=" + b"a" * 71, b""),
        (
            b"multipart/form-data; boundary=----Boundaryboundary=;",
            b"----Boundaryboundary=",
        ),
        (b"multipart/form-data; boundary=a; boundary=b", b""),
        (b"multipart/form-data; boundary=a; boundary*=utf-8''b", b""),
        (b"multipart/form-data; boundary=a; boundary*0=b", b""),
        (b'multipart/form-data; boundary=a; x="; boundary=b"', b""),
        (b'multipart/form-data; boundary=a; x=";boundary=b', b""),
        (b'multipart/form-data; boundary="a\\"b"', b""),
        (b"multipart/form-data; boundary=a, multipart/form-data; boundary=b", b""),
        (b"application/json", b""),
        (b"", b""),
    ],
)
def test_the_boundary_is_in_the_content_type(content_type: bytes, boundary: bytes) -> None:
    assert boundary_of(content_type) == boundary


def test_what_clients_may_say_to_engines_is_a_setting() -> None:
    form = part("vllm_xargs", b"{}") + part("model", b"m") + END
    with pytest.raises(ClientError, match="vllm_xargs"):
        FormReader(b"B").feed(form)
    allowed = FormReader(b"B", handover_allowed=True)
    allowed.feed(form)
    assert allowed.model == "m"
