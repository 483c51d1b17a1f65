"""Messages of the external processing protocol: read, and written.

Names of headers and metadata are those of the endpoint-picker protocol (gateway-api-inference-extension,
``docs/proposals/004-endpoint-picker-protocol``, and ``pkg/epp/metadata/consts.go`` of v1.5.0).

Envoy adds to a header that has a value already unless it is told to write it over, so every header says so.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from google.protobuf.struct_pb2 import Struct, Value

from router.picker.proto import ext_proc_pb2 as pb
from router.proxy import Header

DESTINATION = "x-gateway-destination-endpoint"
"""The header and the metadata with the chosen endpoint, ``ip:port``."""

SERVED = "x-gateway-destination-endpoint-served"
"""The metadata with the endpoint that answered."""

SUBSET = "x-gateway-destination-endpoint-subset"
"""The metadata with the endpoints that may be chosen."""

DESTINATION_SPACE, SUBSET_SPACE = "envoy.lb", "envoy.lb.subset_hint"

FAIRNESS = frozenset((b"x-llm-d-inference-fairness-id", b"x-gateway-inference-fairness-id"))
OBJECTIVE = frozenset((b"x-llm-d-inference-objective", b"x-gateway-inference-objective"))
MODEL_REWRITE = frozenset((b"x-llm-d-model-name-rewrite", b"x-gateway-model-name-rewrite"))
"""Headers of requests, under the names of llm-d and the ones before (llm-d-router, ``pkg/epp/metadata``)."""

CHUNK_BYTES_MAX = 62_000
"""Bytes of one piece of a body: some Envoys take 64 KB at most (``pkg/common/envoy/chunking.go``)."""

ENDPOINTS_MAX = 4096
"""Endpoints read from one hint; a pool has some hundreds."""

_NEVER = re.compile(rb"[\r\n\0]")

_OVERWRITE = pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD


def headers_of(message: pb.HttpHeaders) -> list[Header]:
    """Return a message's headers, names in lower case; Envoy fills ``raw_value``, agentgateway ``value``."""
    return [
        (header.key.lower().encode("latin-1", "replace"), header.raw_value or header.value.encode())
        for header in message.headers.headers
    ]


def is_garbled(headers: Sequence[Header]) -> bool:
    """Return True if a name or value holds what no header can: CR, LF or NUL."""
    return _NEVER.search(b"".join([part for header in headers for part in header])) is not None


def subset_of(message: pb.ProcessingRequest) -> list[str] | None:
    """Return the endpoints that a request may be sent to; None for any."""
    space = message.metadata_context.filter_metadata
    if SUBSET_SPACE not in space:
        return None
    fields = space[SUBSET_SPACE].fields
    if SUBSET not in fields:
        return None
    value = fields[SUBSET]
    if value.HasField("string_value"):  # a list by commas, which Envoy's filters make of a header
        return [word.strip() for word in value.string_value.split(",", ENDPOINTS_MAX)[:ENDPOINTS_MAX]]
    return [each.string_value.strip() for each in value.list_value.values[:ENDPOINTS_MAX]]


def served_by(message: pb.ProcessingRequest) -> str:
    """Return the endpoint that answered a request, as the proxy reports it; empty if it does not."""
    space = message.metadata_context.filter_metadata
    if DESTINATION_SPACE not in space:
        return ""
    fields = space[DESTINATION_SPACE].fields
    return fields[SERVED].string_value if SERVED in fields else ""


def headers_in(lines: bytes) -> list[Header]:
    """Split header lines (``name: value`` and CR LF)."""
    pairs = (line.partition(b":") for line in lines.split(b"\r\n") if line)
    return [(name.strip().lower(), value.strip()) for name, _, value in pairs]


def mutation(headers: Iterable[Header], removed: Sequence[str] = ()) -> pb.HeaderMutation:
    """Set headers, and remove others."""
    return pb.HeaderMutation(
        set_headers=[
            pb.HeaderValueOption(
                header=pb.HeaderValue(key=name.decode("latin-1"), raw_value=value), append_action=_OVERWRITE
            )
            for name, value in headers
        ],
        remove_headers=removed,
    )


def destination(endpoints: str) -> Struct:
    """Return the metadata with the chosen endpoints."""
    chosen = Struct(fields={DESTINATION: Value(string_value=endpoints)})
    return Struct(fields={DESTINATION_SPACE: Value(struct_value=chosen)})


def request_pieces(body: bytes, *, ends: bool = True) -> Iterator[pb.ProcessingResponse]:
    """Yield a request's body in pieces; the last one ends it if ``ends``, else its trailers do."""
    for piece, last in _pieces(body):
        yield pb.ProcessingResponse(request_body=_streamed(piece, last=last and ends))


def answer_pieces(body: bytes, *, ends: bool) -> Iterator[pb.ProcessingResponse]:
    """Yield a part of an answer's body in pieces; the last one ends it if ``ends``."""
    for piece, last in _pieces(body):
        yield pb.ProcessingResponse(response_body=_streamed(piece, last=last and ends))


def immediate(status: int, lines: bytes, body: bytes, details: str) -> pb.ProcessingResponse:
    """Answer the client without a worker. Envoy writes ``content-length`` itself."""
    return pb.ProcessingResponse(
        immediate_response=pb.ImmediateResponse(
            status=pb.HttpStatus(code=status),
            headers=mutation(headers_in(lines)),
            body=body,
            details=details,
        )
    )


def _pieces(body: bytes) -> Iterator[tuple[bytes, bool]]:
    if len(body) <= CHUNK_BYTES_MAX:
        yield body, True
        return
    for start in range(0, len(body), CHUNK_BYTES_MAX):
        yield body[start : start + CHUNK_BYTES_MAX], start + CHUNK_BYTES_MAX >= len(body)


def _streamed(piece: bytes, *, last: bool) -> pb.BodyResponse:
    streamed = pb.StreamedBodyResponse(body=piece, end_of_stream=last)
    return pb.BodyResponse(
        response=pb.CommonResponse(body_mutation=pb.BodyMutation(streamed_response=streamed))
    )
