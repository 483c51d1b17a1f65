"""A profile fitted to the gateway's request trace (``--request-trace``): ``cacheway calibrate``.

    prefill    requests that prefilled alone at their worker: a + b·u·(1 + (c + u/2)/c0) of their first token
    decode     time per output token, over the requests that decoded beside it and their context
    capacity   the LRU cache of each worker whose hits are nearest to those that the engine reported

A line tells when a request came, when its answer began and ended, and what the engine counted. Waiting in a
queue cannot be told from prefill. So requests that met another prefill at their worker are left out, and what
still lies above the line is taken for waiting.
Wall clocks of replicas differ by milliseconds; so do these figures.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadtest.profile.engine_file import Cache, EngineFile, EngineFileError, Prefill
from loadtest.profile.fits import Floats
from loadtest.profile.live import decode_prices, prefill_prices
from loadtest.traces import TraceError, opened_trace
from radix import FULL_ATTENTION, HASH_BYTES, PrefixTree

LINES_MAX = 2_000_000

SOLO_MAX = 20_000
"""Observations of a fit; more add nothing to three prices."""

CAPACITY_REQUESTS_MAX = 20_000
"""Requests of a worker that are replayed for its capacity, the newest ones."""

CAPACITY_STEP = 1.15
"""Ratio of the capacities that are tried."""

HIT_TOKENS_MIN = 2_048
"""Shorter matches say nothing of evictions: the beginning of an application's prompts stays.

Where all prompts are shorter, half of the longest match is the bound.
"""

UNEVICTED = 0.02
"""Share of an endless cache's hits that may be lacking without an eviction: rounding to blocks."""

DECODE_TOKENS_MIN = 16
"""Shorter answers say little about the pace of decode."""

_NOT_SEEN = (
    "Chunks, ranks, the number of running requests, tiers and prices are in no trace: they have the defaults "
    "of a profile. Add yours."
)

_BLOCKS_MAX = 1 << 40


class Line(msgspec.Struct, frozen=True, gc=False):
    """Read fields of a line; `router.request_trace.TraceLine` writes it."""

    arrived_unix_s: float
    duration_s: float
    ttft_s: float | None
    status: int
    outcome: str
    stream: bool
    prompt_tokens: int
    estimated: bool
    output_tokens: int | None
    cached_tokens: int | None
    worker_id: str
    attempts: int
    prompt_blocks: float
    blocks: bytes

    @property
    def first_s(self) -> float:
        """Unix seconds of its first token."""
        return self.arrived_unix_s + (self.duration_s if self.ttft_s is None else self.ttft_s)

    @property
    def end_s(self) -> float:
        """Unix seconds of its end."""
        return self.arrived_unix_s + self.duration_s


@dataclass(frozen=True, slots=True)
class Capacity:
    """Capacity of one worker, in tokens.

    Attributes:
        tokens: Best fit; if nothing was evicted, the least with which that could be.
        evicts: False if the trace shows no eviction, so that ``tokens`` is a lower bound.
        error: Mean of the difference between reported and fitted hits, over the reported ones.
        requests: Requests that could tell.
    """

    tokens: int
    evicts: bool
    error: float
    requests: int


def read_lines(path: Path) -> list[Line]:
    """Read a trace in order of arrival; lines that are torn or of another kind are left out.

    Raises:
        TraceError: It cannot be read, or is no trace of a gateway.
    """
    decode, lines, torn = msgspec.json.Decoder(Line).decode, [], 0
    with opened_trace(path) as opened:
        for text in opened:
            try:
                line = decode(text)
            except msgspec.MsgspecError:
                torn += 1
                continue
            if line.prompt_tokens < 1 or len(line.blocks) % HASH_BYTES:
                torn += 1
                continue
            lines.append(line)
            if len(lines) == LINES_MAX:
                break
    if not lines or torn > len(lines):
        raise TraceError(f"{path}: is no request trace of a gateway (observability.request_trace)")
    return sorted(lines, key=lambda line: line.arrived_unix_s)


