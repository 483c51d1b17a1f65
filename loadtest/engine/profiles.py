"""Engines to simulate: published models on named hardware, every constant with its source.

In brackets: ``[D]`` is derived from published figures, ``[guess]`` is a guess, with its reason. Replace what
you have measured: ``dataclasses.replace(PROFILES["dense-70b"], chunk_tokens=4096)``.

    memory for KV = GPUs x memory x static fraction - weights, divided by `ModelShape.pools`
    decode step   = overhead + weights read / bandwidth + KV read / bandwidth

`make_profile` builds one on other GPUs and otherwise divided over them (`loadtest.engine.parallelism`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from loadtest.engine.kv.rules import CacheRules
from loadtest.engine.kv.tiers import HiCacheSettings
from loadtest.engine.parallelism import AS_PROFILE, NO_PREFILL_MTP, NUMA_SPEED, Parallelism
from loadtest.engine.shape import ModelShape, Pools, gqa_bytes, kda_state_bytes, mla_bytes
from loadtest.engine.timing import DecodeTiming, LinkTiming, PrefillTiming
from policies import PROFILES as SERVICE_PROFILES

Interleave = Literal["apart", "mixed", "prefill_first"]
QueueOrder = Literal["fcfs", "lpm", "uncached"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """One engine: a model on hardware, and its configuration.

    Attributes:
        name: Its key in `PROFILES`.
        rules: KV cache of one data-parallel rank; `build_worker` fills in the dialect's.
        chunk_tokens: Prompt tokens of one prefill step, over all ranks; 0: one whole prompt at a time.
        max_running: Requests that prefill or decode at the same time, over all ranks.
        preallocated: Decode jobs beyond those that may hold room for KV that is on its way, over all ranks
            (SGLang ``DecodeReqToTokenPool``, ``pre_alloc_size``: twice ``max_running`` up to 32, else 0).
        dp_ranks: Data-parallel attention ranks, each with its own cache and queue.
        interleave: Decode during a prefill step. ``mixed``: one step with it (vLLM, and SGLang's
            ``--enable-mixed-chunk``); ``prefill_first``: none (SGLang's default); ``apart``: as if alone.
        queue_order: See `loadtest.engine.waiting`.
        aging: k of the order ``uncached``, in seconds of waiting per second of work.
        host: Loading KV from host memory, per rank.
        handover: Sending KV from a prefill to a decode worker.
        host_tier: KV in host memory, per rank; None: none.
        tensor_parallel: GPUs of one rank, which read from a shared pool in parallel.
        replicated_kv: Each of them needs all KV (latent attention), not a share of the heads.
        pool_bytes_per_s: Reading from a shared pool, the engine's network. 170 GB/s: RDMA into host memory
            (MiMo-V2.5, arXiv:2607.13095, GCache).
        gpus: GPUs of the engine.
        expert_share: Share of a prompt's computation apart from attention that experts do; 0: it has none.
        parallelism: How the model is divided over the GPUs.
    """

    name: str
    shape: ModelShape
    prefill: PrefillTiming
    decode: DecodeTiming
    rules: CacheRules
    chunk_tokens: int = 8192
    max_running: int = 128
    preallocated: int = 0
    dp_ranks: int = 1
    interleave: Interleave = "mixed"
    queue_order: QueueOrder = "fcfs"
    aging: float = 1.0
    host: LinkTiming
    handover: LinkTiming
    host_tier: HiCacheSettings | None = None
    tensor_parallel: int = 8
    replicated_kv: bool = False
    pool_bytes_per_s: float = 170e9
    gpus: int = 8
    expert_share: float = 0.0
    parallelism: Parallelism = AS_PROFILE

    def with_prefill(self, speed: float) -> "EngineProfile":
        """The same engine ``speed`` times as fast at prefill, and at nothing else."""
        return replace(self, prefill=self.prefill.faster(speed))

    def faster(self, speed: float) -> "EngineProfile":
        """The same engine ``speed`` times as fast at everything, with the same memory."""
        return replace(
            self,
            prefill=self.prefill.faster(speed),
            decode=self.decode.faster(speed),
            host=self.host.faster(speed),
            handover=self.handover.faster(speed),
            pool_bytes_per_s=self.pool_bytes_per_s * speed,
        )


@dataclass(frozen=True, slots=True)
class _Gpus:
    """Hardware of an engine; memory and specified memory bandwidth of each GPU."""

    count: int
    memory_bytes: float
    bandwidth_bytes_per_s: float

    def kv_bytes(self, static_fraction: float, weights_bytes: float) -> float:
        room_bytes = self.count * self.memory_bytes * static_fraction
        if room_bytes <= weights_bytes:
            raise ValueError(
                f"{self.count} GPUs have {room_bytes / 1e9:.0f} GB for weights and KV, and the weights take "
                f"{weights_bytes / 1e9:.0f} GB"
            )
        return room_bytes - weights_bytes

    def decode(self, shape: ModelShape, read_bytes: float, mtp_speedup: float = 1.0) -> DecodeTiming:
        """Decode steps that read ``read_bytes`` of weights and the KV of every request."""
        bytes_per_s = self.count * self.bandwidth_bytes_per_s * _BANDWIDTH_REACHED
        request_bytes = shape.window_tokens * shape.window_token_bytes + shape.state_bytes
        return DecodeTiming(
            base_s=_STEP_OVERHEAD_S + read_bytes / bytes_per_s,
            request_s=request_bytes / bytes_per_s,
            kv_token_s=shape.token_bytes / bytes_per_s,
            mtp_speedup=mtp_speedup,
        )

    def host(self, ranks: int = 1, copies: int = 1) -> LinkTiming:
        return LinkTiming(self.count * _PCIE_BYTES_PER_S / ranks / copies)


_BANDWIDTH_REACHED = 0.6
"""Share of the specified memory bandwidth that decode reaches. [guess] attention and expert kernels are
commonly reported between a half and three quarters."""

_STEP_OVERHEAD_S = 0.005
"""Scheduling, sampling and communication of a decode step. [guess] milliseconds on multi-GPU engines."""

_EXPERTS_READ = 0.5
"""Share of an expert model's weights that a decode step reads. [guess] with top-8 of 384 experts a batch of
32 tokens touches half of them: 1 - (1 - 8/384)^32 = 0.49."""

_PCIE_BYTES_PER_S = 50e9
"""Host to device, per GPU. PCIe 5.0 x16 carries 64 GB/s each way; [guess] four fifths of it are reached."""

_FABRIC = LinkTiming(bytes_per_s=100e9, latency_s=0.0003)
"""Between engines: 800 Gbit/s RDMA per node (PrfaaS, arXiv:2604.15039, 4.1); 280 us until the first MB is
there (MiMo-V2.5, arXiv:2607.13095, GCache)."""

_H200 = 141e9, 4.8e12
"""NVIDIA H200 datasheet: 141 GB, 4.8 TB/s."""

_H100 = 80e9, 3.35e12
"""NVIDIA H100 SXM datasheet: 80 GB, 3.35 TB/s."""

_MTP_SPEEDUP = 2.6
"""Decoding with three MTP layers against none, at an acceptance length of 3.6 (MiMo-V2-Flash technical
report, arXiv:2601.02780, abstract: "up to")."""

_SWA_RATIO = 1 / 15
"""Tokens of the SWA pool per token of the full pool. [D] MiMo-V2.5-Pro then holds 70/(10 + 60/15) = 5 times
the tokens of an all-full model: "nearly 5x effective capacity" in production (MiMo-V2.5 blog, 2026-05-30;
the arithmetic limit is 7). SGLang's default, 0.8, is for short contexts; its cookbook has 0.3 for Pro."""


_RETAINED_TOKENS = 4096
"""MiMo-V2.5 keeps "dense SWA KV at fixed positions" (3.1.4) and does not say how dense; 4096 is the
interval that vLLM's recipes run ``--prefix-cache-retention-interval`` with. [guess] it is right here too:
windows of two blocks at every 4096 tokens take half of the SWA pool."""


def _expert_share(experts: int, billions: float, active_billions: float) -> float:
    """Share of the active parameters in 8 of the experts; [D] nearly all parameters are in experts."""
    return 8 / experts * billions / active_billions


def _rules(shape: ModelShape, pools: Pools) -> CacheRules:
    """The cache of one rank, in blocks of 64 tokens: ``--page-size`` of SGLang's recipe for Pro."""
    if shape.window_layers:
        return CacheRules(
            full_tokens=pools.full_tokens,
            swa_tokens=pools.swa_tokens,
            window_tokens=shape.window_tokens,
            attention="sliding_window",
            retained_interval_tokens=_RETAINED_TOKENS,
        )
    if shape.state_layers:
        return CacheRules(full_tokens=pools.full_tokens, state_slots=pools.state_slots, attention="linear")
    return CacheRules(full_tokens=pools.full_tokens)


def _flash(count: int = 8, _stage: int = 0) -> EngineProfile:
    """MiMo-V2-Flash on 8 H200.

    Layers: config.json: 9 full layers with 4 KV heads, 39 with W = 128 and 8; key 192, value 128.
    Prefill: [D] PrfaaS table 3 gives S_kv/T = 0.82, 2.85, 4.66, 4.71 Gbit/s at 1K, 8K, 32K, 128K on 8 H200;
    with the KV bytes of this shape T = 0.480, 0.602, 1.340, 5.173 s, and least squares of the relative error
    gives the prices below, each point met within 6 %.
    Run as in the model's README: TP 8, DP 2, 128 running, 16K chunks, static fraction 0.75. 309 GB in FP8.
    """
    gpus = _Gpus(count, *_H200)
    shape = ModelShape(
        full_layers=9,
        full_layer_bytes=gqa_bytes(4, 192, 128),
        window_layers=39,
        window_layer_bytes=gqa_bytes(8, 192, 128),
        window_tokens=128,
    )
    return EngineProfile(
        name="mimo-v2-flash",
        shape=shape,
        prefill=_FLASH_PREFILL,
        decode=gpus.decode(shape, 309e9 * _EXPERTS_READ, _MTP_SPEEDUP),
        rules=_rules(shape, shape.pools(gpus.kv_bytes(0.75, 309e9), swa_ratio=_SWA_RATIO, ranks=2)),
        chunk_tokens=16_384,
        dp_ranks=2,
        host=gpus.host(ranks=2),
        handover=_FABRIC,
        tensor_parallel=4,
        expert_share=_expert_share(256, 309, 15),
    )


_FLASH_PREFILL = PrefillTiming(a_s=0.441, b_s=2.26e-5, c0_tokens=108_000.0)


def _pro(count: int = 16, _stage: int = 0) -> EngineProfile:
    """MiMo-V2.5-Pro on 16 H200.

    Layers: 70, 10 full and 60 with W = 128 (MiMo-V2.5, arXiv:2607.13095, 3.1.3); 8 KV heads, key 192,
    value 128 (model card; [guess] the same heads in both kinds of layers).
    Prefill: c0 = 140K, since throughput at 16K chunks falls to 0.12 behind 1M tokens (the same paper, figure
    7; theory B1). b: [D] Flash's price times 42B/15B active parameters on twice the GPUs. a: [guess] Flash's.
    Run as in SGLang's cookbook (docs_new/cookbook/autoregressive/Xiaomi/MiMo-V2.5-Pro.mdx): TP 16, DP 2, 128
    running, 32K chunks, static fraction 0.7. 1.02T weights, FP8.
    """
    gpus = _Gpus(count, *_H200)
    shape = ModelShape(
        full_layers=10,
        full_layer_bytes=gqa_bytes(8, 192, 128),
        window_layers=60,
        window_layer_bytes=gqa_bytes(8, 192, 128),
        window_tokens=128,
    )
    return EngineProfile(
        name="mimo-v2.5-pro",
        shape=shape,
        prefill=PrefillTiming(_FLASH_PREFILL.a_s, _FLASH_PREFILL.b_s * 42 / 15 * 8 / 16, 140_000.0),
        decode=gpus.decode(shape, 1.02e12 * _EXPERTS_READ, _MTP_SPEEDUP),
        rules=_rules(shape, shape.pools(gpus.kv_bytes(0.7, 1.02e12), swa_ratio=_SWA_RATIO, ranks=2)),
        chunk_tokens=32_768,
        dp_ranks=2,
        host=gpus.host(ranks=2),
        handover=_FABRIC,
        gpus=16,
        expert_share=_expert_share(384, 1020, 42),
    )


def _kimi(count: int = 8, stage: int = 8) -> EngineProfile:
    """The 1T hybrid model (KDA to MLA 3:1) of PrfaaS, on 8 H200.

    Layers: [D] from table 5, S_kv = 190.8, 308.9, 701.3, 2316.3 MiB at 1K, 8K, 32K, 128K. 15 MLA layers of
    576 dimensions (512 + 64, as in every MLA model of the family) weigh 16.9 MiB per 1024 tokens, 42 KDA
    layers of 64 heads of 128 x 128 173.9 MiB; the first two points come out exactly, the others within 2 %.
    The pattern is that of Kimi-Linear-48B's config.json: every fourth layer and the last one are full.
    Prefill: `policies.PROFILES`, fitted to table 5 within 2 %.
    Memory: [guess] INT4 experts as in Kimi-K2-Thinking (594 GB), static fraction 0.85, SGLang's default
    --mamba-full-memory-ratio 0.9, and TP 8 without DP attention, so each GPU holds all latent KV.
    Experts: [guess] as in Kimi-K2, 384 and 32B active parameters.
    """
    gpus = _Gpus(count, *_H200)
    weights_bytes = 594e9
    shape = ModelShape(
        full_layers=15,
        full_layer_bytes=mla_bytes(512, 64),
        state_layers=42,
        state_layer_bytes=kda_state_bytes(heads=64, key_dim=128, value_dim=128, conv_tokens=3),
    )
    fitted = SERVICE_PROFILES["8xh200-1t-hybrid"]
    return EngineProfile(
        name="kimi-linear-1t",
        shape=shape,
        prefill=PrefillTiming(fitted.a_s, fitted.b_s, fitted.c0_tokens),
        decode=gpus.decode(shape, weights_bytes * _EXPERTS_READ),
        rules=_rules(shape, shape.pools(gpus.kv_bytes(0.85, weights_bytes), state_ratio=0.9, copies=stage)),
        host=gpus.host(copies=stage),
        handover=_FABRIC,
        replicated_kv=True,
        expert_share=_expert_share(384, 1000, 32),
    )


def _dense(count: int = 8, _stage: int = 0) -> EngineProfile:
    """A dense 70B model, Llama-3-70B, on 8 H100.

    Layers: config.json: 80 layers, 8 KV heads of 128.
    Prefill: [D] 141 GFLOP per token at half of 8 x 989 TFLOP/s (BF16, datasheet; [guess] half is reached)
    is 36 us; attention adds 4 x 80 layers x 8192 FLOP per token of context, so c0 = 141e9/2.62e6 = 54K.
    a, step: [guess] tokenising and scheduling, a kernel launch per layer.
    Memory: 141 GB of BF16 weights, static fraction 0.88 (SGLang's order on 80 GB GPUs).
    """
    gpus = _Gpus(count, *_H100)
    weights_bytes = 141e9
    shape = ModelShape(full_layers=80, full_layer_bytes=gqa_bytes(8, 128, 128))
    token_flop = 2 * 70.6e9
    return EngineProfile(
        name="dense-70b",
        shape=shape,
        prefill=PrefillTiming(
            a_s=0.020,
            b_s=token_flop / (0.5 * 8 * 989e12),
            c0_tokens=token_flop / (4 * 80 * 8192),
            step_s=0.005,
        ),
        decode=gpus.decode(shape, weights_bytes),
        rules=_rules(shape, shape.pools(gpus.kv_bytes(0.88, weights_bytes))),
        host=gpus.host(),
        handover=_FABRIC,
    )


_BUILDERS: Mapping[str, Callable[[int, int], EngineProfile]] = MappingProxyType(
    {"mimo-v2.5-pro": _pro, "mimo-v2-flash": _flash, "kimi-linear-1t": _kimi, "dense-70b": _dense}
)
"""Profiles by name, by number of GPUs and of GPUs in a pipeline stage."""

PROFILES: Mapping[str, EngineProfile] = MappingProxyType(
    {profile.name: profile for profile in (_pro(), _flash(), _kimi(), _dense())}
)
"""Engines by name, for ``--engine`` and ``--profile``."""


def make_profile(name: str, parallelism: Parallelism = AS_PROFILE) -> EngineProfile:
    """Build the profile of a name in `PROFILES`, divided over GPUs as told.

    Raises:
        ValueError: The weights do not fit, or the model lacks the part that is to be divided.
    """
    profile = PROFILES[name]
    if parallelism == AS_PROFILE:
        return profile
    _check(profile, parallelism)
    stages, stage_gpus = parallelism.pipeline_parallel, parallelism.stage_gpus(profile.gpus)
    built = _BUILDERS[name](stages * stage_gpus, stage_gpus)
    prefill, decode = built.prefill, built.decode
    slowness = parallelism.expert_slowness(profile.expert_share)
    prefill = replace(prefill, b_s=prefill.b_s * slowness, c0_tokens=prefill.c0_tokens * slowness)
    prefill = prefill.faster(parallelism.prefill_speed(profile.gpus))
    decode = replace(
        decode,
        base_s=decode.base_s * stages,
        slow_tokens=() if parallelism.prefill_mtp else NO_PREFILL_MTP,
    )
    if parallelism.numa_balancing:
        prefill, decode = prefill.faster(1 / NUMA_SPEED), decode.faster(1 / NUMA_SPEED)
    return replace(
        built,
        prefill=prefill,
        decode=decode,
        tensor_parallel=stages * stage_gpus // built.dp_ranks,
        gpus=stages * stage_gpus,
        parallelism=parallelism,
    )


def _check(profile: EngineProfile, parallelism: Parallelism) -> None:
    experts = parallelism.expert_parallel or parallelism.expert_balance != AS_PROFILE.expert_balance
    if experts and not profile.expert_share:
        raise ValueError(f"{profile.name} has no experts")
    if not parallelism.prefill_mtp and profile.decode.mtp_speedup <= 1:
        raise ValueError(f"{profile.name} decodes without MTP")
    if parallelism.stage_gpus(profile.gpus) % profile.dp_ranks:
        raise ValueError(
            f"{profile.name} has {profile.dp_ranks} data-parallel ranks, and {parallelism.expert_parallel} "
            "GPUs are not the same number for each"
        )
    if parallelism.pipeline_parallel > profile.shape.layers:
        raise ValueError(f"{profile.name} has {profile.shape.layers} layers, fewer than pipeline stages")
