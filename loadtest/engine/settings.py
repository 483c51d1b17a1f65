"""Settings of one emulated engine: its dialect, its KV cache and the model of its time.

The defaults are round numbers for one mid-sized replica: half a million tokens of KV cache, prefill at 20,000
tokens/s, decode at 50 tokens/s a request. Set those of the engine that you stand in for, or begin with a
profile (`EngineSettings.of`), with its layers, windows and data-parallel ranks.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from loadtest.engine.handover.settings import HandoverSettings
from loadtest.engine.kv.rules import CacheRules
from loadtest.engine.kv.stack import has_lower_tiers
from loadtest.engine.kv.tiers import HiCacheSettings, PrefetchPolicy, WritePolicy
from loadtest.engine.kv_settings import KvEventsSettings
from loadtest.engine.profiles import PROFILES, EngineProfile, Interleave, QueueOrder
from loadtest.engine.timing import DecodeTiming, PrefillTiming

Dialect = Literal["sglang", "vllm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """One engine.

    Attributes:
        port: 0 takes a free one.
        dialect: Of wire format and cache rules.
        profile: Name of a profile, for all without a setting of its own; empty: full attention, one rank.
        models: Names of the served model; the first is its own, the others are aliases.
        loras: LoRA adapters, requested by name; each has a cache of its own.
        enable_lora: Load and unload further adapters while it serves (`loadtest.engine.adapters`).
        max_loaded_loras: Loaded adapters that stay in memory. 0: all.
        lora_load_ms: Time of loading an adapter.
        block_tokens: Tokens of a KV block, the unit of reuse.
        cache_tokens: KV capacity in tokens, for running requests and reusable blocks together.
        host_tokens: KV capacity of the host tier in tokens, over all ranks. 0: there is none.
        write_policy: Write policy of the host tier.
        prefetch_policy: Prefetch policy of the shared pool.
        pool_tokens: Room of the pool that all engines of one process share; needs a host tier that is larger
            than the device. 0: there is none.
        max_model_len: Longest prompt plus output, in tokens.
        prefill_tokens_per_s: Prefill speed at an empty context: 1/b of the service-time formula.
        prefill_base_ms: Fixed time of one prefill step: a of the formula.
        prompt_base_ms: Fixed time of one prompt, however many steps it takes.
        context_tokens: Cached tokens that double the cost of an uncached one: c0 of the formula.
        chunk_tokens: Tokens that share one prefill step, over all ranks. 0: one request at a time, whole.
        dp_ranks: Data-parallel attention ranks; each has its share of the cache and of the slots.
        interleave: Decode during a prefill step; see `EngineProfile`.
        queue_order: See `loadtest.engine.waiting`.
        max_running: Requests that prefill or decode at the same time.
        tpot_ms: Time of one decode step. 0: the whole answer comes with its first token.
        tpot_batch: Running requests that double the time of a decode step. 0: none do.
        mtp_speedup: Tokens of a request per decode step.
        speed: All modelled times are divided by this.
        output_tokens: Mean length of an answer that the request does not bound.
        emit_interval_ms: Tokens that come due within this (real) time are sent as one chunk.
        cache_report: Report ``cached_tokens``; real engines need a flag for it.
        kv_events: Endpoints of KV cache events; None for none.
        kv_events_legacy: vLLM's events are arrays, as before 2026.
        handover: Part in prefill/decode disaggregation; None for none.
        journal: File that gets the X-Request-Id of each request that brings work; empty for none.
    """

    host: str = "127.0.0.1"
    port: int = 0
    dialect: Dialect = "sglang"
    profile: str = ""
    models: tuple[str, ...] = ("emulated",)
    loras: tuple[str, ...] = ()
    enable_lora: bool = False
    max_loaded_loras: int = 0
    lora_load_ms: float = 0.0
    block_tokens: int = 64
    cache_tokens: int = 500_000
    host_tokens: int = 0
    write_policy: WritePolicy = "write_through"
    prefetch_policy: PrefetchPolicy = "timeout"
    pool_tokens: int = 0
    max_model_len: int = 262_144
    prefill_tokens_per_s: float = 20_000.0
    prefill_base_ms: float = 10.0
    prompt_base_ms: float = 0.0
    context_tokens: float = 140_000.0
    chunk_tokens: int = 0
    dp_ranks: int = 1
    interleave: Interleave = "apart"
    queue_order: QueueOrder = "fcfs"
    max_running: int = 64
    tpot_ms: float = 20.0
    tpot_batch: int = 0
    mtp_speedup: float = 1.0
    speed: float = 1.0
    output_tokens: int = 128
    emit_interval_ms: float = 10.0
    cache_report: bool = True
    body_bytes_max: int = 256 << 20
    kv_events: KvEventsSettings | None = None
    kv_events_legacy: bool = False
    handover: HandoverSettings | None = None
    journal: str = ""

    def __post_init__(self) -> None:
        """Refuse what cannot be modelled with `ValueError`: the first wrong setting and its limits."""
        for name, least in (
            ("block_tokens", 1),
            ("dp_ranks", 1),
            ("cache_tokens", self.block_tokens * self.dp_ranks),
            ("max_loaded_loras", 0),
            ("lora_load_ms", 0),
            ("host_tokens", 0),
            ("pool_tokens", 0),
            ("max_model_len", 2),
            ("max_running", self.dp_ranks),
            ("output_tokens", 1),
            ("chunk_tokens", 0),
            ("tpot_ms", 0),
            ("tpot_batch", 0),
            ("prefill_base_ms", 0),
            ("prompt_base_ms", 0),
            ("mtp_speedup", 1),
            ("emit_interval_ms", 0),
            ("body_bytes_max", 1),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")
        for name in ("prefill_tokens_per_s", "context_tokens", "speed"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        if self.pool_tokens and not self.host_tokens:
            raise ValueError("pool_tokens needs host_tokens: a pool is read into host memory")
        if self.pool_tokens and self.host_tokens <= self.cache_tokens:
            raise ValueError(
                "pool_tokens needs host_tokens above cache_tokens: a pool is read into what the host has "
                f"beyond the device, but {self.host_tokens} <= {self.cache_tokens}"
            )
        if self.profile and self.profile not in PROFILES:
            raise ValueError(f"profile must be one of {', '.join(sorted(PROFILES))}, not {self.profile!r}")
        if 0 < self.chunk_tokens < self.dp_ranks:
            raise ValueError(f"chunk_tokens must be at least dp_ranks, {self.dp_ranks}")
        if self.handover is not None and (self.handover.protocol == "sglang") != (self.dialect == "sglang"):
            raise ValueError(f"{self.handover.protocol} is no hand-over of {self.dialect}")
        if self.handover is not None and self.handover.switches and self.dp_ranks > 1:
            raise ValueError("an engine with several data-parallel ranks does not switch its part")
        if not self.models:
            raise ValueError("models must name at least one model")
        if self.host_tokens:
            rules = replace(self._rules(), match_rule=self.dialect)
            if not has_lower_tiers(rules):
                raise ValueError(
                    f"host_tokens: no host tier is modelled for {rules.attention} by {self.dialect}'s rules"
                )

    @classmethod
    def of(cls, profile: str, **more: Any) -> "EngineSettings":
        """Settings of a profile with changes in ``more``.

        `ValueError` for an unknown profile or a wrong setting.
        """
        if profile not in PROFILES:
            return cls(profile=profile, **more)
        engine = PROFILES[profile]
        decode, rules = engine.decode, engine.rules
        settings: dict[str, Any] = {
            "profile": profile,
            "block_tokens": rules.block_tokens,
            "cache_tokens": rules.full_tokens * engine.dp_ranks,
            "max_model_len": 1 << 20,
            "prefill_tokens_per_s": 1 / engine.prefill.b_s,
            "prefill_base_ms": engine.prefill.step_s * 1e3,
            "prompt_base_ms": engine.prefill.a_s * 1e3,
            "context_tokens": engine.prefill.c0_tokens,
            "chunk_tokens": engine.chunk_tokens,
            "dp_ranks": engine.dp_ranks,
            "interleave": engine.interleave,
            "queue_order": engine.queue_order,
            "max_running": engine.max_running,
            "tpot_ms": decode.base_s * 1e3,
            "tpot_batch": round(decode.base_s / decode.request_s) if decode.request_s else 0,
            "mtp_speedup": decode.mtp_speedup,
        }
        return cls(**settings | more)

    def engine(self) -> EngineProfile:
        """The engine to build: the profile, or a model with full attention, with these numbers."""
        base = PROFILES[self.profile or _PLAIN]
        return replace(
            base,
            prefill=PrefillTiming(
                a_s=self.prompt_base_ms / 1e3,
                b_s=1 / self.prefill_tokens_per_s,
                c0_tokens=self.context_tokens,
                step_s=self.prefill_base_ms / 1e3,
            ),
            decode=DecodeTiming(
                base_s=self.tpot_ms / 1e3,
                request_s=self.tpot_ms / 1e3 / self.tpot_batch if self.tpot_batch else 0.0,
                kv_token_s=base.decode.kv_token_s if self.profile else 0.0,
                mtp_speedup=self.mtp_speedup,
            ),
            rules=self._rules(),
            host_tier=HiCacheSettings(
                host_tokens=self.host_tokens // self.dp_ranks,
                # The window pool has no size of its own.
                host_ratio=self.host_tokens / self.cache_tokens,
                write_policy=self.write_policy,
                prefetch_policy=self.prefetch_policy,
            )
            if self.host_tokens
            else None,
            chunk_tokens=self.chunk_tokens,
            max_running=self.max_running,
            dp_ranks=self.dp_ranks,
            interleave=self.interleave,
            queue_order=self.queue_order,
        ).faster(self.speed)

    def _rules(self) -> CacheRules:
        """The cache of one rank: the profile's, in proportion.

        However small, it has room for one request that fits into ``cache_tokens``: a window and a step in the
        window pool (vLLM: two steps, `loadtest.engine.kv.windows`), one state.
        """
        rules = PROFILES[self.profile or _PLAIN].rules
        full_tokens = self.cache_tokens // self.dp_ranks
        share = full_tokens / rules.full_tokens
        swa_tokens = state_slots = 0
        if rules.swa_tokens:
            steps = 2 if self.dialect == "vllm" else 1
            step_tokens = steps * (self.chunk_tokens // self.dp_ranks) or full_tokens
            busy_tokens = max(step_tokens, rules.window_tokens + rules.decode_release_tokens)
            one_tokens = rules.window_tokens + busy_tokens + 3 * self.block_tokens
            swa_tokens = max(int(rules.swa_tokens * share), min(full_tokens, one_tokens))
        if rules.state_slots:
            state_slots = max(int(rules.state_slots * share), 1)
        return replace(
            rules,
            block_tokens=self.block_tokens,
            full_tokens=full_tokens,
            swa_tokens=swa_tokens,
            state_slots=state_slots,
        )

    @property
    def context_tokens_max(self) -> int:
        """Longest prompt plus output that can ever be admitted."""
        return min(self.max_model_len, self.cache_tokens // self.dp_ranks)


_PLAIN = "dense-70b"
"""Defaults of an engine without a profile: layers with full attention, links."""