def calibrate(lines: Sequence[Line], name: str) -> EngineFile:
    """Fit a profile; its notes carry residuals and confidence.

    Raises:
        EngineFileError: The trace tells too little of prefill, decode or capacity; it says what is missing.
    """
    notes: list[str] = []
    workers = _by_worker(lines)
    told = sum(map(len, workers.values()))
    solo = list(_solo_prefills(workers.values()))[-SOLO_MAX:]
    prefill = prefill_prices(solo, notes, f"{len(solo)} of {told} requests that prefilled alone")
    paces = list(_paces(workers.values()))[-SOLO_MAX:]
    decode = decode_prices(paces, notes, f"{len(paces)} answers of {DECODE_TOKENS_MIN} tokens or more")
    capacities = [found for found in map(capacity_of, workers.values()) if found is not None]
    missing = {
        "prefill (streamed answers with usage, of prompts of different length that did not queue)": prefill,
        f"decode (streamed answers of {DECODE_TOKENS_MIN} tokens or more)": decode,
        _capacity_lacks(workers): capacities,
    }
    lacking = [what for what, found in missing.items() if not found]
    if lacking or prefill is None or decode is None:
        raise EngineFileError(f"the trace has too little of: {'; '.join(lacking)}")
    _warn_of_narrow(solo, prefill, notes)
    return EngineFile(
        name=name,
        prefill=prefill,
        decode=decode,
        cache=Cache(tokens=_one_capacity(capacities, notes)),
        notes=(*notes, _NOT_SEEN),
    )


def _capacity_lacks(workers: Mapping[str, Sequence[Line]]) -> str:
    """Return the evidence of KV capacity that a trace without a fit of it lacks."""
    if any(line.cached_tokens is not None for lines in workers.values() for line in lines):
        return "KV capacity (prompts of a block or more that begin as an earlier one at the same worker)"
    return (
        "KV capacity (answers with cached_tokens: SGLang needs --enable-cache-report, vLLM "
        "--enable-prompt-tokens-details)"
    )


def _warn_of_narrow(solo: Sequence[tuple[float, float, float]], prefill: Prefill, notes: list[str]) -> None:
    lengths = np.array([u + c for u, c, _ in solo])
    low, high = np.quantile(lengths, [0.02, 0.98])
    if high < 4 * low or high < 0.1 * prefill.context_doubling_tokens:
        notes.append(
            f"Most prompts have {low:,.0f} to {high:,.0f} tokens: the quadratic part of prefill "
            "(context_doubling_tokens) is a guess beyond that (confidence: poor)."
        )


def _by_worker(lines: Iterable[Line]) -> Mapping[str, list[Line]]:
    """Completed requests with an engine's counts, by worker, in order of arrival."""
    workers: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        if line.worker_id and line.status == 200 and line.outcome == "completed" and not line.estimated:
            workers[line.worker_id].append(line)
    return workers


def _solo_prefills(workers: Iterable[Sequence[Line]]) -> Iterator[tuple[float, float, float]]:
    """Uncached tokens, cached tokens and seconds of requests whose prefill met no other at their worker."""
    for lines in workers:
        latest_s = -np.inf
        for number, line in enumerate(lines):
            next_s = lines[number + 1].arrived_unix_s if number + 1 < len(lines) else np.inf
            alone = line.arrived_unix_s > latest_s and next_s > line.first_s
            latest_s = max(latest_s, line.first_s)
            if (
                alone
                and line.stream
                and line.ttft_s
                and line.cached_tokens is not None
                and line.attempts == 1
            ):
                uncached = line.prompt_tokens - line.cached_tokens
                if uncached > 0:
                    yield float(uncached), float(line.cached_tokens), line.ttft_s


def _paces(workers: Iterable[Sequence[Line]]) -> Iterator[tuple[float, float, float]]:
    """Mean requests and context of the batch, and seconds per token, of each answer that is long enough."""
    for lines in workers:
        starts = np.array([line.first_s for line in lines])
        ends = np.array([line.end_s for line in lines])
        contexts = np.array([line.prompt_tokens + (line.output_tokens or 0) / 2 for line in lines])
        order = np.argsort(starts)
        starts, ends, contexts = starts[order], ends[order], contexts[order]
        # No answer takes longer, so earlier ones cannot decode beside this one.
        longest_s = float((ends - starts).max(initial=0.0))
        sorted_starts = starts.tolist()
        for line in lines:
            tokens = line.output_tokens or 0
            if not line.stream or tokens < DECODE_TOKENS_MIN or line.ttft_s is None:
                continue
            span_s = line.end_s - line.first_s
            if span_s <= 0:
                continue
            low = bisect_left(sorted_starts, line.first_s - longest_s)
            high = bisect_left(sorted_starts, line.end_s)
            overlap = np.minimum(ends[low:high], line.end_s) - np.maximum(starts[low:high], line.first_s)
            shares = np.maximum(overlap, 0.0) / span_s
            yield float(shares.sum()), float((shares * contexts[low:high]).sum()), span_s / (tokens - 1)


