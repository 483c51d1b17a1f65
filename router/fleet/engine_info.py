"""What an engine says about itself, read leniently: formats drift between versions (`wire.md` 3).

GET /v1/models         which models it serves, and how long their context may be
GET /get_server_info   SGLang: KV capacity (``max_total_num_tokens`` of each of ``dp_size`` ranks), and
                       how many requests each runs at a time (``effective_max_running_requests_per_dp``) and
                       how many tokens it prefills in a step (``chunked_prefill_size``), and where decode
                       workers come to a prefill worker (``disaggregation_bootstrap_port``), and whether it
                       is one (``disaggregation_mode``)
GET /metrics           vLLM: KV capacity (``vllm:cache_config_info`` block size and count, of all ranks);
                       when the process started (``process_start_time_seconds``, which both have while
                       prometheus-client is not told to gather several processes)

A number beyond `radix.bounds`, or a name that is none, is as good as not said: what goes on from here to the
log, to clients and to the admin API can be written there.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from radix import COUNT_MAX, RANKS_MAX, TEXT_CHARS_MAX, TOKENS_MAX, is_name, parsed_whole, sane_whole

MODELS_MAX = 4096
"""Models of one worker, its adapters among them; what is listed behind them is left out."""

_RANK = re.compile(r'^vllm:num_requests_running\{(?:[^}]*,)?engine="([^"]*)"', re.MULTILINE)
_CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{([^}]*)\}", re.MULTILINE)
_START_TIME = re.compile(r"^process_start_time_seconds(?:\{[^}]*\})?[ \t]+(\S+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')

_ROLES = {"null": "plain", "prefill": "prefill", "decode": "decode"}


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One entry of a worker's ``/v1/models``.

    Attributes:
        model_id: The name requests use.
        max_model_len: Longest context in tokens; 0 if the engine does not say.
        owned_by: As reported, for the merged list.
        root: The base model (LoRA adapters name their base as ``parent`` or ``root``).
        parent: The base model of a LoRA adapter; empty for what is none.
    """

    model_id: str
    max_model_len: int = 0
    owned_by: str = ""
    root: str = ""
    parent: str = ""


def served_models(answer: Any) -> tuple[ServedModel, ...]:
    """Read ``/v1/models``; entries without a usable id are left out."""
    entries = answer.get("data") if isinstance(answer, dict) else None
    models: list[ServedModel] = []
    for entry in entries if isinstance(entries, list) else []:
        if len(models) == MODELS_MAX:
            break
        if not isinstance(entry, dict) or not is_name(entry.get("id")):
            continue
        parent = _text(entry.get("parent"))
        models.append(
            ServedModel(
                entry["id"],
                sane_whole(entry.get("max_model_len"), TOKENS_MAX),
                _text(entry.get("owned_by")),
                parent or _text(entry.get("root")),
                parent,
            )
        )
    return tuple(models)


def _text(value: object) -> str:
    """A text that an engine says, such as a path; empty if it is none that can be written."""
    sound = isinstance(value, str) and len(value) <= TEXT_CHARS_MAX and value.isprintable()
    return str(value) if sound else ""


def cached_as(models: Sequence[ServedModel], name: str) -> str | None:
    """Under which name an engine caches what requests call ``name``; None if it does not serve that.

    An adapter has a cache of its own. Other names of one model share the cache, known by the first of them.
    """
    for served in models:
        if served.model_id == name:
            break
    else:
        return None
    if served.parent or not served.root:
        return name
    return next(other.model_id for other in models if other.root == served.root and not other.parent)


def sglang_capacity_tokens(answer: Any) -> int:
    """KV capacity in tokens, of all data-parallel ranks, from SGLang's server info; 0 if it does not say."""
    if not isinstance(answer, dict):
        return 0
    states = answer.get("internal_states")
    for source in (answer, *(states if isinstance(states, list) else ())):
        value = sane_whole(source.get("max_total_num_tokens"), TOKENS_MAX) if isinstance(source, dict) else 0
        if value:
            return sane_whole(value * _ranks(answer), TOKENS_MAX)
    return 0


def _ranks(info: dict[str, Any]) -> int:
    """Data-parallel ranks that SGLang's server info tells of, at least one."""
    return sane_whole(info.get("dp_size"), RANKS_MAX) or 1


def sglang_running_max(answer: Any) -> int:
    """Requests that all data-parallel ranks run at a time, from SGLang's server info; 0 if it does not say.

    What the scheduler settled on counts, for its pools may be too small for what it was told (SGLang
    managers/scheduler.py ``get_internal_state``).
    """
    if not isinstance(answer, dict):
        return 0
    states = answer.get("internal_states")
    for state in states if isinstance(states, list) else ():
        told = state.get("effective_max_running_requests_per_dp") if isinstance(state, dict) else None
        value = sane_whole(told, COUNT_MAX)
        if value:
            return sane_whole(value * _ranks(answer), COUNT_MAX)
    return sane_whole(answer.get("max_running_requests"), COUNT_MAX)


def sglang_step_tokens(answer: Any) -> int:
    """Tokens that one step prefills, from SGLang's server info; 0 if it does not say, or has no bound."""
    return sane_whole(answer.get("chunked_prefill_size"), TOKENS_MAX) if isinstance(answer, dict) else 0


def sglang_bootstrap_port(answer: Any) -> int:
    """Port of its bootstrap server, from SGLang's server info; 0 if it does not say."""
    return sane_whole(answer.get("disaggregation_bootstrap_port"), 65535) if isinstance(answer, dict) else 0


def sglang_role(answer: Any) -> str:
    """Role of an engine, from SGLang's server info: ``plain``, ``prefill``, ``decode``; empty if unknown.

    Its scheduler says it; what the server was started with says it only of an engine that never switched.
    """
    if not isinstance(answer, dict):
        return ""
    states = answer.get("internal_states")
    for source in (*(states if isinstance(states, list) else ()), answer):
        mode = source.get("disaggregation_mode") if isinstance(source, dict) else None
        if mode is not None:
            return _ROLES.get(mode, "") if isinstance(mode, str) else ""
    return ""


def vllm_capacity_tokens(metrics: str) -> int:
    """KV capacity in tokens, of all data-parallel ranks, from vLLM's metrics; 0 if they do not say.

    That is what it says itself of one rank: the blocks of a model with windows or states are not all for what
    a match is made of (vLLM 0.32 ``v1/core/kv_cache_utils.py``, ``get_kv_cache_capacity``). Of an older
    version it is the blocks of all ranks, which is too much for such a model.
    """
    found = _CACHE_CONFIG.search(metrics)
    if found is None:
        return 0
    labels = dict(_LABEL.findall(found.group(1)))
    ranks = len(set(_RANK.findall(metrics))) or 1
    tokens = parsed_whole(labels.get("kv_cache_size_tokens", ""), TOKENS_MAX)
    if tokens is not None:
        return sane_whole(tokens * ranks, TOKENS_MAX)
    block_tokens = parsed_whole(labels.get("block_size", ""), TOKENS_MAX) or 0
    return sane_whole(
        block_tokens * (parsed_whole(labels.get("num_gpu_blocks", ""), TOKENS_MAX) or 0), TOKENS_MAX
    )


def started_unix_ms(metrics: str) -> int:
    """When the process started, by its own clock, in milliseconds; 0 if its metrics do not say."""
    found = _START_TIME.search(metrics)
    try:
        started_unix_s = float(found.group(1)) if found is not None else 0.0
    except ValueError:
        return 0
    return round(started_unix_s * 1000) if isfinite(started_unix_s) and 0 < started_unix_s < 1e12 else 0
