"""SGLang's hand-over: both engines get the request at the same time, and meet in a room.

    "bootstrap_host", "bootstrap_port"   of the prefill engine's bootstrap server
    "bootstrap_room"                     a random number of this request alone
    "rid"                                ours, so that `POST /abort_request` can name the legs
    "routed_dp_rank"                     the data-parallel rank that does it, if the gateway chose one
                                         ("data_parallel_rank" before 0.5.10)
    "disagg_prefill_dp_rank"             the rank to ask for the KV

Engines that are told no rank agree on one by the room: ``room % dp_size`` prefills. So the room of a request
with a chosen rank leads there, too: an engine refuses a room that leads elsewhere, unless
"disagg_prefill_dp_rank" is in the prefill leg, as the further rooms of a batch need it (SGLang 0.5.23
``disaggregation/common/conn.py``, ``CommonKVSender``; ``disaggregation/decode.py``,
``_resolve_prefill_dp_rank``).

A request of several prompts needs a room for each. It gets one number, from which engines count up
(``_normalize_bootstrap_params`` in ``srt/managers/io_struct.py``), as they make ``rid_0``, ``rid_1``, ... of
the id (``_normalize_rid``). A client's own ``rid`` is replaced: two clients could choose the same one, and an
abort ends all that begin with it (``srt/managers/scheduler.py``).

Not split, but left to plain workers, are

* ``/v1/responses`` and ``/v1/messages``, which have none of these fields (``entrypoints/openai/protocol.py``,
  ``entrypoints/anthropic/protocol.py``); an engine that gets a request without a room may stop altogether
  (the assertion in ``managers/data_parallel_controller.py``);
* several samples (``n``) of a prompt, which fail or hang in the same room (pull requests 24223, 26486, 30723
  and 40297 of SGLang, none of them merged);
* embeddings and scores, which have nothing to decode.

The prefill leg never streams, so that its failure has a status. It answers when its KV has been sent. If it
fails, the decode leg would wait for its room for minutes (``SGLANG_DISAGGREGATION_WAITING_TIMEOUT``), so it
is ended at once, and the other way round. An engine looks only every four seconds whether a client has left
(``SGLANG_REQUEST_STATE_WAIT_TIMEOUT``), so `POST /abort_request` goes beside closing. The decode leg's answer
lacks log probabilities of the prompt.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from os import urandom

import msgspec

from router.errors import UpstreamError
from router.handover.bootstrap import bootstrap_of
from router.handover.fields import Fields, Piece
from router.handover.pair_exchange import PairExchange
from router.handover.ports import Leg, Pair, PairedRequest, PairSink, RequestFacts
from router.proxy import RequestHead, SilentSink, UpstreamRequest, WorkerPool

ABORT_S = 5.0
"""Time for an engine to answer to an abort."""

ABORTED_MAX = 64
"""Prompts of a batch that are aborted by their ids; closing the connection ends the others, seconds later."""

_SPLIT = frozenset({"/v1/chat/completions", "/v1/completions", "/generate"})

_ROOM_MAX = (1 << 63) - (1 << 21)
"""63 bits, far enough from the end to count up a million rooms, from one that leads to a rank."""

_FIELDS = Fields(
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "rid",
    "routed_dp_rank",
    "disagg_prefill_dp_rank",
    # With these a client could misdirect its request.
    "data_parallel_rank",
    "bootstrap_pair_key",
    "decode_tp_size",
    "stream",
    "stream_options",
)
_NOT_THE_CLIENTS = (
    "routed_dp_rank",
    "disagg_prefill_dp_rank",
    "data_parallel_rank",
    "bootstrap_pair_key",
    "decode_tp_size",
)


class SglangHandover:
    """See `router.handover.ports.Handover`."""

    name = "sglang"

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def splits(self, parsed: RequestFacts) -> bool:
        """See `Handover`."""
        return parsed.endpoint in _SPLIT and parsed.n == 1

    def alone(self, body: Sequence[Piece]) -> Sequence[Piece]:
        """Return the body: its decode engines compute nothing alone."""
        return body

    def send(self, pair: Pair, sink: PairSink) -> PairedRequest:
        """See `Handover`."""
        random = urandom(24)
        room = int.from_bytes(random[:8], "little") % _ROOM_MAX + 1  # 0 means none
        if pair.prefill_rank >= 0:
            room += pair.prefill_rank - room % len(pair.prefill.places) + len(pair.prefill.places)
        rid = random[8:].hex()
        body = _FIELDS.find(pair.body)
        bootstrap = bootstrap_of(pair.prefill)
        both = {name: b"null" for name in _NOT_THE_CLIENTS if name in body}
        both["bootstrap_host"] = bootstrap.host_json
        both["bootstrap_port"] = b"%d" % bootstrap.port
        both["bootstrap_room"] = b"%d" % room
        both["rid"] = b'"%b"' % rid.encode()
        if pair.prefill_rank >= 0:
            both["disagg_prefill_dp_rank"] = b"%d" % pair.prefill_rank
        prefill = {**both, **_rank_fields(pair.prefill_rank), "stream": b"false"}
        decode = {**both, **_rank_fields(pair.decode_rank)}
        if "stream_options" in body:
            prefill["stream_options"] = b"null"
        legs = _RoomExchange(pair, sink, rid, self.counts)
        legs.begin(pair, body.having(prefill), body.having(decode))
        return legs


def _rank_fields(rank: int) -> dict[str, bytes]:
    return {} if rank < 0 else dict.fromkeys(("routed_dp_rank", "data_parallel_rank"), b"%d" % rank)


class _RoomExchange(PairExchange):
    """Both legs of one request, and their aborts."""

    __slots__ = ("_counts", "_lines", "_pools", "_rids")

    def __init__(self, pair: Pair, sink: PairSink, rid: str, counts: Counter[str]) -> None:
        super().__init__(sink, pair.prefill)
        self._counts = counts
        self._lines = pair.lines
        self._pools = {Leg.PREFILL: pair.prefill.pool, Leg.DECODE: pair.decode.pool}
        self._rids = _rids(rid, pair.parsed)

    def prefilled(self, sink: PairSink) -> None:
        """See `PairExchange`: SGLang answers when the KV has been sent."""
        self._say_shipped(sink)

    def ended(self, leg: Leg) -> None:
        """See `PairExchange`."""
        self._counts["aborted"] += 1
        for rid in self._rids:
            Abort(self._pools[leg], self._lines, rid)


def _rids(rid: str, parsed: RequestFacts) -> Sequence[str]:
    """Return the ids that an engine makes of one; it aborts the exact id only (`TokenizerManager`)."""
    if parsed.endpoint == "/v1/chat/completions":
        return (rid,)
    prompts = min(max(1, len(parsed.paths)), ABORTED_MAX)
    return (rid, *(f"{rid}_{index}" for index in range(prompts)))


class Abort(SilentSink):
    """Tells an engine to forget a request, for at most ``wait_s`` seconds, and ignores its answer."""

    __slots__ = ("_request", "_timer")

    def __init__(self, pool: WorkerPool, lines: bytes, rid: str, wait_s: float = ABORT_S) -> None:
        headers = [
            line for line in lines.splitlines(keepends=True) if not line.lower().startswith(b"content-type:")
        ]
        headers.append(b"content-type: application/json\r\n")
        body = msgspec.json.encode({"rid": rid})
        self._request: UpstreamRequest = pool.send(
            RequestHead(b"POST", b"/abort_request"), b"".join(headers), (body,), self
        )
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._request.abort)

    def upstream_end(self) -> None:
        """See `UpstreamSink`."""
        self._timer.cancel()

    def upstream_failed(self, error: UpstreamError) -> None:
        """See `UpstreamSink`."""
        self._timer.cancel()
