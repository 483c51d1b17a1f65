"""Bytes of KV that a prefill worker hands over for a request.

The kind of layer decides what crosses (PrfaaS, arXiv:2604.15039, 3.2):

    full attention     block-level    tokens that the decode side lacks x bytes per token
    sliding window     request-level  min(tokens, W) x bytes per token, whole
    linear state       request-level  one state, whole

Windows and states are valid at one position only, so they cross whole, however much is cached.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvBytes:
    """KV sizes of one model, summed over its layers of each kind.

    Full attention and sliding windows (of ``window_tokens``) count per token, linear states per sequence.
    """

    token_bytes: float = 0.0
    window_token_bytes: float = 0.0
    window_tokens: int = 0
    state_bytes: float = 0.0

    @property
    def known(self) -> bool:
        """True if the size is known; if not, `of` is 0 and transfers have no price."""
        return self.token_bytes > 0 or self.window_token_bytes > 0 or self.state_bytes > 0

    def request_bytes(self, tokens: float) -> float:
        """Request-level part, which crosses whole, for a prompt of ``tokens`` > 0."""
        return min(tokens, self.window_tokens) * self.window_token_bytes + self.state_bytes

    def of(self, tokens: float, cached_tokens: float = 0.0) -> float:
        """Bytes that cross for a prompt of which the decode side holds ``cached_tokens``; 0 for no tokens."""
        assert 0 <= cached_tokens <= tokens
        if not tokens:
            return 0.0
        return (tokens - cached_tokens) * self.token_bytes + self.request_bytes(tokens)


UNKNOWN_KV = KvBytes()
