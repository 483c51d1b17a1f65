"""Tokens in a block of one worker's cache.

A worker's capacity is in tokens, and the tree counts blocks. A block of token ids has as many tokens as the
settings say. A block of text has a number of bytes: with 2.5 bytes a token, as of code and JSON, a cache of
256,000 tokens was believed to hold 410,000.
"""

CHANGE_MIN = 0.02
"""Relative change of the mean at which the bound of a worker is computed again."""

BLOCKS_KEPT = 4096
"""Blocks over which the mean is taken, a guess: a million tokens, as much as a large cache keeps."""


class BlockSize:
    """The mean of the latest blocks.

    Args:
        tokens: Tokens of the worker's blocks, as assumed so far.
        blocks: Its blocks.
        tokens_per_block: Tokens per block, as assumed so far.

    Attributes:
        tokens_per_block: The mean when it last changed by `CHANGE_MIN`.
    """

    __slots__ = ("_blocks", "_tokens", "tokens_per_block")

    def __init__(self, tokens: float, blocks: float, tokens_per_block: float) -> None:
        self.tokens_per_block = float(tokens_per_block)
        kept = min(1.0, BLOCKS_KEPT / blocks) if blocks else 0.0
        self._tokens, self._blocks = kept * tokens, kept * blocks

    def add(self, tokens_per_block: float, blocks: int) -> bool:
        """Count blocks that the worker was given; True if the mean has changed."""
        if blocks <= 0:
            return False
        self._tokens += tokens_per_block * blocks
        self._blocks += blocks
        if self._blocks > BLOCKS_KEPT:
            self._tokens *= BLOCKS_KEPT / self._blocks
            self._blocks = BLOCKS_KEPT
        mean = self._tokens / self._blocks
        if abs(mean - self.tokens_per_block) <= CHANGE_MIN * self.tokens_per_block:
            return False
        self.tokens_per_block = mean
        return True
