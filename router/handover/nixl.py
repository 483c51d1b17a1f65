"""vLLM's hand-over by NIXL: first the prefill leg, then the decode leg with parameters of its answer.

    prefill leg   max_tokens 1, no stream, "kv_transfer_params": {"do_remote_decode": true, ...}
                    └─> answer: "kv_transfer_params": where its blocks are
    decode leg    the client's request with these parameters, to the byte
                    └─> pulls the blocks, answers

As in vLLM's own proxy (``tests/v1/kv_connector/nixl_integration/toy_proxy_server.py``). Both legs carry the
same ``x-request-id``. After an answer without parameters (no connector, or an aborted prefill) the decode
engine computes the prompt again: correct but expensive, so it is counted and logged. Without a decode leg the
blocks stay with the prefill engine until their lease is over (30 s).
"""

import logging
from collections import Counter

import msgspec

from router.errors import HandoverFailed
from router.handover.course import Course
from router.handover.fields import Body
from router.handover.pair_exchange import PairExchange
from router.handover.ports import Leg, Pair, PairedRequest, PairSink
from router.handover.vllm import FIELDS, PARAMS, VllmHandover, prefill_only
from router.log_pace import LogPace

logger = logging.getLogger(__name__)

ANSWER_BYTES_MAX = 32 << 20
"""Longest answer of a prefill leg. The block ids of a million tokens take half a megabyte per cache group;
the rest is for log probabilities of a prompt."""

_ASK = (
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,'
    b'"remote_block_ids":null,"remote_host":null,"remote_port":null}'
)


class _Answer(msgspec.Struct, gc=False):
    kv_transfer_params: msgspec.Raw = msgspec.Raw()
    usage: msgspec.Raw = msgspec.Raw()


_decode_answer = msgspec.json.Decoder(_Answer).decode


class NixlHandover(VllmHandover):
    """See `router.handover.ports.Handover`."""

    name = "nixl"

    def send(self, pair: Pair, sink: PairSink) -> PairedRequest:
        """See `Handover`."""
        return _PullExchange(pair, sink, self.counts, self.pace)


class _PullExchange(PairExchange):
    """Legs sent one after the other."""

    __slots__ = ("_counts", "_pace", "_parts", "_size", "_unsent")

    def __init__(self, pair: Pair, sink: PairSink, counts: Counter[str], pace: LogPace) -> None:
        super().__init__(sink, pair.prefill)
        self.leg = Leg.PREFILL
        self._counts = counts
        self._pace = pace
        self._parts: list[bytes] = []
        self._size = 0
        body = FIELDS.find(pair.body)
        # Emptied with the decode leg: its long answer must not keep a long prompt.
        self._unsent: list[tuple[Pair, Body]] = [(pair, body)]
        self._send_prefill(pair, body.having(prefill_only(pair.parsed, body, _ASK)))

    def prefill_data(self, data: bytes) -> None:
        """See `PairExchange`."""
        self._size += len(data)
        if self._size > ANSWER_BYTES_MAX:
            self._parts.clear()
            self.fail_leg(Leg.PREFILL, HandoverFailed("The prefill leg's answer is too long."))
        else:
            self._parts.append(data)

    def prefilled(self, sink: PairSink) -> None:
        """See `PairExchange`: now it is the decode leg's turn."""
        pair, body = self._unsent.pop()
        params, self.usage = _read(b"".join(self._parts))
        self._parts.clear()
        self._say_prefilled(sink)
        if self.course is Course.OVER:
            return
        if params is None:
            self._counts["params_missing"] += 1
            _say_missing(pair, self._pace)
            fields = {PARAMS: b"null"} if PARAMS in body else {}
        else:
            fields = {PARAMS: params}
        self.leg = Leg.DECODE
        self._send_decode(pair, body.having(fields))


def _say_missing(pair: Pair, pace: LogPace) -> None:
    worker_id = pair.prefill.worker.worker_id
    left_out = pace.due(worker_id)
    if left_out is None:
        return
    logger.warning(
        "a prefill leg answered without kv_transfer_params: its decode worker prefills again; start the "
        "engine with --kv-transfer-config",
        extra={
            "event": "handover.params_missing",
            "request_id": pair.request_id.decode("latin-1"),
            "worker_id": worker_id,
            "left_out": left_out,
        },
    )


def _read(answer: bytes) -> tuple[bytes | None, bytes]:
    try:
        fields = _decode_answer(answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None, b""
    params = bytes(fields.kv_transfer_params)
    usage = bytes(fields.usage)
    return params if params.startswith(b"{") else None, b'{"usage":%b}' % usage if usage else b""
