"""Throughput of a fleet with remote prefill, and the threshold and roles that maximise it.

The throughput model of PrfaaS (arXiv:2604.15039, section 3.4; theory A1). Requests whose uncached length L
exceeds the threshold t are prefilled in another site, the others here:

    (1) Phi(l)     = S(l)/T(l)                                bytes per second that one worker sends
    (2) B_out      = N·E[S]/E[T]                              bytes per second that a site sends
    (3) Th_remote  = min(N/T(l_long), B_out/S(l_long))        compute or the link, pipelined layer by layer
    (4) Th_prefill = N_p/T(l_short)
    (5) Th_decode  = N_d·BS_max/(T_decode·L_out)
    (6) Lambda     = min(Th_remote/p, Th_prefill/(1 - p), Th_decode),     p = P(L > t)
    (7) optimal t:      Th_remote/p = Th_prefill/(1 - p)
    (8) optimal N_p:    Th_remote + Th_prefill = Th_decode

T is the prefill time of a length and S the bytes of its KV that cross; l_long and l_short are the means of L
above and up to t. Th_remote/p falls and Th_prefill/(1 - p) rises with p, so (7) and (8) are solved by
evaluating every threshold of the histogram and every split: some hundred thousand numbers, in milliseconds.

Beyond the paper:

* **Several classes** of workers in a stage, and several sites: throughputs add up. Convertible workers that
  give up least decoding for the prefill they do come first (comparative advantage), so the splits form one
  line.
* **Mean times.** The paper takes T(E[L]) for the mean time. T is convex, so that is too short where lengths
  vary. With `mean_of_times`, the default, it is E[T].
* **Ties.** Where decode is the bottleneck many thresholds serve as many requests. Then the one at which the
  prefill stages saturate last counts, which is (7).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf

import numpy as np

from policies.estimates.costs import Floats, ServiceModel, service_s

Curve = Callable[[Floats], Floats]
"""Seconds, or bytes, by uncached length in tokens (> 0)."""

_EVEN = 1e-9
"""Throughputs closer than this are equal but for rounding."""


class Stage(StrEnum):
    """Bottleneck of the throughput."""

    REMOTE = "remote"
    LINK = "link"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class UncachedLengths:
    """Distribution of uncached lengths, in ascending bins.

    Attributes:
        tokens: Mean length in each bin, > 0.
        requests: Number or share of requests in each, >= 0.
        bounds: Inclusive upper bound of each bin: the thresholds that can be told apart.
    """

    tokens: Floats
    requests: Floats
    bounds: Floats

    @property
    def known(self) -> bool:
        """True if there is any request."""
        return bool(self.requests.sum() > 0)


@dataclass(frozen=True, slots=True)
class WorkerClass:
    """Workers of one class in the home site, by role; prefill time and decode rate are those of one."""

    prefill_s: Curve
    decode_per_s: float
    prefill: int = 0
    decode: int = 0
    convertible: int = 0


@dataclass(frozen=True, slots=True)
class RemoteSite:
    """Prefill workers in another site (number and prefill time, by class), and the capacity of its link."""

    workers: Sequence[tuple[int, Curve]]
    bytes_per_s: float = inf


@dataclass(frozen=True, slots=True)
class Stages:
    """Fleet that a model prices: workers at home by class, remote sites, KV bytes by length."""

    home: Sequence[WorkerClass]
    remote: Sequence[RemoteSite] = ()
    kv_bytes: Curve = np.zeros_like


@dataclass(frozen=True, slots=True)
class Split:
    """Numbers of workers of each class at home that prefill, and that decode."""

    prefill: tuple[int, ...]
    decode: tuple[int, ...]

    @property
    def prefill_workers(self) -> int:
        """Workers that prefill."""
        return sum(self.prefill)

    @property
    def decode_workers(self) -> int:
        """Workers that decode."""
        return sum(self.decode)


@dataclass(frozen=True, slots=True)
class Throughput:
    """Throughput of a fleet with one threshold and split, in requests per second.

    In the terms above: t (+inf: nothing is remote), p, l_long and l_short (0 without such requests),
    Th_remote, Th_prefill, Th_decode and Lambda; its bottleneck; and the bytes that cross the links at Lambda.
    """

    threshold_tokens: float
    remote_ratio: float
    long_tokens: float
    short_tokens: float
    remote_per_s: float
    prefill_per_s: float
    decode_per_s: float
    requests_per_s: float
    bound: Stage
    egress_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Optimum:
    """The split and the threshold that serve most."""

    split: Split
    throughput: Throughput


def service_curve(model: ServiceModel, tokens: Floats, cached_tokens: Floats) -> Curve:
    """Prefill times of a class by uncached length, behind mean cached tokens at ascending lengths."""

    def prefill_s(lengths: Floats) -> Floats:
        behind = np.interp(lengths, tokens, cached_tokens)
        a_s, b_s, c0_tokens = np.array([[model.a_s], [model.b_s], [model.c0_tokens]])
        return service_s(a_s, b_s, c0_tokens, lengths, behind)

    return prefill_s


class ThroughputModel:
    """Equations (3) to (8) on one histogram, which is not empty.

    ``mean_of_times`` prices a stage by E[T] of its requests, else by T of their mean length.
    """

    def __init__(self, lengths: UncachedLengths, stages: Stages, *, mean_of_times: bool = True) -> None:
        assert lengths.known
        self.stages = stages
        self.thresholds = np.concatenate([[0.0], lengths.bounds[:-1], [inf]])
        self._short = _Part(lengths, mean_of_times, above=False)
        self._long = _Part(lengths, mean_of_times, above=True)
        self._kv_bytes = self._long.mean(stages.kv_bytes)
        # (3), site by site; a site that sends nothing is not bound by its link.
        compute = np.zeros_like(self.thresholds)
        self._remote_per_s = np.zeros_like(self.thresholds)
        for site in stages.remote:
            busy = sum((count * self._long.rate(curve) for count, curve in site.workers), 0.0 * compute)
            with np.errstate(divide="ignore", invalid="ignore"):
                link = np.where(self._kv_bytes > 0, site.bytes_per_s / self._kv_bytes, inf)
            compute += busy
            self._remote_per_s += np.minimum(busy, link)
        self._link_binds = compute - self._remote_per_s
        # (4) of one worker of each class.
        self._prefill_per_s = np.array([self._short.rate(one.prefill_s) for one in stages.home]).reshape(
            len(stages.home), len(self.thresholds)
        )
        # The class that gives up least decoding for its prefill comes first; all lengths together.
        self._order = sorted(
            range(len(stages.home)),
            key=lambda k: (stages.home[k].decode_per_s / max(self._prefill_per_s[k, -1], 1e-300), k),
        )

    def splits(self) -> list[Split]:
        """Candidate splits, from the least prefill to the most; without a role only if all are."""
        home = self.stages.home
        prefill, decode = [one.prefill for one in home], [one.decode + one.convertible for one in home]
        found = [Split(tuple(prefill), tuple(decode))]
        for k in self._order:
            for _ in range(home[k].convertible):
                prefill[k] += 1
                decode[k] -= 1
                found.append(Split(tuple(prefill), tuple(decode)))
        return [split for split in found if split.prefill_workers and split.decode_workers] or found

    def best(self, splits: Sequence[Split] | None = None) -> Optimum:
        """The threshold and the split that serve most, (7) and (8), among all `splits` by default."""
        splits = self.splits() if splits is None else splits
        prefill = np.array([split.prefill for split in splits], dtype=np.float64).reshape(len(splits), -1)
        prefills_per_s = self._prefills_per_s(prefill @ self._prefill_per_s)
        decode_per_s = np.array([self._decode_per_s(split) for split in splits])
        served = np.minimum(prefills_per_s, decode_per_s[:, None])
        most = served.max()
        # Among equal throughputs, the split with most spare prefill wins, then the one that sends least.
        spare = np.where(served >= most * (1 - _EVEN), prefills_per_s, -1.0)
        even = spare >= spare.max() * (1 - _EVEN)
        split_number, cut = divmod(int(np.flatnonzero(even)[-1]), len(self.thresholds))
        split = splits[split_number]
        return Optimum(split, self._throughput(cut, split))

    def at(self, threshold_tokens: float, split: Split) -> Throughput:
        """Throughput of one threshold and split; a threshold within a bin counts as its lower bound."""
        cut = int(np.searchsorted(self.thresholds, threshold_tokens, side="right")) - 1
        return self._throughput(max(cut, 0), split)

    def _decode_per_s(self, split: Split) -> float:
        """(5)."""
        return sum(
            count * one.decode_per_s for count, one in zip(split.decode, self.stages.home, strict=True)
        )

    def _prefills_per_s(self, prefill_per_s: Floats) -> Floats:
        """Throughput of both prefill stages together, the first two parts of (6)."""
        return np.minimum(
            _over(self._remote_per_s, self._long.share), _over(prefill_per_s, self._short.share)
        )

    def _throughput(self, cut: int, split: Split) -> Throughput:
        remote_ratio, here_ratio = float(self._long.share[cut]), float(self._short.share[cut])
        remote = float(self._remote_per_s[cut])
        prefill = float(np.array(split.prefill, dtype=np.float64) @ self._prefill_per_s[:, cut])
        decode = self._decode_per_s(split)
        link = float(self._link_binds[cut]) > _EVEN * remote
        bounds = {
            Stage.LINK if link else Stage.REMOTE: remote / remote_ratio if remote_ratio > 0 else inf,
            Stage.PREFILL: prefill / here_ratio if here_ratio > 0 else inf,
            Stage.DECODE: decode,
        }
        bound = min(bounds, key=bounds.__getitem__)
        return Throughput(
            threshold_tokens=float(self.thresholds[cut]),
            remote_ratio=remote_ratio,
            long_tokens=float(self._long.tokens[cut]),
            short_tokens=float(self._short.tokens[cut]),
            remote_per_s=remote,
            prefill_per_s=prefill,
            decode_per_s=decode,
            requests_per_s=bounds[bound],
            bound=bound,
            egress_bytes_per_s=bounds[bound] * remote_ratio * float(self._kv_bytes[cut]),
        )


class _Part:
    """Requests up to each threshold, or above it."""

    def __init__(self, lengths: UncachedLengths, mean_of_times: bool, *, above: bool) -> None:
        self._lengths = lengths
        self._mean_of_times = mean_of_times
        self._above = above
        self._requests = self._sum(np.ones_like(lengths.tokens))
        # All are added in the same order, so that all shares are exactly 1.
        self.share = self._requests / self._requests.max()
        self.tokens = self._mean(lengths.tokens)

    def mean(self, curve: Curve) -> Floats:
        """Mean of a curve over the requests; 0 without any."""
        if self._mean_of_times:
            return self._mean(curve(self._lengths.tokens))
        some = self._requests > 0
        means = np.zeros_like(self.tokens)
        means[some] = curve(self.tokens[some])
        return means

    def rate(self, prefill_s: Curve) -> Floats:
        """Requests per second of one worker; 0 without any."""
        mean_s = self.mean(prefill_s)
        return np.divide(1.0, mean_s, out=np.zeros_like(mean_s), where=mean_s > 0)

    def _mean(self, values: Floats) -> Floats:
        return np.divide(
            self._sum(values), self._requests, out=np.zeros_like(self._requests), where=self._requests > 0
        )

    def _sum(self, values: Floats) -> Floats:
        """Sum over the requests for each threshold, added from the end at which there are none."""
        weighted = values * self._lengths.requests
        if self._above:
            return np.concatenate([np.cumsum(weighted[::-1])[::-1], [0.0]])
        return np.concatenate([[0.0], np.cumsum(weighted)])


def _over(per_s: Floats, share: Floats) -> Floats:
    """Requests per second of all, if a share of them goes through a stage."""
    unbound = np.full(np.broadcast_shapes(per_s.shape, share.shape), inf)
    np.divide(per_s, share, out=unbound, where=share > 0)
    return unbound