# ---- capacity ----


def capacity_of(lines: Sequence[Line]) -> Capacity | None:
    """Find the LRU capacity of a worker whose hits are nearest to those reported; None if none can tell."""
    seen = [line for line in lines if line.cached_tokens is not None and line.prompt_blocks > 0]
    seen = [line for line in seen if line.blocks][-CAPACITY_REQUESTS_MAX:]
    if not seen:
        return None
    block_tokens = float(np.median([line.prompt_tokens / line.prompt_blocks for line in seen]))
    endless = _hits(seen, _BLOCKS_MAX)
    # Tokens of answers are reused, too, and are in no hash of a prompt before.
    reported = np.minimum([float(line.cached_tokens or 0) for line in seen], endless)
    longest = float(endless.max())
    if longest <= 0:
        return None
    telling = endless >= min(HIT_TOKENS_MIN, longest / 2)
    held = _distinct_blocks(seen)
    blocks = float(max(len(line.blocks) // HASH_BYTES for line in seen))
    if _loss(reported, endless, telling) <= UNEVICTED:
        # The least cache that would have had these hits: any larger one is as likely.
        while blocks < held and _loss(_hits(seen, round(blocks)), endless, telling) > UNEVICTED:
            blocks *= CAPACITY_STEP
        least_tokens = max(round(blocks * block_tokens), 1)
        return Capacity(least_tokens, evicts=False, error=0.0, requests=int(telling.sum()))
    best_blocks, least = held, np.inf
    while blocks < held * CAPACITY_STEP:
        error = float(np.abs(_hits(seen, round(blocks)) - reported)[telling].sum())
        if error < least:
            best_blocks, least = round(blocks), error
        blocks *= CAPACITY_STEP
    return Capacity(
        max(round(best_blocks * block_tokens), 1),
        evicts=True,
        error=least / max(float(reported[telling].sum()), 1.0),
        requests=int(telling.sum()),
    )


def _loss(hits: Floats, endless: Floats, telling: NDArray[np.bool_]) -> float:
    """Share of an endless cache's hits that others lack."""
    return float(np.maximum(endless - hits, 0.0)[telling].sum() / endless[telling].sum())


def _hits(lines: Sequence[Line], capacity_blocks: int) -> Floats:
    """Tokens of each prompt that an LRU cache of ``capacity_blocks`` would reuse."""
    tree = PrefixTree(_BLOCKS_MAX, 1)
    tree.set_capacity(0, capacity_blocks)
    hits = np.zeros(len(lines))
    for number, line in enumerate(lines):
        match = tree.match(line.blocks, FULL_ATTENTION)
        blocks = match.matched_at(0)
        hits[number] = min(blocks * line.prompt_tokens / line.prompt_blocks, line.prompt_tokens - 1)
        tree.insert(0, line.blocks, number + 1, end=False)
    return hits


def _distinct_blocks(lines: Sequence[Line]) -> int:
    distinct: set[bytes] = set()
    for line in lines:
        distinct.update(line.blocks[at : at + HASH_BYTES] for at in range(0, len(line.blocks), HASH_BYTES))
    return len(distinct)


def _one_capacity(found: Sequence[Capacity], notes: list[str]) -> int:
    """Return the capacity of a worker of the fleet, and say how sure it is."""
    evicting = [each for each in found if each.evicts]
    if not evicting:
        most = max(each.tokens for each in found)
        notes.append(
            f"Capacity: nothing was evicted, so a worker holds at least {most:,} tokens, as the profile says "
            "(confidence: poor). Take the engine's own figure if you know it."
        )
        return most
    tokens = round(float(np.median([each.tokens for each in evicting])))
    error = float(np.mean([each.error for each in evicting]))
    requests = sum(each.requests for each in evicting)
    spread = max(each.tokens for each in evicting) / min(each.tokens for each in evicting)
    grade = (
        "good" if error <= 0.05 and requests >= 200 and spread <= 1.5 else "fair" if error <= 0.2 else "poor"
    )
    notes.append(
        f"Capacity from hits and evictions of {len(evicting)} workers and {requests:,} prompts: hits differ "
        f"from the reported ones by {100 * error:.1f} % (confidence: {grade}). Room that answers take is in "
        "no hash of a prompt, so the true capacity is somewhat larger."
    )
    return tokens
