"""Where requests go: who may take them, by which policy, in whose turn. One of each part per replica.

PairDecider ── prices workers (`Feedback`, `DecodeSelector`, `Offloading`), and asks whose turn it is
RequestQueue ── keeps those whose turn it is not; Admission ── how much a worker is given
"""

import asyncio
import secrets
from functools import partial
from itertools import count

from policies import (
    ANY_BUCKET,
    GRACE_LAGS,
    GRACE_S,
    Admission,
    DecisionRules,
    DecodeSelector,
    EarlyRejection,
    Feedback,
    Lanes,
    Offload,
    Offloading,
    PairDecider,
    Pairing,
    QueueOrder,
    RequestQueue,
    Shadow,
    Slots,
    WaitEnd,
    Waiting,
    class_of,
    decode_policy,
    exceeded_tokens,
    make_policy,
    model_and_bucket,
)
from radix import FULL_ATTENTION, AttentionProfile
from router.errors import ClientError, NoWorker
from router.fleet import Core
from router.gateway.parsing import ParsedRequest
from router.metrics import Metrics
from router.settings import PlacementSettings, Settings


class Placing:
    """Decides where the requests of one replica go.

    Args:
        settings: The effective settings.
        core: The fleet.
        metrics: Told of waits that ended, and of what a shadow policy would have done.
        loop: Runs the timer of the waiting room.

    Attributes:
        admission: Knows which workers have room.
        decider: Chooses a worker.
        feedback: Learns from answers.
        room: The requests that wait.
        retry_after_s: When a client that no worker can serve should come again.
    """

    def __init__(
        self, settings: Settings, core: Core, metrics: Metrics, loop: asyncio.AbstractEventLoop
    ) -> None:
        fleet, registry, log = self._fleet, self._registry, self._log = core.fleet, core.registry, core.log
        self._metrics = metrics
        self.feedback = Feedback(fleet, log, bytes_per_token=settings.placement.bytes_per_token)
        self.admission = Admission(settings.admission, fleet)
        self._decode_selector = DecodeSelector(fleet, self.admission, self.feedback.learn_decodes)
        self._lanes = Lanes(self._slots_of, self._pairing_of, self._decode_selector)
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
        self._attempt_prefix = secrets.token_urlsafe(6)
        self._attempts = count()
        self.decider = PairDecider(
            fleet,
            self._rules(settings),
            self.feedback,
            replica=log.replica,
            next_attempt_id=self.next_attempt_id,
            decode_selector=self._decode_selector,
            offloading=Offloading(fleet, Offload(fleet.links), replica=log.replica),
            limits=registry.limits,
        )
        self._shadowed: tuple[str, dict[str, float], float] = ("", {}, 0.0)
        self._profiles = {name: model.profile for name, model in settings.placement.models.items()}
        self._default_profile = self._profiles.get("*", FULL_ATTENTION)
        self.use(settings)

    def use(self, settings: Settings) -> None:
        """Decide by these settings from now on; what waits keeps its deadline."""
        placement, offload = settings.placement, self.decider.offloading.offload
        self.retry_after_s = max(1.0, min(settings.fleet.health_check_interval_s, 5.0))
        self.feedback.bytes_per_token_default = placement.bytes_per_token
        self.room.rules = settings.queue
        self.admission.rules = settings.admission
        self._decode_selector.policy = decode_policy(
            placement.decode_policy, placement.options_of(placement.decode_policy)
        )
        self.decider.use(self._rules(settings))
        self._watch(placement)
        offload.rules = offload.states.rules = settings.offload

    def _watch(self, placement: PlacementSettings) -> None:
        """Ask the shadow policy that these settings name; one that was asked before keeps what it found."""
        wanted = placement.shadow_policy, placement.shadow_policy_options, placement.shadow_ratio
        if wanted != self._shadowed:
            self._shadowed, self.decider.shadow = wanted, None
            if placement.shadow_policy:
                self.decider.shadow = Shadow(
                    make_policy(placement.shadow_policy, placement.shadow_policy_options),
                    self._fleet,
                    placement.shadow_ratio,
                    partial(self._metrics.shadowed, placement.shadow_policy),
                )

    def _rules(self, settings: Settings) -> DecisionRules:
        """By what requests are placed."""
        placement = settings.placement
        prefill = placement.prefill_policy
        return DecisionRules(
            make_policy(placement.policy, placement.options_of(placement.policy)),
            placement.block_tokens,
            4 * placement.block_tokens,
            placement.expected_output_tokens,
            None if settings.queue.disable_queue else self._order(settings),
            make_policy(prefill, placement.options_of(prefill)) if prefill else None,
        )

    def _order(self, settings: Settings) -> QueueOrder:
        """How requests take turns."""
        level = settings.admission
        return QueueOrder(
            self.admission,
            self._lanes,
            settings.queue.uncached_weight,
            self._registry.step_tokens,
            EarlyRejection(level, self._fleet, self.feedback.learn_decodes) if level.promises else None,
        )

    def next_attempt_id(self) -> str:
        """A log-wide unique id of one attempt."""
        return f"{self._attempt_prefix}{next(self._attempts):x}"

    def profile_of(self, model: str | None) -> AttentionProfile:
        """What of a prefix match this model can reuse."""
        return self._profiles.get(model or "", self._default_profile)

    def expected_tokens(self, parsed: ParsedRequest) -> int:
        """Tokens that a request is expected to use, of prompts and answers; 0 without a prompt."""
        if not parsed.paths:
            return 0
        prompt_tokens, output_tokens = self.decider.expected_tokens(parsed)
        return round(max(prompt_tokens, 1.0)) + round(output_tokens) * parsed.n

    def waiting(self, classes: tuple[str, ...]) -> list[tuple[str, int, int]]:
        """For each class its name, how many requests wait here, and their uncached tokens."""
        sums = dict.fromkeys(classes, (0, 0))
        for said in self.room.tickets():
            requests, tokens = sums[class_of(said.flow)]
            sums[class_of(said.flow)] = requests + 1, tokens + said.uncached_tokens
        return [(name, requests, tokens) for name, (requests, tokens) in sums.items()]

    def nobody_for(self, model: str | None, bucket: int = ANY_BUCKET) -> ClientError | NoWorker:
        """Why no worker can take a request: its model is not served here, it is too long, or not now."""
        registry = self._registry
        if model is not None and not registry.knows(model):
            return ClientError(
                f"The model {model[:200]!r} is not served here; GET /v1/models lists those that are.",
                code="model_not_found",
                param="model",
                status=404,
            )
        lengths = self._fleet.buckets.lengths
        if lengths is not None and bucket >= len(lengths) and not registry.fits(model, bucket):
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
        if exceeded := exceeded_tokens(bucket):
            message += f" This one is for those that hold more than {exceeded} tokens."
        missing = registry.pairs.missing((model, bucket))
        return NoWorker(f"{message} {missing}".rstrip(), retry_after_s=self.retry_after_s)

    def _slots_of(self, lane: str) -> Slots:
        """Who may take the requests of a lane now."""
        model, bucket = model_and_bucket(lane)
        return self._registry.eligible(model, self._log.now_us(), bucket)

    def _pairing_of(self, lane: str) -> Pairing | None:
        """Who of them needs a partner."""
        registry = self._registry
        if not registry.pairs.active:
            return None
        (model, bucket), now_us = model_and_bucket(lane), self._log.now_us()
        return registry.pairing(registry.eligible(model, now_us, bucket), model, now_us, bucket)

    def _wait_ended(self, said: Waiting, how: WaitEnd, wait_s: float) -> None:
        self._metrics.wait_ended(class_of(said.flow), how.value, wait_s)
