"""A stream of a proxy without sockets: a picker's stream on a bench, whose messages a test reads at once."""

from collections.abc import Callable, Sequence
from typing import Any

import orjson
from fakes.gateway import Bench
from google.protobuf.struct_pb2 import Struct

from policies import Finished, Placed
from router.picker import messages
from router.picker.exchange import ALONE, Reach
from router.picker.intents import Intents
from router.picker.proto import ext_proc_pb2 as pb
from router.picker.stream import Parts, ProxyStream
from router.proxy import Header, HeldBytes

CHAT = b"/v1/chat/completions"


class Proxy:
    """One stream, and the messages that came back on it."""

    def __init__(
        self,
        bench: Bench,
        *,
        held: HeldBytes | None = None,
        heeds_subsets: bool = True,
        reach: Reach = ALONE,
        serves: Callable[[bytes, bytes], bool] = lambda _method, _path: True,
    ) -> None:
        self.bench = bench
        self.held = held or HeldBytes()
        self.intents = Intents(bench.settings)
        self.passed = self.elsewhere = 0
        self.stream = ProxyStream(
            Parts(
                bench.gateway,
                self.held,
                self.intents,
                lambda: bench.settings.server,
                heeds_subsets,
                self._passed,
                self._elsewhere,
                reach,
                serves,
            )
        )
        self.got: list[pb.ProcessingResponse] = []

    def _passed(self) -> None:
        self.passed += 1

    def _elsewhere(self) -> None:
        self.elsewhere += 1

    def say(self, **message: Any) -> list[pb.ProcessingResponse]:
        """Send a message; return the messages that came back at once."""
        self.stream.heard(pb.ProcessingRequest(**message))
        return self.hear()

    def hear(self) -> list[pb.ProcessingResponse]:
        """Return the messages since the last look."""
        new = list(self.stream.outbox.taken())
        self.got += new
        return new

    def head(
        self,
        path: bytes = CHAT,
        *headers: Header,
        method: bytes = b"POST",
        ends: bool = False,
        modes: tuple[pb.BodyMode, pb.BodyMode] | None = None,
        subset: Sequence[str] | str | None = None,
    ) -> list[pb.ProcessingResponse]:
        given = ((b":method", method), (b":path", path), *headers)
        more: dict[str, Any] = {}
        if modes is not None:
            more["protocol_config"] = pb.ProtocolConfiguration(
                request_body_mode=modes[0], response_body_mode=modes[1]
            )
        if subset is not None:
            hint = Struct()
            hint.update({messages.SUBSET: subset if isinstance(subset, str) else list(subset)})
            more["metadata_context"] = pb.Metadata(filter_metadata={messages.SUBSET_SPACE: hint})
        return self.say(request_headers=_headers(given, ends=ends), **more)

    def body(self, body: bytes | dict[str, Any], *, ends: bool = True) -> list[pb.ProcessingResponse]:
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        return self.say(request_body=pb.HttpBody(body=data, end_of_stream=ends))

    def answer_head(
        self, status: int = 200, *headers: Header, ends: bool = False, served: str = ""
    ) -> list[pb.ProcessingResponse]:
        more: dict[str, Any] = {}
        if served:
            space = Struct()
            space.update({messages.SERVED: served})
            more["metadata_context"] = pb.Metadata(filter_metadata={messages.DESTINATION_SPACE: space})
        given = ((b":status", b"%d" % status), *headers)
        return self.say(response_headers=_headers(given, ends=ends), **more)

    def answer(self, data: bytes, *, ends: bool = False) -> list[pb.ProcessingResponse]:
        return self.say(response_body=pb.HttpBody(body=data, end_of_stream=ends))

    def check(self) -> None:
        """Nothing is held or reserved, and no timer of the stream is left."""
        assert self.held.count == 0
        ended = {op.request_id for op in self.bench.shared.said(Finished)}
        assert {op.request_id for op in self.bench.shared.said(Placed)} <= ended
        assert self.bench.gateway.sending.inflight == 0
        assert not self.bench.shared.fleet.loads.inflight_tokens.any()
        assert self.stream.outbox.ended


def _headers(headers: Sequence[Header], *, ends: bool) -> pb.HttpHeaders:
    values = [pb.HeaderValue(key=name.decode(), raw_value=value) for name, value in headers]
    return pb.HttpHeaders(headers=pb.HeaderMap(headers=values), end_of_stream=ends)


def destination_of(message: pb.ProcessingResponse) -> str:
    """The endpoint that a choice names, which header and metadata must agree on."""
    common = (
        message.request_headers.response
        if message.WhichOneof("response") == "request_headers"
        else message.request_body.response
    )
    named = message.dynamic_metadata.fields["envoy.lb"].struct_value.fields[messages.DESTINATION].string_value
    assert set_headers(common.header_mutation)[messages.DESTINATION.encode()] == named.encode()
    assert common.clear_route_cache
    return named


def set_headers(mutation: pb.HeaderMutation) -> dict[bytes, bytes]:
    """The headers that a message sets; each overwrites an earlier one."""
    assert all(
        option.append_action == pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
        for option in mutation.set_headers
    )
    return {option.header.key.encode(): option.header.raw_value for option in mutation.set_headers}


def joined(responses: Sequence[pb.ProcessingResponse], kind: str) -> tuple[bytes, bool]:
    """The bytes of pieces of a body, and whether they end it."""
    pieces = [getattr(each, kind) for each in responses if each.WhichOneof("response") == kind]
    streamed = [piece.response.body_mutation.streamed_response for piece in pieces]
    assert all(len(piece.body) <= messages.CHUNK_BYTES_MAX for piece in streamed)
    assert not any(piece.end_of_stream for piece in streamed[:-1])
    return b"".join(piece.body for piece in streamed), bool(streamed) and streamed[-1].end_of_stream
