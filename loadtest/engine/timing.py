"""Every formula of an engine's time.

    prefill of u tokens behind c      a + b·u·(1 + (c + u/2)/c0)           policies.estimates.costs, theory E1
    a step of several chunks          step + linear parts + the slowest rank's attention
    decode of n requests, K tokens    base + request·n + kv·K  per step, ``mtp_speedup`` tokens each; the
                                      first tokens of a request may be slower (`DecodeTiming.slow_tokens`)
    move m seconds beside compute x   max(x + m/L, m + x/L)                    pipelined over L layers

**Chunks** of a prompt add up to the formula of the whole prompt: ``a`` is paid once, with the first chunk,
``step_s`` by each step. In PrfaaS's table 5 (arXiv:2604.15039) a prompt of 1K takes 0.44 s and one of 8K 0.72
s, so the constant is large, and one of 128K has not paid it sixteen times.

**Data-parallel attention.** Tokens of all ranks add up in the linear part; in the attention part, each with
1/R of the engine, all wait for the longest (MiMo-V2.5, arXiv:2607.13095, 5.2). With equal ranks the step is
the formula above.

**Decode.** A step reads the weights once (``base_s``), the KV of every request (``kv_token_s`` per token of
context, of the longest rank as above) and pays for each request (window, state, activations). While n
requests run, K grows by n with every token: a quadratic with a closed solution, `Stretch`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt

from policies import ServiceModel


@dataclass(frozen=True, slots=True)
class PrefillTiming:
    """Prices of prefill on one engine.

    Attributes:
        a_s: Fixed seconds of a prompt, paid with its first chunk.
        b_s: Seconds per uncached token at an empty context.
        c0_tokens: Context that doubles the price of a token.
        step_s: Fixed seconds of a step.
    """

    a_s: float
    b_s: float
    c0_tokens: float
    step_s: float = 0.0

    def model(self) -> ServiceModel:
        """The prices as the policies know them: of a prompt that is one step."""
        return ServiceModel(self.a_s + self.step_s, self.b_s, self.c0_tokens)

    def prompt_s(self, uncached_tokens: int, cached_tokens: int) -> float:
        """Seconds of a prompt alone on the engine, in one step and on one rank."""
        return self.model().service_s(uncached_tokens, cached_tokens)

    def linear_s(self, tokens: int) -> float:
        """Seconds of ``tokens`` apart from attention to their context."""
        return self.b_s * tokens

    def attention_s(self, tokens: int, context_tokens: int) -> float:
        """Seconds that ``tokens`` attend to the ``context_tokens`` before them and to each other."""
        return self.b_s * tokens * ((context_tokens + tokens * 0.5) / self.c0_tokens)

    def step_of(self, new_prompts: int, ranks: Sequence[Iterable[tuple[int, int]]]) -> float:
        """Seconds of one step in which ``new_prompts`` begin.

        ``ranks`` has chunks as (tokens, context before them).
        """
        linear_s = longest_s = 0.0
        for chunks in ranks:
            attention_s = 0.0
            for tokens, context in chunks:
                linear_s += self.linear_s(tokens)
                attention_s += self.attention_s(tokens, context)
            longest_s = max(longest_s, attention_s)
        return self.step_s + self.a_s * new_prompts + linear_s + longest_s * len(ranks)

    def faster(self, speed: float) -> "PrefillTiming":
        """An engine ``speed`` times as fast."""
        return replace(self, a_s=self.a_s / speed, b_s=self.b_s / speed, step_s=self.step_s / speed)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A decode batch until a member joins or leaves.

    Attributes:
        step_s: Seconds of a step now; 0: answers come at once.
        growth_s: Growth of a step per token that each request has got, seconds.
        tokens_per_step: Tokens per step and request.
    """

    step_s: float
    growth_s: float
    tokens_per_step: float

    def seconds(self, tokens: float) -> float:
        """Seconds until every request has got ``tokens`` more."""
        return tokens * (self.step_s + 0.5 * self.growth_s * tokens) / self.tokens_per_step

    def tokens(self, seconds: float) -> float:
        """Tokens that every request gets in ``seconds``: the inverse of `seconds`."""
        if seconds <= 0:
            return 0.0
        if self.step_s <= 0:
            return inf
        # The root of the quadratic, in the form that does not cancel for small growth.
        steps = seconds * self.tokens_per_step
        return 2 * steps / (self.step_s + sqrt(self.step_s * self.step_s + 2 * self.growth_s * steps))


