import pytest
from google.protobuf.struct_pb2 import Struct

from router.picker import messages
from router.picker.proto import ext_proc_pb2 as pb


def test_headers_are_read_from_either_field_in_lower_case() -> None:
    """Envoy fills ``raw_value``, agentgateway ``value``."""
    head = pb.HttpHeaders(
        headers=pb.HeaderMap(
            headers=[pb.HeaderValue(key="X-A", raw_value=b"1\xff"), pb.HeaderValue(key="x-b", value="2")]
        )
    )
    assert messages.headers_of(head) == [(b"x-a", b"1\xff"), (b"x-b", b"2")]


@pytest.mark.parametrize(
    ("value", "endpoints"),
    [
        (["10.0.0.1:80", "[::1]:81"], ["10.0.0.1:80", "[::1]:81"]),
        ("10.0.0.1:80, 10.0.0.2:80", ["10.0.0.1:80", "10.0.0.2:80"]),
        ([], []),
        ([7, None], ["", ""]),
    ],
)
def test_the_subset_is_a_list_or_a_text(value: object, endpoints: list[str]) -> None:
    hint = Struct()
    hint.update({messages.SUBSET: value})
    metadata = pb.Metadata(filter_metadata={messages.SUBSET_SPACE: hint})
    assert messages.subset_of(pb.ProcessingRequest(metadata_context=metadata)) == endpoints


def test_no_hint_is_no_subset() -> None:
    assert messages.subset_of(pb.ProcessingRequest()) is None
    metadata = pb.Metadata(filter_metadata={messages.SUBSET_SPACE: Struct()})
    assert messages.subset_of(pb.ProcessingRequest(metadata_context=metadata)) is None


def test_a_hint_without_end_is_cut() -> None:
    hint = Struct()
    hint.update({messages.SUBSET: ",".join("a" * 10_000)})
    metadata = pb.Metadata(filter_metadata={messages.SUBSET_SPACE: hint})
    found = messages.subset_of(pb.ProcessingRequest(metadata_context=metadata))
    assert found is not None
    assert len(found) == messages.ENDPOINTS_MAX


def test_the_endpoint_that_served_is_in_the_metadata() -> None:
    space = Struct()
    space.update({messages.SERVED: "10.0.0.1:80"})
    metadata = pb.Metadata(filter_metadata={messages.DESTINATION_SPACE: space})
    assert messages.served_by(pb.ProcessingRequest(metadata_context=metadata)) == "10.0.0.1:80"
    assert messages.served_by(pb.ProcessingRequest()) == ""


@pytest.mark.parametrize("size", [0, 1, messages.CHUNK_BYTES_MAX, messages.CHUNK_BYTES_MAX + 1, 200_000])
@pytest.mark.parametrize("ends", [True, False])
def test_pieces_are_the_body_and_only_the_last_one_ends_it(size: int, ends: bool) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    pieces = [
        each.request_body.response.body_mutation.streamed_response
        for each in messages.request_pieces(body[:size], ends=ends)
    ]
    assert b"".join(piece.body for piece in pieces) == body[:size]
    assert [piece.end_of_stream for piece in pieces] == [False] * (len(pieces) - 1) + [ends]


def test_header_lines_are_taken_apart() -> None:
    assert messages.headers_in(b"x-a: 1: 2\r\nx-b:\r\n") == [(b"x-a", b"1: 2"), (b"x-b", b"")]
    assert messages.headers_in(b"") == []
