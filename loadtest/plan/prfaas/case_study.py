"""PrfaaS's tables 3, 5 and 6 computed again, each figure beside the published one.

A figure is *checked* within `TOLERANCE_RATIO` where the paper publishes its inputs, or where a value solved
from one figure predicts others (theory A6). The rest proves nothing, for a reason:

    fitted          the model was fitted to the very figure
    rounded         the paper rounds it too much, or gives a bound
    not published   what it takes is missing: S and T of table 3, prices of hardware
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from loadtest.engine.profiles import PROFILES
from loadtest.plan.prfaas.curves import (
    DECODE_PER_S,
    egress_bytes_per_s,
    h20_s,
    h200_s,
    kv_bytes,
    kv_bytes_per_s,
    prompt_lengths,
)
from loadtest.plan.prfaas.paper import (
    HOMOGENEOUS,
    KI,
    LARGE_SITE_INSTANCES,
    LINK_GBPS,
    MIB,
    NAIVE,
    PHI_LENGTHS,
    PRFAAS,
    SITE_INSTANCES,
    TABLE_3,
    TABLE_5,
    THRESHOLD_TOKENS,
)
from policies.disaggregation import (
    Optimum,
    RemoteSite,
    Split,
    Stages,
    Throughput,
    ThroughputModel,
    UncachedLengths,
    WorkerClass,
)

TOLERANCE_RATIO = 0.03

BACK_SOLVED = "H20 times solved back"

_SOLVED = "fitted: T of the H20 at {} is solved back from it"

_BATCH = "BS_max = 20"

GBPS = 1e9 / 8
"""Bytes per second."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A published figure, if there is one, and the same computed.

    Attributes:
        unit: Of both.
        checked: It must come out.
        note: A remark.
    """

    what: str
    published: float | None
    computed: float
    unit: str = ""
    checked: bool = True
    note: str = ""

    @property
    def difference_ratio(self) -> float | None:
        """By how much the computed figure is more than the published one."""
        return None if self.published is None else self.computed / self.published - 1.0

    @property
    def off(self) -> bool:
        """True if it must come out and does not."""
        difference = self.difference_ratio
        return self.checked and (difference is None or abs(difference) > TOLERANCE_RATIO)


@dataclass(frozen=True, slots=True)
class Part:
    """Figures that belong together, and a caveat that holds for all of them."""

    title: str
    figures: Sequence[Figure]
    caveat: str = ""


@dataclass(frozen=True)
class CaseStudy:
    """Table 6 and the text's figures of it, computed; ``lengths`` are uncached."""

    lengths: UncachedLengths

    @cached_property
    def best(self) -> Optimum:
        """The optimum by grid search over t and N_p, on the paper's link."""
        return self.model(LINK_GBPS).best()

    @cached_property
    def published(self) -> Throughput:
        """Service with the paper's threshold and split."""
        return self.model(LINK_GBPS).at(THRESHOLD_TOKENS, Split((PRFAAS.prefill,), (PRFAAS.decode,)))

    @cached_property
    def homogeneous(self) -> Optimum:
        """The best split of 12 H20 instances without another site."""
        instances = HOMOGENEOUS.prefill + HOMOGENEOUS.decode
        return ThroughputModel(self.lengths, Stages([_h20(instances)]), mean_of_times=False).best()

    @cached_property
    def naive(self) -> Throughput:
        """All prefill in the other site."""
        return self.model(LINK_GBPS).at(0.0, Split((0,), (NAIVE.decode,)))

    def model(self, gbps: float) -> ThroughputModel:
        """The fleet with 4 H200 and 8 H20 instances, with the paper's means of lengths, behind a link."""
        remote = RemoteSite([(PRFAAS.remote, h200_s)], gbps * GBPS)
        stages = Stages([_h20(PRFAAS.prefill + PRFAAS.decode)], [remote], kv_bytes)
        return ThroughputModel(self.lengths, stages, mean_of_times=False)

    def ttft_s(self, threshold_tokens: float) -> tuple[float, float]:
        """Mean and 90th percentile of the prefill time if prompts above a threshold are remote."""
        tokens, shares = self.lengths.tokens, self.lengths.requests
        times = np.where(tokens > threshold_tokens, h200_s(tokens), h20_s(tokens))
        order = np.argsort(times, kind="stable")
        rank = int(np.searchsorted(np.cumsum(shares[order]), 0.9 * shares.sum()))
        return float(times @ shares) / float(shares.sum()), float(times[order][rank])


