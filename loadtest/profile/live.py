"""A profile of a running engine: ``--engine from-metrics URL``.

    sizes      SGLang's /server_info, or vLLM:cache_config_info of /metrics, and /v1/models
    counters   /metrics once a second: sums of prefill and of gaps between tokens    (traffic of others)
    probes     with --probe: prompts of random tokens, alone and side by side        (traffic of our own)

Counters add up over requests, so they cannot show the quadratic part of prefill; probes can. Prices that were
not measured keep their default, and a note of the profile says so. Without --probe only figures are read.
"""

import math
import random
import string
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import msgspec

from loadtest.profile.engine_file import (
    Cache,
    Decode,
    EngineFile,
    EngineFileError,
    Host,
    OwnEngine,
    Prefill,
    build_engine,
    written,
)
from loadtest.profile.exposition import Counts, read_counts, read_labels
from loadtest.profile.fits import fit_prices

FROM_METRICS = "from-metrics"

MEASURE_S = 60.0

TIMEOUT_S = 600.0
"""Time-out of one probe: a prompt of 32K tokens on a slow engine."""

ANSWER_BYTES_MAX = 64 << 20

PROBE_TOKENS = (256, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768)
"""Lengths of the prompts that are sent, each `PROBE_ROUNDS` times; see `probe_lengths` for short contexts."""

PROBE_ROUNDS = 4

PROBE_BATCHES = (1, 4, 16)
"""Requests that decode side by side."""

PROBE_OUTPUT_TOKENS = 48

USUAL_TOKEN_IDS = range(1_000, 21_000)
"""Ids that every usual tokenizer knows, for engines that do not tokenize."""

TOKEN_IDS_MIN = 32
"""Fewest ids of which prompts are drawn; with fewer, prompts would begin equally and be cached."""

_PAIRS = " ".join(first + second for first in string.ascii_lowercase for second in string.ascii_lowercase)
"""Text of which an engine's tokenizer makes some hundred token ids."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes that an engine reports; None: it does not."""

    dialect: str
    model: str
    context_tokens: int
    cache_tokens: int | None
    block_tokens: int | None
    chunk_tokens: int | None
    max_running: int | None
    ranks: int
    gpus: int
    host_ratio: float


def measured_engine(url: str, *, seconds: float, probe: bool, path: Path) -> OwnEngine:
    """Measure a running engine and write its profile to a file; progress goes to standard error.

    Raises:
        EngineFileError: It does not answer, or too little can be read of it.
    """
    own = measure(url, seconds=seconds, probe=probe, told=_say)
    try:
        path.write_text(written(own.given, f"Measured from {url}."), encoding="utf-8")
    except OSError as error:
        raise EngineFileError(f"{path}: cannot be written ({error.strerror})") from error
    _say(f"wrote {path}; use it again with --engine {path}")
    return own


