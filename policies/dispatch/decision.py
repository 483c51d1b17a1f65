"""One decision: from a request and the workers that may take it to the operations that the log must carry.

    DecisionInput ──> views of request and workers ──> place ──> whose turn? ──> Decision (attempt, Placed)
                                                         │           └─────────> Queued (Waiting)
                                                         └──> Shed

Here each worker serves requests alone; `policies.disaggregation.pair_decision` extends this to pairs. Nothing
is sent, published or awaited, and no clock is read, so the simulator decides by the same lines
(`loadtest.simulator.replica`).
"""

import dataclasses
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from policies.dispatch.early_rejection import Outlook
from policies.dispatch.feedback import Attempt, Feedback
from policies.dispatch.ports import ScoredRequest, ShadowObserver
from policies.dispatch.request import DecisionInput, RequestFacts
from policies.dispatch.turns import QueueOrder, Turns
from policies.fleet.fleet import FleetState
from policies.fleet.pairing import Pairing
from policies.pricing.views import Candidates, Chosen, RequestView, Shed
from policies.scoring import Policy
from policies.scoring.placement import place
from policies.state.buckets import ANY_LENGTH, LengthClass
from policies.state.ops import BytesPerToken, Placed, Waiting
from radix import (
    COUNT_MAX,
    DURATION_US_MAX,
    HASH_BYTES,
    PAGE_TOKENS,
    TOKENS_MAX,
    AttentionProfile,
    Dialect,
    whole,
)

DOUBT = 1.25
"""Factor by which a prompt of bytes may have more tokens than expected, where an engine would refuse it.
[guess] Bytes per token are learned per model, and differ more between text and code than within either."""

BLOCK_SLACK = 0.02
"""Relative difference of tokens in a block that is worth saying (`policies.state.block_size`)."""

NO_PROMPT = (b"",)
"""Paths of a request without a prompt: it counts as an arrival (`policies.state.ops.Placed`)."""

NO_ENDS = (0, 0, False, None)
"""Last use, junction, ends and SGLang's profile of a request for a model without windows and states."""

TELLING_BLOCKS = 8
"""Shorter matches show nothing of a capacity (`policies.estimates.capacities`): an application's start is
never evicted, or has too few blocks to tell an eviction from rounding."""


class Decision(msgspec.Struct, frozen=True, gc=False):
    """A worker was chosen; ``placed`` must be published before the next decision.

    If an option lets a second worker share the request, ``decode`` is the decision on that half, under an id
    of its own.
    """

    attempt: Attempt
    placed: Placed
    decode: "Decision | None" = None


class Queued(msgspec.Struct, frozen=True, gc=False):
    """The request waits here, under the id of the attempt that will end the wait.

    Attributes:
        path: Packed block hashes of its (first) prompt.
        safe_blocks: Window-safe match of that on the chosen worker.
        waits_for_decode: True if only the room of a decode worker is lacking.
        waits_for_link: True if the room of a link is lacking.
    """

    waiting: Waiting
    path: bytes = b""
    safe_blocks: int = 0
    waits_for_decode: bool = False
    waits_for_link: bool = False


class DecisionRules(msgspec.Struct, frozen=True):
    """Rules of one replica's decisions.

    Attributes:
        block_tokens: Block size of token ids.
        block_bytes: Block size of text.
        expected_output_tokens: Expected answer of a request without a limit, in tokens.
        order: None: no request ever waits.
        prefill_policy: Policy where some workers only prefill; None: ``policy``.
    """

    policy: Policy
    block_tokens: int
    block_bytes: int
    expected_output_tokens: int
    order: QueueOrder | None = None
    prefill_policy: Policy | None = None


@dataclass(frozen=True, slots=True)
class DeciderParts:
    """Parts of a replica that its decisions rest on.

    ``next_attempt_id`` makes ids that are unique in the log. ``limits`` gives the ascending token limits that
    some workers of a model have and others exceed; none if all have the same. ``dialect`` gives the engine
    whose rule of windows and states the worker in a slot follows; None if that is unknown.
    """

    fleet: FleetState
    feedback: Feedback
    replica: str
    next_attempt_id: Callable[[], str]
    limits: Callable[[str | None], Sequence[int]] = lambda _model: ()
    dialect: Callable[[int], Dialect | None] = lambda _slot: None