def parts() -> list[Part]:
    """Everything, in the order of the paper."""
    study = CaseStudy(prompt_lengths())
    return [
        _table_3(),
        _table_5(),
        _lengths(study),
        _table_6(study),
        _homogeneous(study),
        _naive(study),
        _claims(study),
        _links(study),
    ]


def _h20(instances: int) -> WorkerClass:
    return WorkerClass(h20_s, DECODE_PER_S, convertible=instances)


def _table_3() -> Part:
    flash = PROFILES["mimo-v2-flash"]
    figures = [
        Figure(
            f"MiMo-V2-Flash, Phi at {tokens // KI}K",
            published,
            kv_bytes_per_s(flash.shape.kv_bytes(tokens), flash.prefill.prompt_s(tokens, 0)) / GBPS,
            "Gbit/s",
            checked=False,
            note="S from the model's layers, T fitted to this row",
        )
        for tokens, published in zip(PHI_LENGTHS, TABLE_3["MiMo-V2-Flash"], strict=True)
    ]
    sites = (
        ("MiniMax-M2.5", 32, SITE_INSTANCES, 3800.0, True),
        ("Qwen3-235B", 32, SITE_INSTANCES, 2100.0, True),
        ("Ring-2.5-1T", 32, SITE_INSTANCES, 170.0, True),
        ("Ring-2.5-1T", 128, SITE_INSTANCES, 100.0, False),
        ("Ring-2.5-1T", 128, LARGE_SITE_INSTANCES, 1800.0, True),
    )
    for model, length, instances, published, checked in sites:
        phi = TABLE_3[model][PHI_LENGTHS.index(length * KI)]
        figures.append(
            Figure(
                f"{model}, {instances} instances at {length}K",
                published,
                egress_bytes_per_s(instances, phi * GBPS, 1.0) / GBPS,
                "Gbit/s",
                checked,
                "" if checked else 'the paper says "below 100"',
            )
        )
    return Part(
        "Table 3 and section 2.3: KV throughput, equation (2)",
        figures,
        "The paper gives neither S nor T of these models, so Phi of the other five cannot be computed.",
    )


def _table_5() -> Part:
    shape = PROFILES["kimi-linear-1t"].shape
    figures = [
        Figure(
            f"Phi at {row.tokens // KI}K",
            row.kv_gbps,
            kv_bytes_per_s(row.kv_mib * MIB, row.prefill_s) / GBPS,
            "Gbit/s",
        )
        for row in TABLE_5
    ]
    figures += [
        Figure(
            f"S at {row.tokens // KI}K",
            row.kv_mib,
            shape.kv_bytes(row.tokens) / MIB,
            "MiB",
            checked=row.tokens > 8 * KI,
            note="from the layers" + (", fitted here" if row.tokens <= 8 * KI else ""),
        )
        for row in TABLE_5
    ]
    return Part("Table 5: the 1T hybrid model on 8 H200, equation (1)", figures)


def _lengths(study: CaseStudy) -> Part:
    at = study.published
    mean = float(study.lengths.tokens @ study.lengths.requests)
    return Part(
        "Section 4.1: lengths, and what is longer than 19.4K",
        [
            Figure("mean length", 27.0, mean / KI, "Ki tokens"),
            Figure("p, share that is longer", 49.6, 100 * at.remote_ratio, "%"),
            Figure("l_long, their mean", 44.0, at.long_tokens / KI, "Ki tokens"),
        ],
    )


