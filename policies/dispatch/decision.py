"""One decision: from a request and the workers that may take it to the operations that the log must hear.

    RequestFacts, slots ──> tokens, candidates ──> place ──> whose turn? ──> Decision (attempt, Placed)
                                                     │           └─────────> Hold (Waiting)
                                                     └──> Shed

Here each worker serves requests alone. Where a prefill worker and a decode worker share them,
`policies.dispatch.pair_decision` takes the same steps, and some in between. Whose turn it is says
`policies.dispatch.turns`; a request that would miss its service level is rejected whatever its turn
(`policies.dispatch.early_rejection`).

Nothing is sent, published or awaited here, and no clock is read. So the simulator decides with the very same
lines (`loadtest.simulator.replica`).
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence

import msgspec

from policies.disaggregation.offload import OffloadVerdict
from policies.dispatch.early_rejection import Outlook
from policies.dispatch.feedback import Attempt, Feedback
from policies.dispatch.request import RequestFacts
from policies.dispatch.turns import QueueEntry, QueueOrder, Turns
from policies.fleet.fleet import FleetState
from policies.observing.shadow import ScoredRequest, ShadowObserver
from policies.pricing.views import Candidates, Chosen, RequestView, Shed, Slots
from policies.scoring import Policy
from policies.scoring.placement import place
from policies.state.buckets import ANY_BUCKET, beyond
from policies.state.ops import Placed, Shipping, Waiting
from policies.state.queue_view import QueueView
from radix import COUNT_MAX, DURATION_US_MAX, TOKENS_MAX, AttentionProfile, whole

DOUBT = 1.25
"""A prompt of bytes may have so many times the tokens that are expected, where its engine would refuse it.
[guess] Bytes per token are learned per model, and differ more between text and code than within either."""

BLOCK_SLACK = 0.02
"""Relative difference of tokens in a block that is worth saying (`policies.state.block_size`)."""

NO_PROMPT = (b"",)
"""Paths of a request without a prompt: it is an arrival all the same (`policies.state.ops.Placed`)."""


TELLING_BLOCKS = 8
"""Shorter matches tell nothing of a capacity (`policies.estimates.capacities`): an application's start is
never evicted, or too few blocks to tell an eviction from rounding."""


class Decision(msgspec.Struct, frozen=True, gc=False):
    """A worker was chosen, or a prefill worker and a decode worker.

    Attributes:
        attempt: What the answer must be judged by.
        placed: What the log must hear, before anybody else decides.
        decode: The same of the decode worker, under an id of its own; None if one worker does all.
        shipping: What the log must hear of the KV that will cross a link; None if none does.
        offload: Why the prefill is in this site or in another; None if there was no choice.
    """

    attempt: Attempt
    placed: Placed
    decode: "Decision | None" = None
    shipping: Shipping | None = None
    offload: OffloadVerdict | None = None


class Queued(msgspec.Struct, frozen=True, gc=False):
    """It is not the request's turn: it waits here.

    Attributes:
        waiting: What the log must hear of it; under the id of the attempt that will end the wait.
        path: Packed block hashes of its (first) prompt.
        safe_blocks: How much of that the chosen worker has.
        waits_for_decode: Whether no decode worker has room that could end what the chosen worker begins.
        waits_for_link: Whether it waits until a link has room for its KV.
    """

    waiting: Waiting
    path: bytes = b""
    safe_blocks: int = 0
    waits_for_decode: bool = False
    waits_for_link: bool = False


class DecisionRules(msgspec.Struct, frozen=True):
    """By what one replica decides.

    Attributes:
        policy: How workers are priced.
        block_tokens: Block size of token ids.
        block_bytes: Block size of text.
        expected_output_tokens: Of a request that states no limit.
        order: How requests take turns; None: nobody ever waits.
        prefill_policy: How workers are priced where some of them only prefill; None: as everywhere.
    """

    policy: Policy
    block_tokens: int
    block_bytes: int
    expected_output_tokens: int
    order: QueueOrder | None = None
    prefill_policy: Policy | None = None


class Decider:
    """Decides for one replica where each worker serves requests alone; `PairDecider` knows the others, too.

    Args:
        fleet: The workers, their caches and loads.
        rules: How it decides.
        feedback: Knows the bytes of a token.
        replica: Name of this replica.
        next_attempt_id: Makes ids that are unique in the log.
        limits: Token limits that some workers of a model have and others exceed, ascending; None: all are
            alike.

    Attributes:
        rules: As given, or the latest.
        policy: Theirs.
        placed_count: Requests placed so far.
        shadow: Is told how each request was weighed when it came; None: nothing is told.
    """

    def __init__(
        self,
        fleet: FleetState,
        rules: DecisionRules,
        feedback: Feedback,
        *,
        replica: str,
        next_attempt_id: Callable[[], str],
        limits: Callable[[str | None], Sequence[int]] | None = None,
    ) -> None:
        self._fleet = fleet
        self._limits = limits
        self._feedback = feedback
        self._replica = replica
        self._next_attempt_id = next_attempt_id
        self._turns = Turns(fleet, replica, next_attempt_id)
        self.use(rules)
        self.placed_count = 0
        self.shadow: ShadowObserver | None = None

    def use(self, rules: DecisionRules) -> None:
        """Decide by these from now on."""
        self.rules = rules
        self.policy = rules.policy
        self._order = rules.order
        self._block_tokens = float(rules.block_tokens)
        self._block_bytes = rules.block_bytes
        self._expected_output_tokens = float(rules.expected_output_tokens)

    def bucket_of(self, parsed: RequestFacts) -> int:
        """Number of the length bucket of a request (`policies.BucketMembers.of_length`).

        Its length is its prompt and expected output; of a batch, the longest prompt. Without buckets, what
        engines can hold counts (`policies.state.buckets`): the prompt and the answer that the client allows.
        """
        buckets = self._fleet.buckets
        limits: Sequence[int] = ()
        if buckets.lengths is None:
            limits = self._limits(parsed.model) if self._limits is not None else ()
            if not limits:
                return ANY_BUCKET
        tokens, output_tokens = self.expected_tokens(parsed)
        if len(parsed.paths) > 1:
            sizes = [len(path) for path in parsed.paths]
            tokens *= max(sizes) / max(sum(sizes), 1)
        if not limits:
            return buckets.of_length(tokens + output_tokens)
        if not parsed.prompt_token_ids:
            tokens *= DOUBT
        exceeded = bisect_left(limits, tokens + (parsed.output_tokens_max or 1))
        return beyond(limits[exceeded - 1]) if exceeded else ANY_BUCKET

    def expected_tokens(self, parsed: RequestFacts) -> tuple[float, float]:
        """Tokens that are expected of all prompts of a request, and of each answer."""
        bytes_per_token = self._feedback.bytes_per_token(parsed.model or "")
        output_tokens, most = self._expected_output_tokens, parsed.output_tokens_max
        return (
            parsed.prompt_token_ids + parsed.prompt_bytes / bytes_per_token,
            output_tokens if most is None else min(output_tokens, most),
        )

    def decide(
        self,
        parsed: RequestFacts,
        profile: AttentionProfile,
        slots: Slots,
        now_us: int,
        now_s: float,
        entry: QueueEntry | None = None,
        bucket: int = ANY_BUCKET,
    ) -> Decision | Queued | Shed:
        """Choose a worker, and say whether it is the request's turn there.

        Args:
            parsed: The request.
            profile: Attention of its model: which part of a match it can reuse.
            slots: Who may take it, not empty.
            now_us: Log time.
            now_s: Monotonic seconds, at which it will have been sent.
            entry: What it brings along if it may have to wait; None: it never does.
            bucket: As `bucket_of` says.
        """
        view, candidates = self._seen(parsed, profile, slots, now_us, entry, bucket)
        policy = self.policy
        chosen = place(view, candidates, policy)
        if self.shadow is not None and arrives(entry):
            self.shadow.weighed(
                ScoredRequest(parsed.model or "", view, candidates, candidates, policy, chosen, bucket)
            )
        if isinstance(chosen, Shed):
            return chosen
        order = self._order
        if entry is not None and order is not None:
            turn = self._turns.turn(order, entry, parsed.paths, view, candidates, chosen, policy)
            if order.rejection is not None and not entry.again:
                miss = order.rejection.judge(outlook_of(entry, view, candidates, chosen, turn), now_us)
                if miss is not None:
                    return miss.shed
            if isinstance(turn, Waiting):
                return Queued(turn, parsed.paths[0], round(chosen.safe_tokens / candidates.tokens_per_block))
            chosen = turn
        return self._decision(parsed, profile, view, candidates, chosen, entry, now_s)

    def _seen(
        self,
        parsed: RequestFacts,
        profile: AttentionProfile,
        slots: Slots,
        now_us: int,
        entry: QueueEntry | None,
        bucket: int,
    ) -> tuple[RequestView, Candidates]:
        """Views of the request and of the workers that may take it."""
        fleet, order, queue = self._fleet, self._order, None
        bytes_per_token = self._feedback.bytes_per_token(parsed.model or "")
        prompt_tokens = parsed.prompt_token_ids + parsed.prompt_bytes / bytes_per_token
        prompt_tokens = min(max(prompt_tokens, 1.0), TOKENS_MAX)
        output_tokens, most = self._expected_output_tokens, parsed.output_tokens_max
        if most is not None:
            output_tokens = min(output_tokens, most)
        if entry is not None and order is not None:
            tickets = fleet.tickets
            queue = QueueView(
                tickets if tickets.count else None,
                entry.lane,
                len(slots),
                entry.arrived_us,
                order.k,
                order.admission.rules.backlog_target_s,
                tickets.get(entry.ticket_id) if entry.ticket_id else None,
            )
        candidates = fleet.candidates(
            slots,
            parsed.paths,
            profile,
            prompt_tokens,
            self._block_tokens if parsed.prompt_token_ids else self._block_bytes / bytes_per_token,
            now_us,
            bucket,
            queue,
        )
        view = RequestView(
            parsed.key,
            parsed.prefix_key,
            prompt_tokens,
            min(output_tokens * parsed.n, TOKENS_MAX),
            self.placed_count,
        )
        return view, candidates

    def _decision(
        self,
        parsed: RequestFacts,
        profile: AttentionProfile,
        view: RequestView,
        candidates: Candidates,
        chosen: Chosen,
        entry: QueueEntry | None,
        now_s: float,
    ) -> Decision:
        """Count the request as placed, and return what the answer is judged by and what the log must hear."""
        self.placed_count += 1
        fleet, slot, now_us, windowed = self._fleet, chosen.slot, candidates.now_us, profile.needs_ends
        tokens_per_block = candidates.tokens_per_block
        safe_blocks = int(chosen.safe_tokens / tokens_per_block + 0.5)
        attempt = Attempt(
            entry.ticket_id if entry is not None and entry.ticket_id else self._next_attempt_id(),
            fleet.at_slot(slot).worker_id,
            chosen,
            now_us,
            min(fleet.loads.oldest_prefill_us(slot), now_us) if chosen.safe_tokens else 0,
            tokens_per_block,
            now_s,
            windowed,
            fleet.tree.used_us(slot, parsed.paths[0], safe_blocks)
            if safe_blocks >= TELLING_BLOCKS and not windowed
            else 0,
        )
        placed = Placed(
            attempt.request_id,
            now_us,
            attempt.worker_id,
            self._replica,
            whole(chosen.service_s * 1e6, DURATION_US_MAX),
            chosen.uncached_tokens,
            whole(view.prompt_tokens + view.output_tokens, TOKENS_MAX),
            parsed.paths or NO_PROMPT,
            windowed,
            entry.flow if entry is not None and fleet.tickets.count else "",
            safe_blocks,
            junction_blocks=int(chosen.matched_tokens / tokens_per_block + 0.5)
            if windowed and len(parsed.paths) == 1
            else 0,
            block_tokens=0
            if abs(tokens_per_block - self._block_tokens) <= BLOCK_SLACK * self._block_tokens
            else whole(tokens_per_block, COUNT_MAX),
        )
        return Decision(attempt, placed)


def arrives(entry: QueueEntry | None) -> bool:
    """True if a request has just come: it neither waits nor was dispatched before."""
    return entry is None or not (entry.ticket_id or entry.again)


def outlook_of(
    entry: QueueEntry, view: RequestView, candidates: Candidates, chosen: Chosen, turn: Chosen | Waiting
) -> Outlook:
    """What a request can expect where it goes now, or waits for the chosen worker."""
    key_us = 0
    if isinstance(turn, Chosen):
        chosen = turn
    else:
        key_us = turn.key_us
    return Outlook(
        chosen.slot,
        candidates.slots,
        entry.lane,
        key_us,
        chosen.service_s,
        view.prompt_tokens,
        (candidates.now_us - entry.arrived_us) / 1e6,
        bool(entry.ticket_id),
    )
