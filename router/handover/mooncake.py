"""vLLM's hand-over by Mooncake: both legs at once, joined by the id of a transfer.

    GET {bootstrap}/query  ->  {"0": {"engine_id": ...}, ...}     once per prefill engine, by rank
    prefill leg   "kv_transfer_params": {"do_remote_decode": true, "transfer_id"}, max_tokens 1, no stream
    decode leg    "kv_transfer_params": {"do_remote_prefill": true, "transfer_id", "remote_bootstrap_addr",
                  "remote_engine_id"}

As in vLLM's own proxy (``examples/disaggregated/mooncake_connector/mooncake_connector_proxy.py``). Ids:
`router.handover.engine_ids`. The decode engine waits for the KV, so the decode leg's first byte shows that it
came.
"""

from collections.abc import Sequence
from os import urandom

import msgspec

from router.destinations import Resolve
from router.engines import rank_line
from router.errors import UpstreamError
from router.handover.bootstrap import bootstrap_of
from router.handover.course import Course
from router.handover.engine_ids import EngineIds, Rank
from router.handover.pair_exchange import PairExchange
from router.handover.ports import Leg, Pair, PairedRequest, PairSink
from router.handover.vllm import FIELDS, PARAMS, VllmHandover, prefill_only


class MooncakeHandover(VllmHandover):
    """See `router.handover.ports.Handover`."""

    name = "mooncake"

    def __init__(self, resolve: Resolve | None = None) -> None:
        super().__init__()
        self._engines = EngineIds(self.counts, resolve=resolve)

    def send(self, pair: Pair, sink: PairSink) -> PairedRequest:
        """See `Handover`."""
        legs = _TransferExchange(sink, self._engines, pair)
        self._engines.ask(pair.prefill, legs.identified)
        return legs


class _TransferExchange(PairExchange):
    """Both legs of one request, sent when the ids of the prefill engine are known."""

    __slots__ = ("_engines", "_pair")

    def __init__(self, sink: PairSink, engines: EngineIds, pair: Pair) -> None:
        super().__init__(sink, pair.prefill)
        self._engines = engines
        self._pair: Pair | None = pair

    def upstream_head(self, status: int, lines: bytes, length: int | None) -> None:
        """See `UpstreamSink`."""
        if status >= 500:
            self._engines.forget(self._prefill_worker)
        super().upstream_head(status, lines, length)

    def prefill_failed(self, error: UpstreamError) -> None:
        """See `PairExchange`."""
        self._engines.forget(self._prefill_worker)
        super().prefill_failed(error)

    def identified(self, ranks: Sequence[Rank], error: UpstreamError | None) -> None:
        """Send both legs with the prefill engine's ids, or fail without them."""
        pair, self._pair = self._pair, None
        if self.course is Course.OVER or pair is None:
            return
        if error is not None:
            self.fail_leg(Leg.PREFILL, error)
            return
        random = urandom(24)
        transfer_id = "xfer-" + random[8:].hex()
        chosen = [each for each in ranks if each[0] == pair.prefill_rank]
        rank, engine_id = (chosen or ranks)[int.from_bytes(random[:8], "little") % len(chosen or ranks)]
        bootstrap = bootstrap_of(pair.prefill)
        give = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer_id}
        fetch = {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "transfer_id": transfer_id,
            "remote_bootstrap_addr": f"http://{bootstrap.host}:{bootstrap.port}",
            "remote_engine_id": engine_id,
        }
        body = FIELDS.find(pair.body)
        self.begin(
            pair,
            body.having(prefill_only(pair.parsed, body, msgspec.json.encode(give))),
            body.having({PARAMS: msgspec.json.encode(fetch)}),
            rank_line(rank) if pair.prefill_rank < 0 and len(ranks) > 1 else b"",
        )