def _table_6(study: CaseStudy) -> Part:
    best, at = study.best, study.published
    mean_s, p90_s = study.ttft_s(THRESHOLD_TOKENS)
    assert PRFAAS.remote_per_s is not None
    assert PRFAAS.prefill_per_s is not None
    return Part(
        f"Table 6, {PRFAAS.name}: {PRFAAS.remote} H200 and {PRFAAS.prefill + PRFAAS.decode} H20 instances",
        [
            Figure("t, optimum", 19.4, best.throughput.threshold_tokens / 1e3, "K tokens", note=BACK_SOLVED),
            Figure("N_p, optimum", PRFAAS.prefill, best.split.prefill_workers, "instances"),
            Figure("N_d, optimum", PRFAAS.decode, best.split.decode_workers, "instances"),
            Figure(
                "Lambda, optimum",
                PRFAAS.requests_per_s,
                best.throughput.requests_per_s,
                "requests/s",
                note=BACK_SOLVED,
            ),
            Figure("Th_prfaas at 19.4K", PRFAAS.remote_per_s, at.remote_per_s, "requests/s"),
            Figure(
                "Th_pdp at 19.4K",
                PRFAAS.prefill_per_s,
                at.prefill_per_s,
                "requests/s",
                checked=False,
                note=_SOLVED.format("10.2K"),
            ),
            Figure("Th_pdd", PRFAAS.decode_per_s, at.decode_per_s, "requests/s", note=_BATCH),
            Figure("Lambda at 19.4K", PRFAAS.requests_per_s, at.requests_per_s, "requests/s"),
            Figure("TTFT, mean", PRFAAS.ttft_mean_s, mean_s, "s", note=BACK_SOLVED),
            Figure("TTFT, P90", PRFAAS.ttft_p90_s, p90_s, "s"),
        ],
        "The paper's TTFT is prefill time alone: without queueing, without transfer.",
    )


def _homogeneous(study: CaseStudy) -> Part:
    found, split = study.homogeneous.throughput, study.homogeneous.split
    mean_s, p90_s = study.ttft_s(np.inf)
    assert HOMOGENEOUS.prefill_per_s is not None
    return Part(
        f"Table 6, {HOMOGENEOUS.name}: {HOMOGENEOUS.prefill + HOMOGENEOUS.decode} H20 instances",
        [
            Figure("N_p, optimum", HOMOGENEOUS.prefill, split.prefill_workers, "instances"),
            Figure("N_d, optimum", HOMOGENEOUS.decode, split.decode_workers, "instances"),
            Figure(
                "Th_pdp",
                HOMOGENEOUS.prefill_per_s,
                found.prefill_per_s,
                "requests/s",
                checked=False,
                note=_SOLVED.format("27.5K"),
            ),
            Figure("Th_pdd", HOMOGENEOUS.decode_per_s, found.decode_per_s, "requests/s", note=_BATCH),
            Figure("TTFT, mean", HOMOGENEOUS.ttft_mean_s, mean_s, "s", note=BACK_SOLVED),
            Figure(
                "TTFT, P90",
                HOMOGENEOUS.ttft_p90_s,
                p90_s,
                "s",
                checked=False,
                note=_SOLVED.format("62.4K"),
            ),
        ],
    )


def _naive(study: CaseStudy) -> Part:
    found = study.naive
    mean_s, p90_s = study.ttft_s(0.0)
    homogeneous = study.homogeneous.throughput.requests_per_s
    return Part(
        f"Table 6, {NAIVE.name}: {NAIVE.remote} H200 and {NAIVE.decode} H20 instances",
        [
            Figure("Th_prfaas, Lambda", NAIVE.requests_per_s, found.requests_per_s, "requests/s"),
            Figure("Th_pdd", NAIVE.decode_per_s, found.decode_per_s, "requests/s", note=_BATCH),
            Figure(
                "Lambda over homogeneous",
                NAIVE.ratio,
                found.requests_per_s / homogeneous,
                "times",
                note=BACK_SOLVED,
            ),
            Figure("TTFT, mean", NAIVE.ttft_mean_s, mean_s, "s"),
            Figure("TTFT, P90", NAIVE.ttft_p90_s, p90_s, "s"),
        ],
    )