@dataclass(frozen=True, slots=True)
class DecodeTiming:
    """Prices of decode on one engine.

    Attributes:
        base_s: Fixed seconds of a step: reading the weights, launching kernels.
        request_s: Seconds per request in the batch.
        kv_token_s: Seconds per token of context that the batch attends to, with one rank.
        mtp_speedup: Tokens per step and request: 1, or more with multi-token prediction.
        slow_tokens: Ranges of a request's decoded tokens that come more slowly, as pairs of the range's
            end, ascending, and the slowness, above 1. Empty: all come at one speed.
    """

    base_s: float
    request_s: float = 0.0
    kv_token_s: float = 0.0
    mtp_speedup: float = 1.0
    slow_tokens: tuple[tuple[int, float], ...] = ()

    def full_speed_tokens(self, tokens: float) -> float:
        """Tokens at full speed that take as long as the first ``tokens`` of a request."""
        full, begin = tokens, 0
        for end, slowness in self.slow_tokens:
            full += (slowness - 1.0) * max(0.0, min(tokens, end) - begin)
            begin = end
        return full

    def tokens_of(self, full_speed_tokens: float) -> float:
        """Tokens of a request in the time of ``full_speed_tokens``: the inverse of `full_speed_tokens`."""
        left, begin = full_speed_tokens, 0
        for end, slowness in self.slow_tokens:
            if left < (end - begin) * slowness:
                return begin + left / slowness
            left -= (end - begin) * slowness
            begin = end
        return begin + left

    def beside_s(self, requests: int, kv_tokens: float, ranks: int = 1) -> float:
        """Seconds that a rank's decode tokens add to a step that is done anyway."""
        return ranks * (self.request_s * requests + self.kv_token_s * kv_tokens)

    def stretch(self, requests: int, kv_tokens: float, ranks: int = 1) -> Stretch:
        """Decode steps of a batch whose slowest rank has ``requests`` > 0 with ``kv_tokens`` of context.

        Each of the ``ranks`` has a share of the engine's bandwidth.
        """
        return Stretch(
            self.base_s + self.beside_s(requests, kv_tokens, ranks),
            ranks * self.kv_token_s * requests,
            self.mtp_speedup,
        )

    def faster(self, speed: float) -> "DecodeTiming":
        """An engine ``speed`` times as fast."""
        return replace(
            self,
            base_s=self.base_s / speed,
            request_s=self.request_s / speed,
            kv_token_s=self.kv_token_s / speed,
        )


def pipelined_s(compute_s: float, move_s: float, layers: int) -> float:
    """Seconds of computing and moving KV, layer by layer, one behind the other, in either order.

    Both take the longer of the two plus one layer of the other (HiCache design, layer-wise overlap; PrfaaS
    3.1, layer-wise pipelining).
    """
    return max(compute_s + move_s / layers, move_s + compute_s / layers)


@dataclass(frozen=True, slots=True)
class LinkTiming:
    """A way for KV blocks: host to device, or prefill to decode worker; latency until the first byte."""

    bytes_per_s: float
    latency_s: float = 0.0

    def move_s(self, n_bytes: int) -> float:
        """Seconds of moving ``n_bytes``, alone on the link; 0 bytes take no time."""
        return self.latency_s + n_bytes / self.bytes_per_s if n_bytes else 0.0

    def exposed_s(self, n_bytes: int, compute_s: float, layers: int) -> float:
        """Seconds that moving adds to the computing it is pipelined with."""
        return pipelined_s(compute_s, self.move_s(n_bytes), layers) - compute_s

    def faster(self, speed: float) -> "LinkTiming":
        """A link ``speed`` times as fast."""
        return LinkTiming(self.bytes_per_s * speed, self.latency_s / speed)
