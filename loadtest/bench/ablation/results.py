"""Results as a JSON file: one entry for each arm, model and round."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import msgspec

from loadtest.client import Outcome
from loadtest.report import percentile


class Run(msgspec.Struct, frozen=True):
    """Result of one arm in one round.

    Attributes:
        round_number: From 0; rounds differ by their seed.
        cached_tokens: Reused tokens by the engines' answers.
        engine_hit_tokens: Reused tokens by the engines' counters.
        ideal_ratio: Share of the prompts that one infinite cache would reuse.
        predicted_tokens: Cached tokens that the gateway expected.
        error_tokens: Mean distance between expected and reused tokens of a request.
        promised_tokens: Mean of the tokens expected beyond those reused.
        promised_ratio: Share of the requests for which that is more than one KV block of the engine.
        ttft_mean_s: From when a request was due, like the percentiles.
        gateway_cpu_ms: CPU of the gateway's process per request, background work included.
        duration_s: From the first request to the last answer.
    """

    model: str
    arm: str
    round_number: int
    requests: int
    prompt_tokens: int
    cached_tokens: int
    engine_hit_tokens: int
    ideal_ratio: float
    predicted_tokens: int
    error_tokens: float
    promised_tokens: float
    promised_ratio: float
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    gateway_cpu_ms: float
    duration_s: float

    @property
    def hit_ratio(self) -> float:
        """Reused share of the prompt tokens, 0 to 1."""
        return self.cached_tokens / self.prompt_tokens


class Results(msgspec.Struct, frozen=True):
    """All runs in their order, and versions of the engine and the machine by name."""

    versions: dict[str, str]
    runs: list[Run]


def summed(
    outcomes: Sequence[Outcome],
    *,
    model: str,
    arm: str,
    round_number: int,
    ideal_ratio: float,
    engine_hit_tokens: int,
    block_tokens: int,
    gateway_cpu_s: float,
    duration_s: float,
) -> Run:
    """Sum up the requests of one run, of which there is at least one, all answered."""
    beyond = [one.predicted_tokens - one.cached_tokens for one in outcomes]
    ttft_s = sorted(one.total_s if one.ttft_s is None else one.ttft_s for one in outcomes)
    return Run(
        model=model,
        arm=arm,
        round_number=round_number,
        requests=len(outcomes),
        prompt_tokens=sum(one.prompt_tokens for one in outcomes),
        cached_tokens=sum(one.cached_tokens for one in outcomes),
        engine_hit_tokens=engine_hit_tokens,
        ideal_ratio=round(ideal_ratio, 4),
        predicted_tokens=sum(one.predicted_tokens for one in outcomes),
        error_tokens=round(fmean(map(abs, beyond)), 1),
        promised_tokens=round(fmean(max(tokens, 0) for tokens in beyond), 1),
        promised_ratio=round(fmean(tokens > block_tokens for tokens in beyond), 4),
        ttft_mean_s=round(fmean(ttft_s), 4),
        ttft_p50_s=round(percentile(ttft_s, 0.5) or 0.0, 4),
        ttft_p90_s=round(percentile(ttft_s, 0.9) or 0.0, 4),
        gateway_cpu_ms=round(1e3 * gateway_cpu_s / len(outcomes), 3),
        duration_s=round(duration_s, 1),
    )


def read(path: Path) -> Results:
    """Read results; none if there is no such file. `msgspec.DecodeError` if it holds something else."""
    if not path.exists():
        return Results({}, [])
    return msgspec.json.decode(path.read_bytes(), type=Results)


def write(path: Path, results: Results) -> None:
    """Write results, one run a line."""
    runs = ",\n    ".join(msgspec.json.encode(run).decode() for run in results.runs)
    versions = msgspec.json.encode(results.versions).decode()
    path.write_text(f'{{\n  "versions": {versions},\n  "runs": [\n    {runs}\n  ]\n}}\n')
