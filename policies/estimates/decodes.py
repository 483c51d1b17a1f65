"""Number of requests that a worker will be decoding, and their time per output token.

    TPOT(n) = base + slope · n          seconds per output token while n requests decode together

A decode step reads the weights once for all of its requests and the KV of each, so its time is about a line
in the size of the batch, learned by least squares that forget (`DecodeFit`).

**Predicted at the end of the prefill.** A request that is judged now decodes only after its prefill. Judged
by the present batch, too many are let in while it is small, arrive together, and then none until it is empty:
the loads oscillate (Mooncake, arXiv:2407.00079, section 7, "early rejection"; theory C). So requests that end
a prefill by then are added, and those that end a decode are taken away (`decoding_after`). Decodes end at
random, after t_d on average (Mooncake: all after t_d): output lengths scatter about as much as their mean,
and the age of a decode is not known.
"""

from math import exp

MEMORY = 256
"""Answers that the fit remembers: a minute of one busy worker."""

OBSERVATIONS_MIN = 32
"""Answers before anything is predicted."""

SPREAD = 4.0
"""Variance of the batch size below which a slope is not believed: two requests more or less."""


class DecodeFit:
    """Learns the cost of decoding on one worker class.

    ``decode_s`` is the mean time from first to last token, in seconds; 0 before the first answer.
    """

    __slots__ = ("_base_s", "_nn", "_observations", "_slope_s", "_sum_n", "_sum_t", "_tn", "decode_s")

    def __init__(self) -> None:
        self._observations = 0
        self._sum_n = self._sum_t = self._nn = self._tn = 0.0
        self._base_s = self._slope_s = 0.0
        self.decode_s = 0.0

    def observe(self, requests: float, decode_s: float, tokens: int) -> None:
        """Learn from an answer of several tokens, decoded in a batch of ``requests``, this one included."""
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
        """Fit from another replica's line, mean batch size and ``decode_s``."""
        fit = cls()
        fit._observations = OBSERVATIONS_MIN
        fit._base_s, fit._slope_s, fit._sum_n, fit.decode_s = base_s, slope_s, requests, decode_s
        return fit

    def line(self) -> tuple[float, float, float, float]:
        """Arguments of `told`."""
        return self._base_s, self._slope_s, self._sum_n, self.decode_s

    @property
    def known(self) -> bool:
        """True if enough was observed to predict anything."""
        return self._observations >= OBSERVATIONS_MIN

    @property
    def line_s(self) -> tuple[float, float]:
        """Base and slope, both >= 0."""
        return self._base_s, self._slope_s

    def tpot_s(self, requests: float) -> float:
        """Seconds per output token while this number of requests decode together."""
        return self._base_s + self._slope_s * requests

    def lasts_s(self, requests: float) -> float:
        """Seconds that a decode lasts beside this number of requests; 0 before the first answer."""
        usual_s = self.tpot_s(self._sum_n)
        return self.decode_s * self.tpot_s(requests) / usual_s if usual_s > 0 else self.decode_s

    def requests_within(self, tpot_s: float) -> float:
        """Requests that may decode together with this time per token; 0 if not even one may."""
        if self._slope_s > 0:
            return max((tpot_s - self._base_s) / self._slope_s, 0.0)
        return float("inf") if self._base_s <= tpot_s else 0.0


def decoding_after(horizon_s: float, decoding: float, prefilling: float, decode_s: float) -> float:
    """Requests that will be decoding in ``horizon_s``.

    Each of those that decode now is still at it then with the probability ``exp(-horizon/t_d)``, where
    ``decode_s`` is t_d > 0; those that prefill end one after the other, and begin to decode.
    """
    times = horizon_s / decode_s
    if times < 1e-9:
        return decoding + prefilling
    left = exp(-times)
    return decoding * left + prefilling * (1.0 - left) / times
