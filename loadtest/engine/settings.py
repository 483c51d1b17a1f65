"""What one emulated engine is: its dialect, its KV cache and the model of its time.

The defaults describe one mid-sized replica: half a million tokens of KV cache, prefill at
20,000 tokens/s, decode at 50 tokens/s a request. They are round numbers, not a measurement;
set them to those of the engine that you want to stand in for.
"""

from dataclasses import dataclass
from typing import Literal

Dialect = Literal["sglang", "vllm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """One engine.

    Attributes:
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        dialect: Whose wire format and cache rules to follow.
        models: Names of the served model; the first is its own, the others are aliases.
        loras: LoRA adapters, requested by name; each has a cache of its own.
        block_tokens: Tokens of a KV block, the unit of reuse.
        cache_tokens: KV capacity in tokens, for running requests and reusable blocks together.
        max_model_len: Longest prompt plus output, in tokens.
        prefill_tokens_per_s: Prefill speed at an empty context: 1/b of the service-time formula.
        prefill_base_ms: Fixed time of one prefill step: a of the formula.
        context_tokens: Cached tokens that double the cost of an uncached one: c0 of the formula.
        chunk_tokens: Tokens that share one prefill step. 0: one request at a time, whole.
        max_running: Requests that prefill or decode at the same time.
        tpot_ms: Time of one decode step. 0: the whole answer comes with its first token.
        tpot_batch: Running requests that double the time of a decode step. 0: none do.
        speed: All modelled times are divided by this.
        output_tokens: Mean length of an answer that the request does not bound.
        emit_interval_ms: Tokens that come due within this (real) time are sent as one chunk.
        cache_report: Whether answers report ``cached_tokens``; real engines need a flag for it.
        body_bytes_max: Largest request body.
    """

    host: str = "127.0.0.1"
    port: int = 0
    dialect: Dialect = "sglang"
    models: tuple[str, ...] = ("emulated",)
    loras: tuple[str, ...] = ()
    block_tokens: int = 64
    cache_tokens: int = 500_000
    max_model_len: int = 262_144
    prefill_tokens_per_s: float = 20_000.0
    prefill_base_ms: float = 10.0
    context_tokens: float = 140_000.0
    chunk_tokens: int = 0
    max_running: int = 64
    tpot_ms: float = 20.0
    tpot_batch: int = 0
    speed: float = 1.0
    output_tokens: int = 128
    emit_interval_ms: float = 10.0
    cache_report: bool = True
    body_bytes_max: int = 256 << 20

    def __post_init__(self) -> None:
        """Refuse what cannot be modelled.

        Raises:
            ValueError: Names the first wrong setting and its limits.
        """
        for name, least in (
            ("block_tokens", 1),
            ("cache_tokens", self.block_tokens),
            ("max_model_len", 2),
            ("max_running", 1),
            ("output_tokens", 1),
            ("chunk_tokens", 0),
            ("tpot_ms", 0),
            ("tpot_batch", 0),
            ("prefill_base_ms", 0),
            ("emit_interval_ms", 0),
            ("body_bytes_max", 1),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")
        for name in ("prefill_tokens_per_s", "context_tokens", "speed"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        if not self.models:
            raise ValueError("models must name at least one model")

    @property
    def context_tokens_max(self) -> int:
        """Longest prompt plus output that can ever be admitted."""
        return min(self.max_model_len, self.cache_tokens)
