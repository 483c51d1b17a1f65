"""Data that PrfaaS publishes (arXiv:2604.15039v2): nothing here is computed.

Lengths are tokens; the paper's K is 1,024 tokens in tables 3 and 5, and its threshold of 19.4K is 19,400,
since only that gives its 49.6 % (theory A6). Rates are requests per second, throughputs of KV Gbit/s.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

KI = 1024
MIB = 1 << 20

PHI_LENGTHS = (KI, 8 * KI, 32 * KI, 128 * KI)

TABLE_3: Mapping[str, tuple[float, float, float, float]] = MappingProxyType(
    {
        "Kimi Linear": (1.19, 2.29, 3.87, 4.88),
        "MiMo-V2-Flash": (0.82, 2.85, 4.66, 4.71),
        "Qwen3.5-397B": (4.13, 6.28, 8.25, 7.47),
        "Ring-2.5-1T": (7.27, 4.47, 2.59, 1.46),
        "MiniMax-M2.5": (4.94, 32.87, 59.93, 47.82),
        "Qwen3-235B": (4.12, 22.42, 33.35, 21.50),
    }
)
"""KV throughput at `PHI_LENGTHS` on 8 H200 with SGLang v0.5.9, Gbit/s. Neither S nor T is published."""

SITE_INSTANCES = 64
"""Section 2.3: 512 H200, eight to an instance."""

LARGE_SITE_INSTANCES = 1250
"""Section 2.3: 10,000 GPUs."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A row of table 5: length, S, T on 8 H200, Phi."""

    tokens: int
    kv_mib: float
    prefill_s: float
    kv_gbps: float


TABLE_5 = (
    Measured(KI, 190.8, 0.44, 3.61),
    Measured(8 * KI, 308.9, 0.72, 3.59),
    Measured(32 * KI, 701.3, 1.84, 3.19),
    Measured(128 * KI, 2316.3, 7.40, 2.62),
)
"""The case study's model, 1T parameters, KDA to MLA 3:1."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """A column of table 6.

    Attributes:
        remote: N_prfaas, instances of 8 H200 in the other site.
        prefill: N_p, instances of 8 H20 that prefill.
        decode: N_d, instances of 8 H20 that decode.
        remote_per_s: Th_prfaas; None where there is no such stage, as in the next two.
        prefill_per_s: Th_pdp.
        decode_per_s: Th_pdd.
        requests_per_s: Lambda.
        ratio: Lambda over that of the homogeneous deployment.
    """

    name: str
    remote: int
    prefill: int
    decode: int
    ttft_mean_s: float
    ttft_p90_s: float
    remote_per_s: float | None
    prefill_per_s: float | None
    decode_per_s: float
    requests_per_s: float
    ratio: float


PRFAAS = Deployment("PrfaaS-PD", 4, 3, 5, 2.22, 3.51, 1.61, 1.64, 3.91, 3.24, 1.54)
HOMOGENEOUS = Deployment("Homogeneous PD", 0, 9, 3, 4.44, 9.73, None, 2.11, 2.35, 2.11, 1.00)
NAIVE = Deployment("Naive heterogeneous PD", 4, 0, 8, 1.74, 3.51, 2.45, None, 6.25, 2.45, 1.16)

THRESHOLD_TOKENS = 19_400

MU, SIGMA = 9.90, 1.00
TOKENS_MIN, TOKENS_MAX = 128, 128 * KI
"""Section 4.1: prompts are lognormal, cut off on both sides; all of a prompt is uncached."""

OUTPUT_TOKENS = 1024
TOKENS_PER_S = 40.0
"""Section 4.1: answers, and the pace that they are promised."""

LINK_GBPS = 100.0
