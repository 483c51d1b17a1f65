"""The ideal: what one infinite cache, seen by every request, would have reused.

It is the yardstick of a placement policy, so it is counted on the very bytes the emulated
engines tokenise and in blocks of their size:

    prompt   |--b0--|--b1--|--b2--|--b3--|tail      4 bytes a token, whole blocks only
    chain      h0 = H(0, b0)   h1 = H(h0, b1) ...   equal hash: equal prefix
    reused   the leading run of blocks seen before, at most prompt - 1 tokens

A request's blocks count as cached from the moment it is sent. A real engine holds them only
after their prefill, so the ideal is a bound that no fleet exceeds.
"""

import xxhash

from loadtest.engine.tokens import TOKEN_BYTES


class IdealCache:
    """An infinite prefix cache over prompts given as bytes.

    Memory grows with the distinct blocks of a run, about 100 bytes each.
    """

    def __init__(self, block_tokens: int) -> None:
        assert block_tokens > 0
        self._block_tokens = block_tokens
        self._seen: set[int] = set()

    def reuse(self, prompt: bytes, held_bytes: int = 0) -> int:
        """Count the tokens of a prompt that the cache holds, then add the prompt to it.

        Args:
            prompt: The prompt as the engine tokenises it.
            held_bytes: Leading bytes that an engine is known to have processed: the prompt and
                the answer of this session's previous turn. Answers enter the cache this way.

        Returns:
            Reused tokens, below the length of the prompt: its last token is always computed.
        """
        block_bytes = self._block_tokens * TOKEN_BYTES
        view = memoryview(prompt)
        chain = 0
        reused_blocks = 0
        leading = True
        for end in range(block_bytes, len(prompt) + 1, block_bytes):
            chain = xxhash.xxh3_64_intdigest(view[end - block_bytes : end], seed=chain)
            leading = leading and (end <= held_bytes or chain in self._seen)
            reused_blocks += leading
            self._seen.add(chain)
        prompt_tokens = -(-len(prompt) // TOKEN_BYTES)
        return min(reused_blocks * self._block_tokens, max(prompt_tokens - 1, 0))
