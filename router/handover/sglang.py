"""SGLang's hand-over: both engines get the request at the same time, and meet in a room.

    "bootstrap_host", "bootstrap_port"   where the prefill engine's bootstrap server is
    "bootstrap_room"                     a random number that nobody else uses
    "rid"                                ours, so that `POST /abort_request` can name both legs
    "routed_dp_rank"                     who does it, of an engine with data-parallel ranks
    "disagg_prefill_dp_rank"             in the decode leg: whom to ask for the KV

A request of several prompts or samples needs a room for each. It gets one number, which engines count up from
(``_normalize_bootstrap_params`` in ``srt/managers/io_struct.py``): they alone know how many there are.
An id is written in the same way (``_normalize_rid``), and an abort names all that begin with it
(``abort_request`` in ``srt/managers/scheduler.py``): so a client's own ``rid`` must not stand, since a
short one would be the beginning of other people's.

The prefill leg never streams, whatever the client wants: in a stream its failure would be an event after a
status 200. It answers when its KV has been sent. If it fails, the decode leg would wait for its room for
minutes (``SGLANG_DISAGGREGATION_WAITING_TIMEOUT``), so it is aborted at once, and the other way round. An
engine looks only every few seconds whether a client has left; hence `POST /abort_request`, beside closing.
"""

import asyncio
from os import urandom
from typing import TYPE_CHECKING

import msgspec

from router.handover.bootstrap import bootstrap_fields, data_parallel_ranks
from router.handover.fields import with_fields
from router.handover.legs import Legs, PrefillSink
from router.handover.port import Leg, Pair, PairedRequest, PairSink
from router.proxy import UpstreamRequest, WorkerPool

if TYPE_CHECKING:
    from router.gateway.parsing import ParsedRequest

ABORT_S = 5.0
"""How long an engine may take to answer to an abort before we forget it."""

_GENERATING = frozenset({"/v1/chat/completions", "/v1/completions", "/generate"})
"""Endpoints whose requests have the fields."""

_ROOM_MASK = (1 << 63) - (1 << 20) - 1
"""63 bits, far enough from the end to count up a million rooms."""


class SglangHandover:
    """See `router.handover.port.Handover`."""

    name = "sglang"
    concurrent = True
    decode_keeps_prefixes = False
    decode_prefills = False

    def splits(self, parsed: "ParsedRequest") -> bool:
        """See `Handover`."""
        return parsed.endpoint in _GENERATING

    def send(self, pair: Pair, sink: PairSink) -> PairedRequest:
        """See `Handover`."""
        random = urandom(24)
        room = int.from_bytes(random[:8], "little") & _ROOM_MASK
        rid = random[8:].hex()
        fields = b'%b,"bootstrap_room":%d,"rid":"%b"' % (bootstrap_fields(pair.prefill), room, rid.encode())
        prefill_fields = fields + b',"stream":false'
        decode_fields = fields
        prefill_ranks, decode_ranks = data_parallel_ranks(pair.prefill), data_parallel_ranks(pair.decode)
        if prefill_ranks > 1:
            rank = room % prefill_ranks
            prefill_fields += b',"routed_dp_rank":%d' % rank
            decode_fields += b',"disagg_prefill_dp_rank":%d' % rank
        if decode_ranks > 1:
            decode_fields += b',"routed_dp_rank":%d' % (room // prefill_ranks % decode_ranks)
        return _RoomLegs(pair, sink, rid, prefill_fields, decode_fields)


class _RoomLegs(Legs):
    """Both legs of one request."""

    __slots__ = ("_lines", "_pools", "_rid")

    def __init__(
        self, pair: Pair, sink: PairSink, rid: str, prefill_fields: bytes, decode_fields: bytes
    ) -> None:
        super().__init__(sink)
        self._rid = rid
        self._lines = pair.lines
        self._pools = {Leg.PREFILL: pair.prefill.pool, Leg.DECODE: pair.decode.pool}
        self._prefill = pair.prefill.pool.send(
            pair.method,
            pair.path,
            pair.query,
            pair.lines,
            with_fields(pair.body, prefill_fields),
            PrefillSink(self),
        )
        self._answering = pair.decode.pool.send(
            pair.method,
            pair.path,
            pair.query,
            pair.lines,
            with_fields(pair.body, decode_fields),
            self,
            patient=not pair.parsed.stream,
        )

    def _prefill_over(self, sink: PairSink) -> None:
        """SGLang answers when the KV has been sent."""
        self._say_shipped(sink)

    def _ended(self, leg: Leg) -> None:
        _Abort(self._pools[leg], self._lines, self._rid)


class _Abort:
    """Tells an engine to forget a request; whatever comes of it."""

    __slots__ = ("_request", "_timer")

    def __init__(self, pool: WorkerPool, lines: bytes, rid: str) -> None:
        own = b"".join(
            line for line in lines.splitlines(keepends=True) if not line.lower().startswith(b"content-type:")
        )
        body = msgspec.json.encode({"rid": rid})
        lines = own + b"content-type: application/json\r\n"
        self._request: UpstreamRequest = pool.send(b"POST", b"/abort_request", b"", lines, (body,), self)
        self._timer = asyncio.get_running_loop().call_later(ABORT_S, self._request.abort)

    def upstream_head(self, status: int, lines: bytes, length: int | None) -> None:
        """See `UpstreamSink`."""

    def upstream_data(self, data: bytes) -> None:
        """See `UpstreamSink`."""

    def upstream_end(self) -> None:
        """See `UpstreamSink`."""
        self._timer.cancel()

    def upstream_failed(self, error: Exception) -> None:
        """See `UpstreamSink`."""
        self._timer.cancel()
