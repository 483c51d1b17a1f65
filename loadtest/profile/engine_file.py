"""A user's engine as a YAML file, for ``--engine FILE``.

Only the speed of prefill, the pace of decode and the KV capacity are needed; everything else has the defaults
below, which `read_engine` names in its notes. Units end the names. Errors carry the line and what to write.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from loadtest.engine.kv.rules import CacheRules
from loadtest.engine.profiles import EngineProfile, Interleave, QueueOrder
from loadtest.engine.settings import Dialect
from loadtest.engine.shape import ModelShape
from loadtest.engine.timing import DecodeTiming, LinkTiming, PrefillTiming

FILE_BYTES_MAX = 1 << 20

_Positive = Annotated[float, Field(gt=0, lt=1e15, allow_inf_nan=False)]
_NotNegative = Annotated[float, Field(ge=0, lt=1e15, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=1, le=10**12)]
_CountOrNone = Annotated[int, Field(ge=0, le=10**12)]


class EngineFileError(ValueError):
    """A file that describes no engine; one sentence a line, with the place and the remedy."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Prefill(_Part):
    """Prefill of u tokens behind c cached ones: ``prompt_s + steps·step_s + u/speed·(1 + (c + u/2)/c0)``."""

    tokens_per_s: _Positive = Field(description="speed at an empty context, in tokens per second")
    context_doubling_tokens: _Positive = Field(
        default=140_000.0,
        description="c0: context that doubles the price of a token (the quadratic part), in tokens",
    )
    prompt_s: _NotNegative = Field(default=0.0, description="fixed time of a prompt, in seconds")
    step_s: _NotNegative = Field(default=0.0, description="fixed time of a step of chunk_tokens, in seconds")


class Decode(_Part):
    """A decode step: ``step_s + requests·request_s + context·context_token_s``."""

    step_s: _Positive = Field(description="fixed time of a decode step, in seconds")
    request_s: _NotNegative = Field(default=0.0, description="seconds that each request of the batch adds")
    context_token_s: _NotNegative = Field(
        default=0.0, description="seconds that each token of context in the batch adds to a step"
    )
    tokens_per_step: Annotated[float, Field(ge=1, le=100)] = Field(
        default=1.0, description="tokens of a request in one step: 1, or more with multi-token prediction"
    )


class Cache(_Part):
    """KV memory of the device, over all ranks."""

    tokens: _Count = Field(description="KV capacity in tokens, of all ranks together")
    block_tokens: Annotated[int, Field(ge=1, le=65_536)] = Field(
        default=64, description="tokens of a KV block: SGLang's page_size, vLLM's block_size"
    )
    bytes_per_token: _Count = Field(
        default=163_840,
        description="KV bytes of one token, over all layers with full attention",
    )
    window_tokens: _CountOrNone = Field(default=0, description="window of sliding-window layers, in tokens")
    window_cache_tokens: _CountOrNone = Field(
        default=0, description="capacity of the sliding-window pool, in tokens, of all ranks together"
    )
    window_bytes_per_token: _CountOrNone = Field(
        default=0, description="KV bytes of a token over those layers"
    )
    states: _CountOrNone = Field(default=0, description="linear attention: states that fit, of all ranks")
    state_bytes: _CountOrNone = Field(default=0, description="bytes of one state, over all such layers")


class Host(_Part):
    """KV in host memory of each worker, and how it is reached."""

    tokens: _CountOrNone = Field(default=0, description="KV in host memory, in tokens of a worker; 0: none")
    bytes_per_s: _Positive = Field(default=50e9, description="host to device, in bytes per second of a GPU")


class Pool(_Part):
    """A pool of KV that all workers share, and how it is reached."""

    tokens: _CountOrNone = Field(default=0, description="KV in the pool of all workers, in tokens; 0: none")
    bytes_per_s: _Positive = Field(default=170e9, description="reading, in bytes per second of a worker")


class HandOver(_Part):
    """Sending KV from a prefill to a decode worker."""

    bytes_per_s: _Positive = Field(default=100e9, description="in bytes per second")
    latency_s: _NotNegative = Field(default=0.0003, description="until the first byte, in seconds")


class EnginePrices(_Part):
    """Prices per hour, in any currency; None: those of ``cacheway plan``."""

    worker: _NotNegative | None = Field(default=None, description="price of a worker per hour")
    host_gib: _NotNegative | None = Field(default=None, description="price of a GiB of host memory per hour")
    pool_gib: _NotNegative | None = Field(default=None, description="price of a GiB of the pool per hour")


