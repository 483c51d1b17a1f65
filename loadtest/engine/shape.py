"""Memory of a model's KV cache: arithmetic over its layers.

    full attention     n x layer bytes per token                     grows, shared block by block
    sliding window     min(n, W) x layer bytes per token             bounded by the window
    linear state       one state for any n                           exact position, request-level

(PrfaaS, arXiv:2604.15039, 3.2 calls the first *block-level*, the other two *request-level*.) So sixty layers
with a window of 128 tokens weigh next to nothing beside ten full layers at 100K tokens.
"""

from dataclasses import dataclass

BF16_BYTES = 2
FP32_BYTES = 4


def gqa_bytes(kv_heads: int, key_dim: int, value_dim: int, element_bytes: int = BF16_BYTES) -> int:
    """Bytes that a layer of grouped-query attention keeps per token: keys and values of its KV heads."""
    return kv_heads * (key_dim + value_dim) * element_bytes


def mla_bytes(latent_dim: int, rope_dim: int, element_bytes: int = BF16_BYTES) -> int:
    """Bytes that a layer of multi-head latent attention keeps per token.

    One latent and one rotary key for all heads, so tensor-parallel ranks hold copies, not shares
    (DeepSeek-V2, arXiv:2405.04434, 2.1).
    """
    return (latent_dim + rope_dim) * element_bytes


def kda_state_bytes(heads: int, key_dim: int, value_dim: int, conv_tokens: int) -> int:
    """Bytes that a layer of Kimi Delta Attention keeps per sequence.

    A float32 matrix per head, and the bfloat16 inputs of the short convolutions over q, k and v, which
    remember ``conv_tokens`` = kernel size - 1 (Kimi Linear, arXiv:2510.26692, section 4; vLLM
    ``MambaStateShapeCalculator.kda_state_shape``).
    """
    convolved = heads * (2 * key_dim + value_dim) * conv_tokens * BF16_BYTES
    return heads * key_dim * value_dim * FP32_BYTES + convolved


@dataclass(frozen=True, slots=True)
class Pools:
    """Device memory per data-parallel rank: tokens of both pools and linear states, 0 for no such layer."""

    full_tokens: int
    swa_tokens: int
    state_slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The layers of a model by kind, and the bytes of each per token, token of its window, or sequence."""

    full_layers: int
    full_layer_bytes: int
    window_layers: int = 0
    window_layer_bytes: int = 0
    window_tokens: int = 0
    state_layers: int = 0
    state_layer_bytes: int = 0

    @property
    def layers(self) -> int:
        """All layers; transfers are pipelined over them."""
        return self.full_layers + self.window_layers + self.state_layers

    @property
    def token_bytes(self) -> int:
        """Bytes that every token of a sequence adds for good: its full-attention KV."""
        return self.full_layers * self.full_layer_bytes

    @property
    def window_token_bytes(self) -> int:
        """Bytes of one token in the sliding-window pool, over all window layers."""
        return self.window_layers * self.window_layer_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of one set of linear states."""
        return self.state_layers * self.state_layer_bytes

    def kv_bytes(self, tokens: int) -> int:
        """Bytes of one sequence of ``tokens``: all of its full KV, one window and one state."""
        if tokens == 0:
            return 0
        window = min(tokens, self.window_tokens) * self.window_token_bytes
        return tokens * self.token_bytes + window + self.state_bytes

    def pools(
        self,
        memory_bytes: float,
        *,
        swa_ratio: float = 0.0,
        state_ratio: float = 0.0,
        ranks: int = 1,
        copies: int = 1,
    ) -> Pools:
        """Divide the KV memory of an engine (``memory_bytes``) over its ``ranks``.

        ``swa_ratio`` is tokens of the window pool per token of the full pool (SGLang
        ``--swa-full-tokens-ratio``), ``state_ratio`` bytes of states per byte of full KV
        (``--mamba-full-memory-ratio``), ``copies`` the tensor-parallel ranks that each hold all full KV,
        which latent attention cannot split.
        """
        memory = memory_bytes / ranks
        token_bytes = copies * self.token_bytes + swa_ratio * self.window_token_bytes
        full_bytes = memory / (1 + state_ratio) if self.state_layers else memory
        full_tokens = int(full_bytes / token_bytes)
        return Pools(
            full_tokens=full_tokens,
            swa_tokens=int(full_tokens * swa_ratio) if self.window_layers else 0,
            state_slots=int((memory - full_bytes) / self.state_bytes) if self.state_layers else 0,
        )
