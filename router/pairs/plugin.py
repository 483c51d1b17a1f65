"""The option that lets two workers share a request, plugged into the gateway at two points.

    Placing ──> `PairPlugin` (`router.gateway.placing.PairsPort`)       decides: partners, links, offloading
    RequestExchange ──> `PairPlugin.share` (`router.gateway.exchange.ShareRequest`)     sends: both legs

A fleet of plain workers asks nothing of it but whether a decision has a second half.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from policies import Admission, Decider, DeciderParts, Decision, DecisionRules, Feedback
from policies.disaggregation import (
    DecodeSelector,
    LinkWatch,
    Offload,
    Offloading,
    PairDecider,
    PairDecision,
    decode_policy,
)
from router.fleet import Core
from router.gateway.attempt import Owner, Retries
from router.gateway.gateway import Gateway
from router.gateway.parsing import ParsedRequest
from router.gateway.record import RequestRecord
from router.handover import Handover, Pair, PairedRequest, PairSink
from router.offsets import edited
from router.pairs.pair_attempt import PairAttempt
from router.pairs.pair_reservation import PairReservation
from router.pairs.splitting import splitting
from router.pairs.stall_detector import StallDetector
from router.proxy import ClientConnection, ClientRequest
from router.settings import Settings


class PairPlugin:
    """Pairs of one gateway: their hand-over protocols, decisions and watches.

    Attributes:
        offloading: Decides in which site a request is prefilled.
        link_watch: Sees how late KV is on links.
        splitting: See `router.gateway.placing.PairsPort`.
        decode_selector, stall_detector: Exist once the gateway is made.
    """

    decode_selector: DecodeSelector
    stall_detector: StallDetector

    def __init__(
        self,
        settings: Settings,
        core: Core,
        handovers: Mapping[str, Handover],
        *,
        loop: asyncio.AbstractEventLoop,
        now_s: Callable[[], float],
    ) -> None:
        self._settings, self._core, self._handovers = settings, core, handovers
        self._loop, self._now_s = loop, now_s
        self.offloading = Offloading(core.fleet, Offload(core.fleet.links), replica=core.log.replica)
        self.link_watch = LinkWatch(core.fleet, core.log)
        self.splitting = partial(splitting, handovers)

    # For decisions (`router.gateway.placing.PairsPort`).

    def partners(self, admission: Admission, feedback: Feedback) -> DecodeSelector:
        """Return the room of the decode workers."""
        core = self._core
        self.decode_selector = DecodeSelector(core.fleet, admission, feedback.learn_decodes)
        self.stall_detector = StallDetector(
            core.fleet,
            feedback,
            self._settings.reliability,
            loop=self._loop,
            now_s=self._now_s,
            now_us=core.log.now_us,
        )
        return self.decode_selector

    def decider(self, parts: DeciderParts, rules: DecisionRules) -> Decider:
        """Make the decider of a replica."""
        self.use(self._settings)
        return PairDecider(parts, rules, decode_selector=self.decode_selector, offloading=self.offloading)

    def use(self, settings: Settings) -> None:
        """Apply new settings; requests in flight keep their workers."""
        placement, offload = settings.placement, self.offloading.offload
        self.decode_selector.policy = decode_policy(
            placement.decode_policy, placement.options_of(placement.decode_policy)
        )
        offload.rules = offload.states.rules = settings.offload
        self.stall_detector.rules = settings.reliability

    def splits(self, protocol: str, parsed: ParsedRequest) -> bool:
        """True if two workers with this hand-over may share a request, or if it is unknown."""
        handover = self._handovers.get(protocol)
        return handover is None or handover.splits(parsed)

    def alone(self, protocol: str, body: Sequence[bytes | memoryview]) -> Sequence[bytes | memoryview]:
        """Return the body for a decode worker that does all of a request."""
        return self._handovers[protocol].alone(body)

    # For exchanges (`router.gateway.exchange.ShareRequest`).

    def share(
        self,
        gateway: Gateway,
        decision: Decision,
        request: ClientRequest,
        record: RequestRecord,
        parsed: ParsedRequest,
        client: ClientConnection,
        owner: Owner,
        retries: Retries,
        *,
        send: Callable[[Pair, PairSink], PairedRequest] | None = None,
    ) -> PairAttempt:
        """Reserve on both workers and the link between them, and send; release again if that raises.

        ``send`` stands for the hand-over protocol where another process sends the legs: their progress is
        not heard then, so nothing watches them for stalls.
        """
        assert isinstance(decision, PairDecision)
        half = decision.decode
        assert half is not None
        prefill = gateway.registry.at_slot(decision.attempt.chosen.slot)
        decode = gateway.registry.at_slot(half.attempt.chosen.slot)
        pair = PairReservation(
            gateway,
            self.link_watch,
            self.stall_detector,
            parsed,
            prefill,
            decode,
            decision.attempt,
            half.attempt,
            decision.placed,
            half.placed,
            decision.shipping,
            decision.offload,
        )
        attempt = PairAttempt(gateway, record, parsed, client, owner, retries, pair, pair=pair)
        if decision.shipping is not None:
            pair.too_late = attempt.late
        record.pair = pair
        pair.make()
        try:
            context = b""
            if record.spans is not None:
                workers = {
                    "cacheway.prefill_worker": decision.attempt.worker_id,
                    "cacheway.worker": half.attempt.worker_id,
                }
                context = record.spans.sent(decision.attempt, workers, gateway.now_s())
            legs = Pair(
                parsed,
                request.head,
                gateway.reader.forwarding.lines(request, record.worker_request_id, context, record.hops),
                edited(request.body, parsed.edits),
                record.request_id,
                prefill,
                decode,
                record.attempts == 1,
                gateway.fleet.at_slot(decision.attempt.chosen.slot).rank,
                gateway.fleet.at_slot(half.attempt.chosen.slot).rank,
            )
            attempt.upstream = pair.request = (send or self._handovers[prefill.protocol].send)(legs, attempt)
            if send is not None:
                self.stall_detector.forget(pair)
        except BaseException:
            pair.release(abandoned=True)
            raise
        return attempt