class EngineFile(_Part):
    """All that the file may say."""

    name: Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[\w.@:/ +-]+$")] = Field(
        default="my-engine", description="name in reports"
    )
    dialect: Dialect = Field(default="sglang", description="whose cache rules apply: sglang or vllm")
    attention: Literal["full", "sliding_window", "linear"] = Field(
        default="full", description="the most demanding kind of layer: full, sliding_window or linear"
    )
    prefill: Prefill = Field(description="speed of prefill: {tokens_per_s: N, ...}")
    decode: Decode = Field(description="pace of decode: {step_s: S, ...}")
    cache: Cache = Field(description="KV memory: {tokens: N, ...}")
    chunk_tokens: _CountOrNone = Field(
        default=8192, description="prompt tokens of one prefill step, over all ranks; 0: whole prompts"
    )
    max_running: Annotated[int, Field(ge=1, le=100_000)] = Field(
        default=128, description="requests that prefill or decode at the same time, over all ranks"
    )
    ranks: Annotated[int, Field(ge=1, le=1024)] = Field(default=1, description="data-parallel ranks")
    layers: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=64, description="layers of the model, over which transfers are pipelined"
    )
    gpus: Annotated[int, Field(ge=1, le=10_000)] = Field(default=1, description="GPUs of a worker")
    interleave: Interleave = Field(
        default="mixed", description="decode during a prefill step: mixed, prefill_first or apart"
    )
    queue_order: QueueOrder = Field(default="fcfs", description="the engine's queue: fcfs, lpm or uncached")
    host: Host = Host()
    pool: Pool = Pool()
    hand_over: HandOver = HandOver()
    prices: EnginePrices = EnginePrices()
    notes: tuple[Annotated[str, Field(max_length=1000)], ...] = Field(
        default=(), description="what a measurement says of its figures; no figure follows from it"
    )


@dataclass(frozen=True, slots=True)
class OwnEngine:
    """An engine to simulate; ``given`` is the file it was built of."""

    profile: EngineProfile
    given: EngineFile


def read_engine(path: Path) -> OwnEngine:
    """Read a file.

    Raises:
        EngineFileError: It cannot be read, or describes no engine.
    """
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise EngineFileError(
                f"{path}: is larger than {FILE_BYTES_MAX >> 20} MiB; it is no engine profile"
            )
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise EngineFileError(f"{path}: cannot be read ({reason})") from error
    try:
        node, tree = yaml.compose(text, yaml.SafeLoader), yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise EngineFileError(f"{path}: is not YAML: {' '.join(str(error).split())[:300]}") from error
    if not isinstance(tree, dict):
        raise EngineFileError(
            f"{path}: is no mapping; write at least prefill: {{tokens_per_s: N}}, decode: {{step_s: S}} and "
            "cache: {tokens: N}"
        )
    try:
        given = EngineFile.model_validate(tree)
        return OwnEngine(_profile(given), given)
    except ValidationError as error:
        raise EngineFileError(
            "\n".join(_sentence(str(path), node, detail) for detail in error.errors(include_url=False))
        ) from None
    except ValueError as error:
        raise EngineFileError(f"{path}: {error}") from None


def build_engine(given: EngineFile) -> OwnEngine:
    """Build an engine; `EngineFileError` if its numbers contradict each other."""
    try:
        return OwnEngine(_profile(given), given)
    except ValueError as error:
        raise EngineFileError(str(error)) from None


def written(given: EngineFile, heading: str = "") -> str:
    """Return the file's text: what differs from the defaults, and each field's meaning beside it."""
    lines = [f"# {line}" for line in heading.splitlines()]
    for name, field in EngineFile.model_fields.items():
        value = getattr(given, name)
        if isinstance(value, _Part):
            inner = _lines(value, "  ")
            lines += [f"{name}:", *inner] if inner else []
        elif name == "notes":
            lines += ["notes:", *(f"- {_scalar(note)}" for note in value)] if value else []
        elif field.is_required() or value != field.default or name in ("name", "dialect"):
            lines.append(f"{name}: {_scalar(value)}  # {field.description}")
    return "\n".join(lines) + "\n"


def _lines(part: _Part, indent: str) -> list[str]:
    return [
        f"{indent}{name}: {_scalar(getattr(part, name))}  # {field.description}"
        for name, field in type(part).model_fields.items()
        if field.is_required() or getattr(part, name) != field.default
    ]


def _scalar(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}" if value == 0 or 1e-4 <= abs(value) < 1e6 else f"{float(f'{value:.6g}'):.6e}"
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("\n...\n").strip()


