"""Bytes of KV that a prefill worker hands over for a request.

The kind of layer decides which KV crosses (PrfaaS, arXiv:2604.15039, 3.2):

    full attention     block-level    tokens that the decode side lacks x bytes per token
    sliding window     request-level  min(tokens, W) x bytes per token, whole
    linear state       request-level  one state, whole

Windows and states are valid at one position only, so they cross whole, however much is cached.
"""

from dataclasses import dataclass

from policies.declared import setting


@dataclass(frozen=True)
class KvBytes:
    """KV sizes of one model, in bytes: a part of each entry of placement.models."""

    kv_bytes_per_token: float = setting(
        0.0, "KV of one token in all layers of full attention, in bytes.", ge=0
    )
    window_bytes_per_token: float = setting(
        0.0, "KV of one token in all layers with a sliding window, in bytes.", ge=0
    )
    window_tokens: int = setting(0, "Sliding window W, in tokens.", ge=0)
    state_bytes: float = setting(0.0, "State of one sequence in all linear layers, in bytes.", ge=0)

    @property
    def known(self) -> bool:
        """True if the size is known; if not, `of` is 0 and transfers have no price."""
        return self.kv_bytes_per_token > 0 or self.window_bytes_per_token > 0 or self.state_bytes > 0

    def request_bytes(self, tokens: float) -> float:
        """Request-level part, which crosses whole, for a prompt of ``tokens`` > 0."""
        return min(tokens, self.window_tokens) * self.window_bytes_per_token + self.state_bytes

    def of(self, tokens: float, cached_tokens: float = 0.0) -> float:
        """Bytes that cross for a prompt of which the decode side holds ``cached_tokens``; 0 for no tokens."""
        assert 0 <= cached_tokens <= tokens
        if not tokens:
            return 0.0
        return (tokens - cached_tokens) * self.kv_bytes_per_token + self.request_bytes(tokens)


UNKNOWN_KV = KvBytes()
