"""Placement: the parts that choose workers and keep the queue; one of each per replica.

Decider ── prices workers (`Feedback`), and asks whose turn it is; an option may extend it
RequestQueue ── keeps the others; Admission ── room of each worker
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Protocol

from policies import (
    ANY_LENGTH,
    GRACE_LAGS,
    GRACE_S,
    Admission,
    Decider,
    DeciderParts,
    DecisionRules,
    EarlyRejection,
    Feedback,
    Lanes,
    LengthClass,
    Pairing,
    PartnerRoom,
    Policy,
    QueueOrder,
    RequestQueue,
    ShadowObserver,
    Slots,
    WaitEnd,
    Waiting,
    class_of,
    make_policy,
    model_and_length,
)
from radix import FULL_ATTENTION, AttentionProfile
from router.errors import ClientError, NoWorker
from router.fleet import Core
from router.gateway.parsing import ParsedRequest
from router.metrics import Metrics
from router.settings import PlacementSettings, Settings


class PairsPort(Protocol):
    """Lets two workers share a request (`router.pairs`)."""

    def partners(self, admission: Admission, feedback: Feedback) -> PartnerRoom:
        """Return the room of the workers that end what others begin; called once, before `decider`."""

    def decider(self, parts: DeciderParts, rules: DecisionRules) -> Decider:
        """Make the decider of a replica."""

    def use(self, settings: Settings) -> None:
        """Apply new settings."""

    def splitting(
        self, slots: Slots, pairing: Pairing, parsed: ParsedRequest
    ) -> tuple[Slots, Pairing | None]:
        """Leave out the pairs that cannot share a request; `NoWorker` if no other worker is left."""

    def splits(self, protocol: str, parsed: ParsedRequest) -> bool:
        """True if two workers with this hand-over may share a request."""

    def alone(self, protocol: str, body: Sequence[bytes | memoryview]) -> Sequence[bytes | memoryview]:
        """Return the body for a decode worker that does all of a request."""


MakeShadow = Callable[[PlacementSettings], ShadowObserver | None]
"""Makes the observer that asks a second policy about a share of the prompts; None if it can ask none."""

MakePolicy = Callable[[str, Mapping[str, float]], Policy]
"""Makes a policy from its name and options; raises ValueError if there is none, or an option is wrong."""


class Placing:
    """Decides where the requests of one replica go.

    ``retry_after_s`` is told to a client that no worker can serve; ``make_policy`` makes a policy that may
    decide here; ``profiles`` are attention profiles by model, all other models have the ``default_profile``.
    """

    def __init__(
        self,
        settings: Settings,
        core: Core,
        metrics: Metrics,
        loop: asyncio.AbstractEventLoop,
        pairs: PairsPort | None = None,
        make_shadow: MakeShadow | None = None,
        make: MakePolicy = make_policy,
    ) -> None:
        fleet, registry, log = self._fleet, self._registry, self._log = core.fleet, core.registry, core.log
        self._metrics, self._make_shadow, self.make_policy = metrics, make_shadow, make
        self.feedback = Feedback(fleet, log, bytes_per_token=settings.placement.bytes_per_token)
        self.admission = Admission(settings.admission, fleet)
        partners = None if pairs is None else pairs.partners(self.admission, self.feedback)
        self._lanes = Lanes(self._slots_of, self._pairing_of, partners)
        fleet.tickets.watched = log.replica
        self.room = RequestQueue(
            log=log,
            fleet=fleet,
            admission=self.admission,
            lanes=self._lanes,
            rules=settings.queue,
            call_later=loop.call_later,
            grace_s=lambda: max(GRACE_S, GRACE_LAGS * log.status().lag_s),
            ended=self._wait_ended,
        )
        # Ids of attempts are short, since the log carries them, and random per process, since a
        # restarted replica keeps its name.
        numbered = secrets.token_urlsafe(6) + "%x"
        self.next_attempt_id: Callable[[], str] = map(numbered.__mod__, count()).__next__
        """Returns an id for an attempt, unique in the log."""
        parts = DeciderParts(
            fleet, self.feedback, log.replica, self.next_attempt_id, registry.limits, registry.engine_rule
        )
        make_decider = Decider if pairs is None else pairs.decider
        self.decider: Decider = make_decider(parts, self._rules(settings))
        self._shadowed: tuple[str, dict[str, float], float] = ("", {}, 0.0)
        self.profiles = {name: model.profile for name, model in settings.placement.models.items()}
        self.default_profile = self.profiles.get("*", FULL_ATTENTION)
        self.use(settings)

    def use(self, settings: Settings) -> None:
        """Apply new settings; waiting requests keep their deadlines."""
        placement = settings.placement
        self.retry_after_s = max(1.0, min(settings.fleet.health_check_interval_s, 5.0))
        self.feedback.bytes_per_token_default = placement.bytes_per_token
        self.room.rules = settings.queue
        self.admission.use(settings.admission)
        self.decider.use(self._rules(settings))
        self._watch(placement)

    def _watch(self, placement: PlacementSettings) -> None:
        shadowed = placement.shadow_policy, placement.shadow_policy_options, placement.shadow_ratio
        if shadowed != self._shadowed:
            self._shadowed, self.decider.shadow = shadowed, None
            if placement.shadow_policy and self._make_shadow is not None:
                self.decider.shadow = self._make_shadow(placement)

    def _rules(self, settings: Settings) -> DecisionRules:
        placement = settings.placement
        prefill = placement.prefill_policy
        return DecisionRules(
            self.make_policy(placement.policy, placement.options_of(placement.policy)),
            placement.block_tokens,
            4 * placement.block_tokens,
            placement.expected_output_tokens,
            None if settings.queue.disable_queue else self._order(settings),
            self.make_policy(prefill, placement.options_of(prefill)) if prefill else None,
        )

    def _order(self, settings: Settings) -> QueueOrder:
        level = settings.admission
        return QueueOrder(
            self.admission,
            self._lanes,
            settings.queue.uncached_weight,
            self._registry.step_tokens,
            EarlyRejection(level, self._fleet, self.feedback.learn_decodes) if level.promises else None,
        )

    def profile_of(self, model: str | None) -> AttentionProfile:
        """Return the attention profile of a model, by which prefix matches are reused."""
        return self.profiles.get(model or "", self.default_profile)

    def expected_tokens(self, parsed: ParsedRequest) -> int:
        """Return the expected tokens of a request, of prompts and answers; 0 without a prompt."""
        if not parsed.paths:
            return 0
        prompt_tokens, output_tokens = self.decider.expected_tokens(parsed)
        return round(max(prompt_tokens, 1.0)) + round(output_tokens) * parsed.n

    def waiting(self, classes: tuple[str, ...]) -> list[tuple[str, int, int]]:
        """Return for each class its name, its waiting requests here, and their uncached tokens."""
        sums = dict.fromkeys(classes, (0, 0))
        for ticket in self.room.tickets():
            requests, tokens = sums[class_of(ticket.flow)]
            sums[class_of(ticket.flow)] = requests + 1, tokens + ticket.uncached_tokens
        return [(name, requests, tokens) for name, (requests, tokens) in sums.items()]

    def nobody_for(self, model: str | None, length: LengthClass = ANY_LENGTH) -> ClientError | NoWorker:
        """Return the error for a request that no worker can take: unknown model, too long, or not now."""
        registry = self._registry
        if model is not None and not registry.knows(model):
            return ClientError(
                f"The model {model[:200]!r} is not served here; GET /v1/models lists those that are.",
                code="model_not_found",
                param="model",
                status=404,
            )
        lengths = self._fleet.buckets.lengths
        if lengths is not None and length.bucket >= len(lengths) and not registry.fits(model, length):
            return ClientError(
                f"The prompt and its expected answer are longer than {lengths.tokens_max[-1]} tokens, the "
                "most that any worker takes.",
                code="context_length_exceeded",
            )
        message = (
            f"No worker for the model {model!r} can take a request now."
            if model
            else "No worker can take a request now."
        )
        if length.exceeds_tokens:
            message += f" This one is for those that hold more than {length.exceeds_tokens} tokens."
        missing = registry.pairs.missing((model, length))
        return NoWorker(f"{message} {missing}".rstrip(), retry_after_s=self.retry_after_s)

    def _slots_of(self, lane: str) -> Slots:
        model, length = model_and_length(lane)
        return self._registry.eligible(model, self._log.now_us(), length)

    def _pairing_of(self, lane: str) -> Pairing | None:
        registry = self._registry
        if not registry.pairs.active:
            return None
        (model, length), now_us = model_and_length(lane), self._log.now_us()
        return registry.pairing(registry.eligible(model, now_us, length), model, now_us, length)

    def _wait_ended(self, ticket: Waiting, how: WaitEnd, wait_s: float) -> None:
        self._metrics.wait_ended(class_of(ticket.flow), how.value, wait_s)
