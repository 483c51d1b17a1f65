"""One decision: from a request and the workers that may take it to what is said about it in the log.

    ParsedRequest, slots ──> tokens, candidates ──> place ──> Decision (attempt, Placed)  or  Shed

Nothing is sent, published or awaited here, and no clock is read. So the simulator decides with the very same
lines (`loadtest.simulator.replica`).
"""

from collections.abc import Callable

import msgspec

from policies import ANY_BUCKET, Chosen, FleetState, Placed, Policy, RequestView, Shed, place
from radix import AttentionProfile
from router.fleet.registry import Slots
from router.gateway.feedback import Attempt, Feedback
from router.gateway.parsing import ParsedRequest

NO_PROMPT = (b"",)
"""Paths of a request without a prompt: it is an arrival all the same (`policies.ops.Placed`)."""


class Decision(msgspec.Struct, frozen=True, gc=False):
    """A worker was chosen.

    Attributes:
        attempt: What the answer must be judged by.
        placed: What the log must hear, before anybody else decides.
    """

    attempt: Attempt
    placed: Placed


class Decider:
    """Decides for one replica.

    Args:
        fleet: What is known of the workers.
        policy: How they are priced.
        feedback: Knows the bytes of a token.
        replica: Who decides.
        next_attempt_id: Makes ids that are unique in the log.
        block_tokens: Block size of token ids.
        block_bytes: Block size of text.
        expected_output_tokens: Of a request that states no limit.

    Attributes:
        policy: As given.
        placed_count: Requests placed so far.
    """

    def __init__(
        self,
        fleet: FleetState,
        policy: Policy,
        feedback: Feedback,
        *,
        replica: str,
        next_attempt_id: Callable[[], str],
        block_tokens: int,
        block_bytes: int,
        expected_output_tokens: int,
    ) -> None:
        self._fleet = fleet
        self.policy = policy
        self._feedback = feedback
        self._replica = replica
        self._next_attempt_id = next_attempt_id
        self._block_tokens = float(block_tokens)
        self._block_bytes = block_bytes
        self._expected_output_tokens = float(expected_output_tokens)
        self.placed_count = 0

    def bucket_of(self, parsed: ParsedRequest) -> int:
        """Number of the length bucket of a request (`policies.BucketMembers.of_length`).

        Its length is its prompt and expected output; of a batch, the longest prompt.
        """
        buckets = self._fleet.buckets
        if buckets.lengths is None:
            return ANY_BUCKET
        tokens = parsed.prompt_token_ids + parsed.prompt_bytes / self._feedback.bytes_per_token(
            parsed.model or ""
        )
        if len(parsed.paths) > 1:
            sizes = [len(path) for path in parsed.paths]
            tokens *= max(sizes) / max(sum(sizes), 1)
        output_tokens = self._expected_output_tokens
        if parsed.output_tokens_max is not None:
            output_tokens = min(output_tokens, parsed.output_tokens_max)
        return buckets.of_length(tokens + output_tokens)

    def decide(
        self, parsed: ParsedRequest, profile: AttentionProfile, slots: Slots, now_us: int, now_s: float
    ) -> Decision | Shed:
        """Choose a worker.

        Args:
            parsed: What is asked.
            profile: What of a match its model can reuse.
            slots: Who may take it, not empty.
            now_us: Log time.
            now_s: Monotonic seconds, at which it will have been sent.
        """
        fleet = self._fleet
        bucket = self.bucket_of(parsed)
        bytes_per_token = self._feedback.bytes_per_token(parsed.model or "")
        prompt_tokens = max(parsed.prompt_token_ids + parsed.prompt_bytes / bytes_per_token, 1.0)
        tokens_per_block = (
            self._block_tokens if parsed.prompt_token_ids else self._block_bytes / bytes_per_token
        )
        output_tokens = self._expected_output_tokens
        if parsed.output_tokens_max is not None:
            output_tokens = min(output_tokens, parsed.output_tokens_max)
        candidates = fleet.candidates(
            slots, parsed.paths, profile, prompt_tokens, tokens_per_block, now_us, bucket
        )
        view = RequestView(
            parsed.key, parsed.prefix_key, prompt_tokens, output_tokens * parsed.n, self.placed_count
        )
        match place(view, candidates, self.policy):
            case Shed() as shed:
                return shed
            case Chosen() as chosen:
                pass
        self.placed_count += 1
        attempt = Attempt(
            self._next_attempt_id(),
            fleet.at_slot(chosen.slot).worker_id,
            chosen,
            now_us,
            min(fleet.loads.oldest_prefill_us(chosen.slot), now_us) if chosen.safe_tokens else 0,
            tokens_per_block,
            now_s,
            profile.needs_ends,
        )
        placed = Placed(
            attempt.request_id,
            now_us,
            attempt.worker_id,
            self._replica,
            round(chosen.service_s * 1e6),
            chosen.uncached_tokens,
            round(prompt_tokens + view.output_tokens),
            parsed.paths or NO_PROMPT,
            profile.needs_ends,
        )
        return Decision(attempt, placed)