def _claims(study: CaseStudy) -> Part:
    ours, other = study.best.throughput, study.homogeneous.throughput
    (mean_s, p90_s), (other_mean_s, other_p90_s) = study.ttft_s(THRESHOLD_TOKENS), study.ttft_s(np.inf)
    egress_gbps = ours.egress_bytes_per_s / GBPS
    phi = next(row.kv_gbps for row in TABLE_5 if row.tokens == 32 * KI)
    return Part(
        "Section 4: what is claimed",
        [
            Figure(
                "Lambda over homogeneous (+54 %)",
                1.54,
                ours.requests_per_s / other.requests_per_s,
                "times",
                note=BACK_SOLVED,
            ),
            Figure(
                "Lambda over naive (+32 %)", 1.32, ours.requests_per_s / study.naive.requests_per_s, "times"
            ),
            Figure("mean TTFT over homogeneous (-50 %)", 0.50, mean_s / other_mean_s, "times"),
            Figure("P90 TTFT over homogeneous (-64 %)", 0.36, p90_s / other_p90_s, "times"),
            Figure(
                "egress, equation (2) with Phi at 32K",
                13.0,
                egress_bytes_per_s(PRFAAS.remote, phi * GBPS, 1.0) / GBPS,
                "Gbit/s",
                note="how its 13 % of the link comes about",
            ),
            Figure(
                "egress, p · Lambda · S(l_long)",
                13.0,
                egress_gbps,
                "Gbit/s",
                checked=False,
                note="what really crosses at the optimum",
            ),
            Figure(
                "egress, share of the link",
                13.0,
                100 * egress_gbps / LINK_GBPS,
                "%",
                checked=False,
                note="the same",
            ),
        ],
        "+15 % at equal cost is not computed: the paper gives no prices.",
    )


def _links(study: CaseStudy) -> Part:
    """Conditions under which a link would matter, which the paper does not discuss."""
    ours = study.best.throughput
    kv = float(kv_bytes(np.array([ours.long_tokens]))[0])
    minimax = TABLE_3["MiniMax-M2.5"][PHI_LENGTHS.index(32 * KI)]
    figures = [
        Figure(
            "bandwidth below which egress binds",
            None,
            ours.egress_bytes_per_s / GBPS,
            "Gbit/s",
            checked=False,
            note=f"of {LINK_GBPS:g}",
        ),
        Figure(
            f"what {LINK_GBPS:g} Gbit/s could carry",
            None,
            LINK_GBPS * GBPS / kv,
            "requests/s",
            checked=False,
            note=f"B_out/S(l_long), where Th_prfaas is {ours.remote_per_s:.2f}",
        ),
        Figure(
            "bandwidth that the same instances with MiniMax-M2.5 would need",
            None,
            egress_bytes_per_s(PRFAAS.remote, minimax * GBPS, 1.0) / GBPS,
            "Gbit/s",
            checked=False,
            note="Phi of table 3 at 32K",
        ),
    ]
    for gbps in (10.0, 5.0, 2.0, 1.0):
        best = study.model(gbps).best()
        split, found = best.split, best.throughput
        figures.append(
            Figure(
                f"Lambda behind {gbps:g} Gbit/s",
                None,
                found.requests_per_s,
                "requests/s",
                checked=False,
                note=f"t = {found.threshold_tokens / 1e3:.1f}K, N_p/N_d = "
                f"{split.prefill_workers}/{split.decode_workers}, bound by {found.bound}",
            )
        )
    return Part("Not in the paper: when the link matters", figures)