def _profile(given: EngineFile) -> EngineProfile:
    cache, ranks = given.cache, given.ranks
    _check(given)
    sliding, linear = given.attention == "sliding_window", given.attention == "linear"
    other_layers = given.layers // 2 if sliding or linear else 0
    full_layers = max(given.layers - other_layers, 1)
    return EngineProfile(
        name=given.name,
        shape=ModelShape(
            full_layers=full_layers,
            full_layer_bytes=max(round(cache.bytes_per_token / full_layers), 1),
            window_layers=max(other_layers, 1) if sliding else 0,
            window_layer_bytes=max(cache.window_bytes_per_token // max(other_layers, 1), 1) if sliding else 0,
            window_tokens=cache.window_tokens,
            state_layers=max(other_layers, 1) if linear else 0,
            state_layer_bytes=max(cache.state_bytes // max(other_layers, 1), 1) if linear else 0,
        ),
        prefill=PrefillTiming(
            a_s=given.prefill.prompt_s,
            b_s=1.0 / given.prefill.tokens_per_s,
            c0_tokens=given.prefill.context_doubling_tokens,
            step_s=given.prefill.step_s,
        ),
        decode=DecodeTiming(
            base_s=given.decode.step_s,
            request_s=given.decode.request_s,
            kv_token_s=given.decode.context_token_s,
            mtp_speedup=given.decode.tokens_per_step,
        ),
        rules=CacheRules(
            full_tokens=cache.tokens // ranks,
            block_tokens=cache.block_tokens,
            attention=given.attention,
            swa_tokens=cache.window_cache_tokens // ranks,
            window_tokens=cache.window_tokens,
            match_rule=given.dialect,
            state_slots=cache.states // ranks,
        ),
        chunk_tokens=given.chunk_tokens,
        max_running=given.max_running,
        dp_ranks=ranks,
        interleave=given.interleave,
        queue_order=given.queue_order,
        host=LinkTiming(given.gpus * given.host.bytes_per_s / ranks),
        handover=LinkTiming(given.hand_over.bytes_per_s, given.hand_over.latency_s),
        tensor_parallel=max(given.gpus // ranks, 1),
        pool_bytes_per_s=given.pool.bytes_per_s,
        gpus=given.gpus,
    )


def _check(given: EngineFile) -> None:
    cache, ranks = given.cache, given.ranks
    if cache.tokens < 2 * ranks * cache.block_tokens:
        raise ValueError(
            f"cache.tokens: {cache.tokens} is less than two blocks of {cache.block_tokens} for each of "
            f"{ranks} ranks; give the capacity of all ranks together"
        )
    if given.max_running < ranks:
        raise ValueError(f"max_running: {given.max_running} is less than one for each of {ranks} ranks")
    if 0 < given.chunk_tokens < ranks:
        raise ValueError(f"chunk_tokens: {given.chunk_tokens} is less than one for each of {ranks} ranks")
    wanted = {
        "sliding_window": ("window_tokens", "window_cache_tokens", "window_bytes_per_token"),
        "linear": ("states", "state_bytes"),
        "full": (),
    }
    for attention, names in wanted.items():
        for name in names:
            if (getattr(cache, name) > 0) != (given.attention == attention):
                told = "needs" if given.attention == attention else "takes no"
                raise ValueError(f"attention {given.attention} {told} cache.{name}")
    if given.attention == "sliding_window" and cache.window_cache_tokens < ranks * (
        cache.window_tokens + cache.block_tokens
    ):
        raise ValueError("cache.window_cache_tokens: less than one window and a block for each rank")
    if given.attention == "linear" and cache.states < ranks:
        raise ValueError(f"cache.states: less than one state for each of {ranks} ranks")
    if given.pool.tokens and given.host.tokens <= cache.tokens:
        raise ValueError(
            "pool.tokens needs host.tokens above cache.tokens: a pool is read into what the host has beyond "
            "the device"
        )


def _sentence(path: str, node: yaml.Node | None, detail: Any) -> str:
    """Return one error with its line, and the meaning of the field."""
    loc = [str(part) for part in detail["loc"]]
    line = _line(node, loc)
    kind, message = detail["type"], detail["msg"]
    message = message[:1].lower() + message[1:]
    if kind == "extra_forbidden":
        known = _model(loc[:-1])
        message = (
            f"there is no such name; names here are {', '.join(known.model_fields) if known else 'none'}"
        )
    elif kind == "missing":
        message = f"is missing; give {_meaning(loc)}"
    elif meaning := _meaning(loc):
        message = f"{message}; give {meaning}"
    return f"{path} line {line}: {'.'.join(loc) or 'file'}: {message[:500]}"


def _model(loc: list[str]) -> type[BaseModel] | None:
    model: Any = EngineFile
    for part in loc:
        field = model.model_fields.get(part)
        model = field.annotation if field is not None else None
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            return None
    found: type[BaseModel] = model
    return found


def _meaning(loc: list[str]) -> str:
    model = _model(loc[:-1])
    field = model.model_fields.get(loc[-1]) if model is not None and loc else None
    return (field.description or "") if field is not None else ""


def _line(node: yaml.Node | None, loc: list[str]) -> int:
    """Line of a value, or of the nearest mapping around it."""
    line = 1
    for part in loc:
        if not isinstance(node, yaml.MappingNode):
            break
        for key, value in node.value:
            if str(key.value) == part:
                line, node = key.start_mark.line + 1, value
                break
        else:
            break
    return line