def measure(
    url: str,
    *,
    seconds: float,
    probe: bool,
    told: Callable[[str], None] = lambda _: None,
    seed: int = 1,
    sleep: Callable[[float], None] = time.sleep,
) -> OwnEngine:
    """Measure a running engine; arguments and errors as of `measured_engine`."""
    if not url.startswith(("http://", "https://")):
        raise EngineFileError(f"{url!r} is no URL of an engine; write it as in http://10.0.0.7:30001")
    with httpx.Client(base_url=url.rstrip("/"), timeout=TIMEOUT_S, trust_env=False) as client:
        try:
            sizes = _sizes(client)
            if sizes.cache_tokens is None:
                raise EngineFileError(
                    f"{url}: neither /server_info nor vllm:cache_config_info says how much KV it holds; "
                    "write the profile by hand (docs/own-engine.md)"
                )
            told(f"{url}: {sizes.dialect}, {sizes.model}, {sizes.cache_tokens:,} tokens of KV cache")
            probes = Probes() if not probe else _probed(client, sizes, told, random.Random(seed))
            readings = [] if probe else _watched(client, seconds, told, sleep)
        except (httpx.HTTPError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise EngineFileError(f"{url}: cannot be measured: {type(error).__name__}: {error}") from error
    return build_engine(_given(sizes, readings, probes))


@dataclass(frozen=True, slots=True)
class Probes:
    """Measurements of the probes.

    Attributes:
        prefills: Uncached tokens, cached tokens and seconds of each.
        steps: Requests in the batch, their tokens of context together, and seconds per token of each.
    """

    prefills: Sequence[tuple[float, float, float]] = ()
    steps: Sequence[tuple[float, float, float]] = ()


def _say(text: str) -> None:
    print(f"cacheway: {text}", file=sys.stderr, flush=True)


# ---- sizes ----


def _sizes(client: httpx.Client) -> Sizes:
    models = _json(client, "/v1/models")
    served = models.get("data") if isinstance(models, dict) else None
    first = served[0] if isinstance(served, list) and served and isinstance(served[0], dict) else {}
    model, context = str(first.get("id", "model"))[:80], _whole(first.get("max_model_len")) or 32_768
    info = _json(client, "/server_info") or _json(client, "/get_server_info")
    if isinstance(info, dict) and "max_total_num_tokens" in info:
        ranks, rank_tokens = _whole(info.get("dp_size")) or 1, _whole(info["max_total_num_tokens"])
        chunk = info.get("chunked_prefill_size")
        return Sizes(
            dialect="sglang",
            model=model,
            context_tokens=_whole(info.get("context_length")) or context,
            cache_tokens=rank_tokens * ranks if rank_tokens else None,
            block_tokens=_whole(info.get("page_size")),
            chunk_tokens=_whole(chunk) or 0 if isinstance(chunk, int) else None,
            max_running=_whole(info.get("max_running_requests")),
            ranks=ranks,
            gpus=_whole(info.get("tp_size")) or 1,
            host_ratio=float(info.get("hicache_ratio") or 0.0)
            if info.get("enable_hierarchical_cache")
            else 0.0,
        )
    config = read_labels(_text(client, "/metrics"), "vllm:cache_config_info")
    blocks, block_tokens = _whole(config.get("num_gpu_blocks")), _whole(config.get("block_size"))
    return Sizes(
        dialect="vllm",
        model=model,
        context_tokens=context,
        cache_tokens=blocks * block_tokens if blocks and block_tokens else None,
        block_tokens=block_tokens,
        chunk_tokens=None,
        max_running=None,
        ranks=1,
        gpus=1,
        host_ratio=0.0,
    )


def _json(client: httpx.Client, path: str) -> Any:
    """Answer of a route as JSON; None if the engine has no such route."""
    answer = client.get(path, timeout=10.0)
    if answer.status_code in (404, 405):
        return None
    answer.raise_for_status()
    return msgspec.json.decode(answer.content[:ANSWER_BYTES_MAX])


def _text(client: httpx.Client, path: str) -> str:
    answer = client.get(path, timeout=10.0)
    answer.raise_for_status()
    return answer.text[:ANSWER_BYTES_MAX]


def _whole(value: object) -> int | None:
    """A whole number above 0, however it is written; None for anything else."""
    try:
        number = int(str(value))
    except ValueError:
        return None
    return number if 0 < number < 10**12 else None


# ---- counters ----


def _watched(
    client: httpx.Client, seconds: float, told: Callable[[str], None], sleep: Callable[[float], None]
) -> list[Counts]:
    """Read the counters once a second; return what came in each interval."""
    told(f"watching its counters for {seconds:g} s")
    readings = [read_counts(_text(client, "/metrics"))]
    for _ in range(max(round(seconds), 1)):
        sleep(min(1.0, seconds))
        readings.append(read_counts(_text(client, "/metrics")))
    return [later.since(before) for before, later in pairwise(readings)]


# ---- probes ----


def _probed(client: httpx.Client, sizes: Sizes, told: Callable[[str], None], draw: random.Random) -> Probes:
    """Send prompts of random tokens, one after the other, and then some side by side."""
    most = min(sizes.context_tokens - 2 * PROBE_OUTPUT_TOKENS, (sizes.cache_tokens or 0) // 2 // sizes.ranks)
    lengths = probe_lengths(most)
    told(f"sending {PROBE_ROUNDS} prompts of each of {', '.join(f'{each:,}' for each in lengths)} tokens")
    ids = _token_ids(client, sizes.model)
    _ask(client, sizes.model, draw.choices(ids, k=lengths[0]), 2)  # what only the first request pays
    prefills = [
        _ask(client, sizes.model, draw.choices(ids, k=tokens), 1).prefill for tokens in lengths * PROBE_ROUNDS
    ]
    steps: list[tuple[float, float, float]] = []
    batches = [batch for batch in PROBE_BATCHES if batch <= (sizes.max_running or 16)]
    told(f"decoding {', '.join(map(str, batches))} answers side by side")
    for batch in batches:
        for tokens in {lengths[0], lengths[len(lengths) // 2]}:
            if batch * (tokens + PROBE_OUTPUT_TOKENS) > (sizes.cache_tokens or 0) // 2:
                continue
            prompts = [draw.choices(ids, k=tokens) for _ in range(batch)]
            with ThreadPoolExecutor(batch) as pool:
                answers = list(
                    pool.map(lambda each: _ask(client, sizes.model, each, PROBE_OUTPUT_TOKENS), prompts)
                )
            steps.extend(_steps(answers))
    return Probes(prefills, steps)


@dataclass(frozen=True, slots=True)
class Answer:
    """Times of one probe, monotonic seconds of its pieces, and its tokens as the engine counts them."""

    sent_s: float
    pieces_s: Sequence[float]
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int

    @property
    def prefill(self) -> tuple[float, float, float]:
        """Uncached tokens, cached tokens and seconds."""
        return (
            float(self.prompt_tokens - self.cached_tokens),
            float(self.cached_tokens),
            self.pieces_s[0] - self.sent_s,
        )


def _steps(answers: Sequence[Answer]) -> list[tuple[float, float, float]]:
    """Pace of each answer while all of them decode: after the last one's first token."""
    begin_s = max(answer.pieces_s[0] for answer in answers)
    end_s = min(answer.pieces_s[-1] for answer in answers)
    found = []
    context = sum(answer.prompt_tokens + answer.output_tokens / 2 for answer in answers)
    for answer in answers:
        inside = [at_s for at_s in answer.pieces_s if begin_s <= at_s <= end_s]
        tokens_per_piece = (answer.output_tokens - 1) / max(len(answer.pieces_s) - 1, 1)
        if len(inside) >= 8 and tokens_per_piece > 0:
            pace_s = (inside[-1] - inside[0]) / (len(inside) - 1) / tokens_per_piece
            found.append((float(len(answers)), context, pace_s))
    return found


def probe_lengths(most: int) -> list[int]:
    """Return as many lengths as `PROBE_TOKENS` has, up to ``most``: three prices need more lengths."""
    least, most, steps = PROBE_TOKENS[0], min(max(most, 16), PROBE_TOKENS[-1]), len(PROBE_TOKENS) - 1
    if most == PROBE_TOKENS[-1]:
        return list(PROBE_TOKENS)
    least = min(least, max(most // 16, 1))
    return sorted({round(least * (most / least) ** (step / steps)) for step in range(steps + 1)})


def _token_ids(client: httpx.Client, model: str) -> Sequence[int]:
    """Return ids of the engine's vocabulary, as its tokenizer writes a text; usual ones if it cannot."""
    body = {"model": model, "prompt": _PAIRS, "add_special_tokens": False}
    answer = client.post("/tokenize", json=body, timeout=10.0)
    if answer.status_code != 200:
        return USUAL_TOKEN_IDS
    told = msgspec.json.decode(answer.content[:ANSWER_BYTES_MAX])
    listed = told.get("tokens") if isinstance(told, dict) else None
    ids = {each for each in listed if type(each) is int and each >= 0} if isinstance(listed, list) else ()
    return sorted(ids) if len(ids) >= TOKEN_IDS_MIN else USUAL_TOKEN_IDS


def _ask(client: httpx.Client, model: str, prompt: list[int], output_tokens: int) -> Answer:
    """Send one streamed completion, and note when its pieces come."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    pieces_s: list[float] = []
    usage: dict[str, Any] = {}
    sent_s = time.monotonic()
    with client.stream("POST", "/v1/completions", json=body) as answer:
        if answer.status_code != 200:
            why = answer.read()[:200].decode("utf-8", "replace")
            raise EngineFileError(f"the engine refused a probe with {answer.status_code}: {why}")
        for line in answer.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = msgspec.json.decode(line[6:])
            if event.get("error"):
                why = str(event["error"])[:200]
                raise EngineFileError(f"the engine answered a probe with an error: {why}")
            if event.get("choices"):
                pieces_s.append(time.monotonic())
            usage = event.get("usage") or usage
    if not pieces_s or not usage:
        raise EngineFileError("the answer to a probe has no tokens or no usage; it cannot be measured")
    details = usage.get("prompt_tokens_details") or {}
    return Answer(
        sent_s,
        pieces_s,
        int(usage.get("prompt_tokens", len(prompt))),
        int(details.get("cached_tokens") or 0),
        int(usage.get("completion_tokens", len(pieces_s))),
    )


# ---- the profile ----


def _given(sizes: Sizes, readings: Sequence[Counts], probes: Probes) -> EngineFile:
    notes: list[str] = []
    prefill = _prefill_of_probes(probes, notes) or _prefill_of_counts(readings, notes)
    decode = _decode_of_probes(probes, notes) or _decode_of_counts(readings, notes)
    if prefill is None or decode is None:
        lacking = " and ".join(
            what for what, found in (("prefill", prefill), ("decode", decode)) if found is None
        )
        if probes.prefills:
            raise EngineFileError(
                f"{lacking} cannot be told from the times of the probes: something disturbs the engine; "
                "try again when it is idle"
            )
        raise EngineFileError(
            f"too little {lacking} was seen to measure it: send traffic meanwhile, or let --probe send some"
        )
    assumed = [
        name
        for name, value in (
            ("block_tokens", sizes.block_tokens),
            ("chunk_tokens", sizes.chunk_tokens),
            ("max_running", sizes.max_running),
        )
        if value is None
    ]
    if assumed:
        notes.append(f"The engine does not say its {', '.join(assumed)}: these are defaults; check them.")
    notes.append(
        "Full attention, prices and KV bytes per token are assumed; nothing at the engine says them."
    )
    more: dict[str, Any] = {} if sizes.chunk_tokens is None else {"chunk_tokens": sizes.chunk_tokens}
    more |= {} if sizes.max_running is None else {"max_running": sizes.max_running}
    cache: dict[str, Any] = {} if sizes.block_tokens is None else {"block_tokens": sizes.block_tokens}
    assert sizes.cache_tokens is not None
    return EngineFile(
        name=_name(sizes.model),
        dialect="vllm" if sizes.dialect == "vllm" else "sglang",
        prefill=prefill,
        decode=decode,
        cache=Cache(tokens=sizes.cache_tokens, **cache),
        host=Host(tokens=int(sizes.host_ratio * sizes.cache_tokens)),
        ranks=sizes.ranks,
        gpus=max(sizes.gpus, 1),
        notes=tuple(notes),
        **more,
    )


def _name(model: str) -> str:
    return "".join(each if each.isalnum() or each in "._@:/-" else "-" for each in model)[:80] or "measured"


def prefill_prices(
    observed: Sequence[tuple[float, float, float]], notes: list[str], source: str
) -> Prefill | None:
    """Fit ``a + b·u·(1 + (c + u/2)/c0)`` to uncached tokens, cached tokens and seconds; None if too few."""
    rows = [(1.0, u, u * (c + u / 2)) for u, c, _ in observed]
    fit = fit_prices(rows, [seconds for _, _, seconds in observed])
    shortest = min((max(u, 1.0) for u, _, _ in observed), default=1.0)
    if fit is not None and fit.prices[1] < fit.prices[2] * shortest:
        # Nearly all of it is quadratic, as in tiny models: a linear part that the shortest prompt can show.
        fit = fit_prices(
            [(1.0, u * (1 + (c + u / 2) / shortest), 0.0) for u, c, _ in observed],
            [seconds for _, _, seconds in observed],
        )
        if fit is not None:
            fit = replace(fit, prices=(fit.prices[0], fit.prices[1], fit.prices[1] / shortest))
    if fit is None or fit.prices[1] <= 0:
        return None
    a_s, b_s, q_s = fit.prices
    notes.append(f"Prefill from {source}: {fit}.")
    more: dict[str, float] = {}
    if q_s > 0:
        more["context_doubling_tokens"] = min(b_s / q_s, 1e12)
    else:
        more["context_doubling_tokens"] = 1e9
        notes.append("No quadratic part of prefill showed in these lengths; it is left out.")
    return Prefill(tokens_per_s=1 / b_s, prompt_s=a_s, **more)


def decode_prices(
    observed: Sequence[tuple[float, float, float]], notes: list[str], source: str
) -> Decode | None:
    """Fit ``step + request·n + context·K`` to requests, context and seconds per token; None if too few."""
    fit = fit_prices([(1.0, n, context) for n, context, _ in observed], [each[2] for each in observed])
    if fit is None:
        return None
    step_s, request_s, context_token_s = fit.prices
    notes.append(f"Decode from {source}: {fit}. Tokens of one step (multi-token prediction) are in its pace.")
    return Decode(step_s=max(step_s, 1e-6), request_s=request_s, context_token_s=context_token_s)


def _prefill_of_probes(probes: Probes, notes: list[str]) -> Prefill | None:
    """Fit the fastest probe of each length: a disturbance only makes a probe slower."""
    fastest: dict[float, tuple[float, float, float]] = {}
    for probe in probes.prefills:
        if probe[0] not in fastest or probe[2] < fastest[probe[0]][2]:
            fastest[probe[0]] = probe
    return prefill_prices(
        list(fastest.values()), notes, f"the fastest of {PROBE_ROUNDS} probes of each length"
    )


def _decode_of_probes(probes: Probes, notes: list[str]) -> Decode | None:
    return decode_prices(probes.steps, notes, "probes")


def _prefill_of_counts(readings: Sequence[Counts], notes: list[str]) -> Prefill | None:
    rows, seconds = [], []
    for each in readings:
        cached = 0.0 if math.isnan(each.cached_tokens) else each.cached_tokens
        if each.requests > 0 and each.prefill_s > 0:
            rows.append((each.requests, each.prompt_tokens - cached))
            seconds.append(each.prefill_s)
    fit = fit_prices(rows, seconds) if len(rows) >= 3 else None
    if fit is None or fit.prices[1] <= 0:
        return None
    notes.append(
        f"Prefill from counters: {fit}. Requests that share steps count their time twice, so the speed is a "
        "lower bound on a busy engine. The quadratic part cannot be seen in counters: its default is used."
    )
    return Prefill(tokens_per_s=1 / fit.prices[1], prompt_s=fit.prices[0])


def _decode_of_counts(readings: Sequence[Counts], notes: list[str]) -> Decode | None:
    rows = [
        (1.0, max(each.running, 1.0), each.gaps_s / each.gaps)
        for each in readings
        if each.gaps > 0 and each.gaps_s > 0
    ]
    fit = fit_prices([row[:2] for row in rows], [row[2] for row in rows]) if len(rows) >= 3 else None
    if fit is None:
        return None
    notes.append(f"Decode from counters: {fit}. The price of context is not seen in them, and left out.")
    return Decode(step_s=max(fit.prices[0], 1e-6), request_s=fit.prices[1])
