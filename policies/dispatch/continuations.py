"""The reusable blocks behind SGLang's answers, once it is known that prompts here continue the answers.

An SGLang engine keeps the window or the state at the end of an answer (`radix.windows`), and none at the last
whole block of the gateway's before it. The client decides if the next prompt of a conversation continues it:
some leave out the reasoning, some edit, and a router sees only that blocks agree. The engine's
``cached_tokens`` says it afterwards, exactly:

    prompt before        |------------------------|~~~~ answer ~~~~|
    cached tokens            ^ neither          ^ its end      ^ the answer too

The next turn of a conversation is expected to behave as its last follow-up; a first turn, as most follow-ups
at this replica did lately. The log carries the expectation (`radix.EndReach`), so all replicas expect the
same.
"""

from radix import HASH_BYTES, PAGE_TOKENS, AttentionProfile, EndReach

REMEMBERED_MAX = 65_536
"""Most prompts whose follow-up is recognised; the newest conversations of a fleet."""

MEMORY = 8
"""Latest follow-ups that the shares rest on, about."""

BELIEVED_MIN = 0.5
"""Share from which on continuing is more likely than not."""


class Continuations:
    """Observed follow-ups at this replica; its return values are its only effect."""

    def __init__(self) -> None:
        self._ended: dict[bytes, tuple[int, int, int]] = {}  # prompt, where it and its answer can be gone on
        self._prompts = self._answers = BELIEVED_MIN  # until the first follow-up

    def answered(
        self,
        path: bytes,
        matched_blocks: int,
        lengths: tuple[int, int],
        cached_tokens: int,
        profile: AttentionProfile,
        *,
        tail_tokens: float,
        branched: bool,
    ) -> tuple[bytes, int] | None:
        """Learn from an answer, and return its last known block and the end behind it, in tokens.

        Args:
            path: Packed hashes of the prompt.
            matched_blocks: Blocks of the prompt that its worker held.
            lengths: Tokens of the prompt, and all that were computed.
            cached_tokens: Part of the prompt that the engine reused.
            profile: Attention profile of the model.
            tail_tokens: Length of the prompt behind its last whole block.
            branched: See `AttentionProfile.answer_end`.

        Returns:
            None if nothing behind the prompt's blocks may be expected.
        """
        known = path[HASH_BYTES * (matched_blocks - 1) :][:HASH_BYTES] if matched_blocks else b""
        prompts, answers = self._seen(self._ended.get(known), cached_tokens)
        if not path:
            return None
        block, (prompt_tokens, total_tokens) = path[-HASH_BYTES:], lengths
        end = profile.answer_end(prompt_tokens, total_tokens, branched=branched)
        self._ended.pop(block, None)  # so that those remembered last are last
        self._ended[block] = prompt_tokens, 0 if branched or tail_tokens < PAGE_TOKENS else prompt_tokens, end
        if len(self._ended) > REMEMBERED_MAX:
            del self._ended[next(iter(self._ended))]
        if end > prompt_tokens and answers >= BELIEVED_MIN:
            return block, end
        if branched or prompts < BELIEVED_MIN:
            return None
        return block, prompt_tokens

    def _seen(self, before: tuple[int, int, int] | None, cached_tokens: int) -> tuple[float, float]:
        """Shares of prompts that continue the prompt before, and its answer; this one's own report counts."""
        prompts, answers = self._prompts, self._answers
        if before is not None:
            prompt_tokens, prompt_end, end = before
            if prompt_end:
                prompts = float(cached_tokens > prompt_tokens - PAGE_TOKENS)
                self._prompts += (prompts - self._prompts) / MEMORY
                prompts = max(prompts, self._prompts)
            if end > prompt_tokens + PAGE_TOKENS:
                answers = float(cached_tokens > prompt_tokens)
                self._answers += (answers - self._answers) / MEMORY
                answers = max(answers, self._answers)
        return prompts, answers


def end_reach(
    worker: str, end: tuple[bytes, int], blocks: int, tokens_per_block: float, at_us: int
) -> EndReach:
    """Return what to tell of an end, in tokens, behind the last of ``blocks`` whole blocks of a prompt."""
    block, tokens = end
    return EndReach(worker, block, at_us, max(int(tokens / tokens_per_block) - blocks, 0))
