"""The ideal reuse: that of one infinite cache, seen by every request.

It is counted on the very bytes the emulated engines tokenise and in blocks of their size:

    prompt   |--b0--|--b1--|--b2--|--b3--|tail      4 bytes a token, whole blocks only
    chain      h0 = H(0, b0)   h1 = H(h0, b1) ...   equal hash: equal prefix
    reused   the leading run of blocks seen before, at most prompt - 1 tokens

Blocks count as cached from the moment their request is sent, so no fleet exceeds the ideal.
"""

import xxhash

from loadtest.engine.tokens import TOKEN_BYTES


class IdealCache:
    """An infinite prefix cache over prompts as bytes; about 100 bytes of memory per distinct block."""

    def __init__(self, block_tokens: int) -> None:
        assert block_tokens > 0
        self._block_tokens = block_tokens
        self._seen: set[int] = set()

    def reuse(self, prompt: bytes, held_bytes: int = 0) -> int:
        """Count the tokens of a prompt that the cache holds, then add the prompt to it.

        ``held_bytes`` leading bytes were processed before, the prompt and the answer of the session's last
        turn: answers enter the cache this way. The last token is always computed.
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