class Decider:
    """Decides for one replica where each worker serves requests alone; ``shadow`` observes new requests."""

    def __init__(self, parts: DeciderParts, rules: DecisionRules) -> None:
        self._parts = parts
        self._fleet = parts.fleet
        self._bytes_per_token = parts.fleet.registers.of(BytesPerToken).known
        self._next_attempt_id, self._replica = parts.next_attempt_id, parts.replica
        self.use(rules)
        self.placed_count = 0
        self.shadow: ShadowObserver | None = None

    def use(self, rules: DecisionRules) -> None:
        """Take over other rules."""
        self.rules = rules
        self.policy = rules.policy
        self._turns: Turns | None = None
        if rules.order is not None:
            parts = self._parts
            self._turns = Turns(rules.order, parts.fleet, parts.replica, parts.next_attempt_id)
        self._block_tokens = float(rules.block_tokens)
        self._say_size(self._block_tokens)
        self._block_bytes = rules.block_bytes
        self._expected_output_tokens = min(float(rules.expected_output_tokens), float(TOKENS_MAX))

    def rehearsing(self, witness: ShadowObserver, policy: Policy | None = None) -> "Decider":
        """Return a copy that decides the same, or by another policy; it informs only the witness."""
        rules = self.rules
        if policy is not None:
            rules = msgspec.structs.replace(rules, policy=policy, prefill_policy=None)
        other = self._copy(dataclasses.replace(self._parts, next_attempt_id=str), rules)
        other.shadow, other.placed_count = witness, self.placed_count
        return other

    def length_of(self, parsed: RequestFacts) -> LengthClass:
        """Length class of a request.

        Its length is prompt plus expected output; of a batch, the longest prompt. Without buckets the limits
        of the engines count (`policies.state.buckets`), against the prompt plus the answer that the client
        allows.
        """
        buckets = self._fleet.buckets
        limits: Sequence[int] = ()
        if buckets.lengths is None:
            limits = self._parts.limits(parsed.model)
            if not limits:
                return ANY_LENGTH
        tokens, output_tokens = self.expected_tokens(parsed)
        if len(parsed.paths) > 1:
            sizes = [len(path) for path in parsed.paths]
            tokens *= max(sizes) / max(sum(sizes), 1)
        if not limits:
            return LengthClass(buckets.of_length(tokens + output_tokens))
        if not parsed.prompt_token_ids:
            tokens *= DOUBT
        exceeded = bisect_left(limits, tokens + (parsed.output_tokens_max or 1))
        return LengthClass(exceeds_tokens=limits[exceeded - 1]) if exceeded else ANY_LENGTH

    def expected_tokens(self, parsed: RequestFacts) -> tuple[float, float]:
        """Expected tokens of all prompts of a request, and of each answer."""
        bytes_per_token = self._parts.feedback.bytes_per_token(parsed.model or "")
        output_tokens, most = self._expected_output_tokens, parsed.output_tokens_max
        return (
            parsed.prompt_token_ids + parsed.prompt_bytes / bytes_per_token,
            output_tokens if most is None or most > output_tokens else most,
        )

    def decide(self, asked: DecisionInput) -> Decision | Queued | Shed:
        """Choose a worker, and say whether it is the request's turn there."""
        if asked.pairing is not None:
            return self._decide_pair(asked, asked.pairing)
        policy = self.policy
        view, candidates = self._seen(asked)
        chosen = place(view, candidates, policy)
        if self.shadow is not None and asked.arrives:
            model = asked.parsed.model or ""
            self.shadow.weighed(
                ScoredRequest(model, view, candidates, candidates, policy, chosen, asked.length.bucket)
            )
        if not isinstance(chosen, Chosen):
            return chosen
        turns = self._turns
        if turns is not None and asked.arrived_us >= 0:
            paths = asked.parsed.paths
            turn = turns.turn(asked, paths, view, candidates, chosen, policy)
            rejection = turns.order.rejection
            if rejection is not None and not asked.again:
                miss = rejection.judge(outlook_of(asked, view, candidates, chosen, turn), asked.now_us)
                if miss is not None:
                    return miss.shed
            if turn is not chosen and isinstance(turn, Waiting):
                return Queued(turn, paths[0], round(chosen.safe_tokens / candidates.tokens_per_block))
        return self._decision(asked, view, candidates, chosen)

    def _decide_pair(self, asked: DecisionInput, pairing: Pairing) -> Decision | Queued | Shed:
        """Choose where workers need partners (`policies.disaggregation`); here each serves alone."""
        return self.decide(msgspec.structs.replace(asked, pairing=None))

    def _copy(self, parts: DeciderParts, rules: DecisionRules) -> "Decider":
        return Decider(parts, rules)

    def _seen(self, asked: DecisionInput) -> tuple[RequestView, Candidates]:
        fleet, turns, queue = self._fleet, self._turns, None
        parsed = asked.parsed
        learned = self._bytes_per_token.get(parsed.model or "")
        bytes_per_token = (
            self._parts.feedback.bytes_per_token_default if learned is None else learned.bytes_per_token
        )
        # The same numbers as `expected_tokens`, with the block size that goes with them.
        prompt_tokens = parsed.prompt_bytes / bytes_per_token
        if parsed.prompt_token_ids:
            prompt_tokens += parsed.prompt_token_ids
            tokens_per_block = self._block_tokens
        else:
            tokens_per_block = self._block_bytes / bytes_per_token
        if not 1.0 <= prompt_tokens <= TOKENS_MAX:
            prompt_tokens = min(max(prompt_tokens, 1.0), TOKENS_MAX)
        output_tokens, most, answers = self._expected_output_tokens, parsed.output_tokens_max, parsed.n
        if most is not None and most < output_tokens:
            output_tokens = most
        if answers != 1:
            output_tokens = min(output_tokens * answers, TOKENS_MAX)
        if turns is not None and asked.arrived_us >= 0:
            queue = turns.queue_of(asked, len(asked.slots)) if fleet.tickets.count else turns.empty_queue
        candidates = fleet.candidates(
            asked.slots,
            parsed.paths,
            asked.profile,
            prompt_tokens,
            tokens_per_block,
            asked.now_us,
            asked.length.bucket,
            queue,
            parsed.tenant,
        )
        view = RequestView(
            parsed.key, parsed.prefix_key, prompt_tokens, output_tokens, self.placed_count, asked.home
        )
        return view, candidates

    def _decision(
        self, asked: DecisionInput, view: RequestView, candidates: Candidates, chosen: Chosen
    ) -> Decision:
        """Count the request as placed and make the operation for the log."""
        self.placed_count += 1
        paths = asked.parsed.paths
        fleet, slot, now_us = self._fleet, chosen.slot, candidates.now_us
        tokens_per_block, windowed = candidates.tokens_per_block, candidates.windowed
        safe_blocks = int(chosen.safe_tokens / tokens_per_block + 0.5)
        used_us, junction_blocks, ends, sglang = NO_ENDS
        if windowed:
            junction_blocks, ends, sglang = self._ends(asked, view, chosen, safe_blocks, tokens_per_block)
        elif safe_blocks >= TELLING_BLOCKS and len(paths) == 1:
            used_us = fleet.tree.used_us(slot, paths[0], safe_blocks)
        if tokens_per_block != self._said_size:
            self._say_size(tokens_per_block)
        request_id = asked.ticket_id or self._next_attempt_id()
        worker_id, guard_us = fleet.at_slot(slot).worker_id, fleet.loads.oldest_prefill_us(slot)
        attempt = Attempt(
            request_id,
            worker_id,
            chosen,
            now_us,
            guard_us if guard_us < now_us else now_us,
            tokens_per_block,
            asked.now_s,
            windowed,
            used_us,
            sglang,
        )
        service_us, context_tokens = chosen.service_s * 1e6, view.prompt_tokens + view.output_tokens
        placed = Placed(
            request_id,
            now_us,
            worker_id,
            self._replica,
            round(service_us) if service_us < DURATION_US_MAX else DURATION_US_MAX,
            chosen.uncached_tokens,
            round(context_tokens) if context_tokens < TOKENS_MAX else TOKENS_MAX,
            paths or NO_PROMPT,
            ends,
            asked.flow if fleet.tickets.count and asked.arrived_us >= 0 else "",
            safe_blocks,
            -1,  # a pair alone compares lengths
            junction_blocks,
            self._said_block_tokens,
            candidates.owner,
        )
        return Decision(attempt, placed)

    def _ends(
        self,
        asked: DecisionInput,
        view: RequestView,
        chosen: Chosen,
        safe_blocks: int,
        tokens_per_block: float,
    ) -> tuple[int, bool, AttentionProfile | None]:
        """Junction, ends and SGLang's profile of a request for a model with windows or states."""
        profile, paths = asked.profile, asked.parsed.paths
        junction_blocks = int(chosen.matched_tokens / tokens_per_block + 0.5)
        sglang = (profile.dialect or self._parts.dialect(chosen.slot)) == "sglang"
        ends = True
        if sglang and paths:
            # The answer shows the end of a prompt that ends inside a block, or leaves the held blocks.
            tail_tokens = view.prompt_tokens - len(paths[0]) // HASH_BYTES * tokens_per_block
            ends = junction_blocks <= safe_blocks and tail_tokens < PAGE_TOKENS
        return junction_blocks if len(paths) == 1 else 0, ends, profile if sglang else None

    def _say_size(self, tokens_per_block: float) -> None:
        """Find what operations say of the size of blocks: nothing, if it is about that of token ids."""
        differs = abs(tokens_per_block - self._block_tokens) > BLOCK_SLACK * self._block_tokens
        self._said_size = tokens_per_block
        self._said_block_tokens = whole(tokens_per_block, COUNT_MAX) if differs else 0


def outlook_of(
    asked: DecisionInput, view: RequestView, candidates: Candidates, chosen: Chosen, turn: Chosen | Waiting
) -> Outlook:
    """Outlook of a request where it goes now, or at the chosen worker that it waits for."""
    key_us = 0
    if isinstance(turn, Chosen):
        chosen = turn
    else:
        key_us = turn.key_us
    return Outlook(
        chosen.slot,
        candidates.slots,
        asked.lane,
        key_us,
        chosen.service_s,
        view.prompt_tokens,
        (candidates.now_us - asked.arrived_us) / 1e6,
        bool(asked.ticket_id),
    )
