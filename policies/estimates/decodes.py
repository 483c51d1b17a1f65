"""How many requests a worker will be decoding, and what that costs each of them.

    TPOT(n) = base + slope · n          seconds per output token while n requests decode together

A decode step reads the weights once for all of its requests and the KV of each, so its time is about a
line in the size of the batch (`loadtest.engine.timing` has the same form). The line is learned from answers,
by least squares that forget (`DecodeFit`), and so is how long a decode lasts.

**Predicted at the end of the prefill.** A request that is judged now decodes only when it has been prefilled,
seconds later. Judging it by who decodes now lets in too many while the batch is small, all of whom
arrive in it together, and then nobody, until it is empty again: prefill and decode load oscillate against
each other (Mooncake, arXiv:2407.00079, section 7, "early rejection"; theory C). So who ends a prefill by
then is added, and who ends a decode by then is taken away (`decoding_after`).

Mooncake lets every decode last the same time t_d. Here they end at random, after t_d on average: output
lengths scatter about as much as their mean, and who decodes now is known only by number, not by age. In a
steady state it is the same, and nothing is remembered of each request.
"""

from math import exp

MEMORY = 256
"""Answers that the fit remembers: a minute of one busy worker."""

OBSERVATIONS_MIN = 32
"""Before so many answers nothing is predicted."""

SPREAD = 4.0
"""Variance of the batch size below which a slope is not believed: two requests more or less."""


class DecodeFit:
    """Learns what decoding costs on one worker class.

    Attributes:
        decode_s: Mean time from first to last token, seconds; 0 before the first answer.
    """

    __slots__ = ("_base_s", "_nn", "_observations", "_slope_s", "_sum_n", "_sum_t", "_tn", "decode_s")

    def __init__(self) -> None:
        self._observations = 0
        self._sum_n = self._sum_t = self._nn = self._tn = 0.0
        self._base_s = self._slope_s = 0.0
        self.decode_s = 0.0

    def observe(self, requests: float, decode_s: float, tokens: int) -> None:
        """Learn from one answer.

        Args:
            requests: Decoding on its worker, this one included.
            decode_s: From its first token to its last.
            tokens: That it has; of one alone nothing can be learned.
        """
        if tokens < 2 or not 0 < decode_s < 1e6:
            return
        self._observations += 1
        share = 1.0 / min(self._observations, MEMORY)
        tpot_s = decode_s / (tokens - 1)
        self.decode_s += share * (decode_s - self.decode_s)
        self._sum_n += share * (requests - self._sum_n)
        self._sum_t += share * (tpot_s - self._sum_t)
        self._nn += share * (requests * requests - self._nn)
        self._tn += share * (requests * tpot_s - self._tn)
        covariance = self._tn - self._sum_n * self._sum_t
        self._slope_s = max(covariance / (self._nn - self._sum_n**2 + SPREAD), 0.0)
        self._base_s = max(self._sum_t - self._slope_s * self._sum_n, 0.0)

    @classmethod
    def told(cls, base_s: float, slope_s: float, requests: float, decode_s: float) -> "DecodeFit":
        """What another has learned: its line, the mean size of its batches, and its ``decode_s``."""
        fit = cls()
        fit._observations = OBSERVATIONS_MIN
        fit._base_s, fit._slope_s, fit._sum_n, fit.decode_s = base_s, slope_s, requests, decode_s
        return fit

    def line(self) -> tuple[float, float, float, float]:
        """What `told` takes."""
        return self._base_s, self._slope_s, self._sum_n, self.decode_s

    @property
    def known(self) -> bool:
        """Whether enough was observed to predict anything."""
        return self._observations >= OBSERVATIONS_MIN

    @property
    def line_s(self) -> tuple[float, float]:
        """Base and slope, both >= 0."""
        return self._base_s, self._slope_s

    def tpot_s(self, requests: float) -> float:
        """Seconds per output token while so many decode together."""
        return self._base_s + self._slope_s * requests

    def lasts_s(self, requests: float) -> float:
        """How long a decode lasts while so many decode together; 0 before the first answer."""
        usual_s = self.tpot_s(self._sum_n)
        return self.decode_s * self.tpot_s(requests) / usual_s if usual_s > 0 else self.decode_s

    def requests_within(self, tpot_s: float) -> float:
        """How many may decode together so that each has a token in this time; 0 if not even one may."""
        if self._slope_s > 0:
            return max((tpot_s - self._base_s) / self._slope_s, 0.0)
        return float("inf") if self._base_s <= tpot_s else 0.0


def decoding_after(horizon_s: float, decoding: float, prefilling: float, decode_s: float) -> float:
    """How many will be decoding.

    Args:
        horizon_s: From now on, >= 0.
        decoding: Who decodes now. Each is still at it then with the probability ``exp(-horizon/t_d)``.
        prefilling: Who ends a prefill until then, one after the other, and begins to decode.
        decode_s: t_d: how long a decode lasts on average, > 0.
    """
    times = horizon_s / decode_s
    if times < 1e-9:
        return decoding + prefilling
    left = exp(-times)
    return decoding * left + prefilling * (1.0 - left) / times
