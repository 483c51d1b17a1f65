"""An engine's own description, read leniently: formats drift between versions (`wire.md` 3).

GET /v1/models    models, and their longest context GET /metrics      start of the process
(``process_start_time_seconds``, unless prometheus-client gathers many)

`router.engines` reads the rest. A number beyond `radix.bounds` or an unusable name counts as missing, so that
the log, clients and the admin API can hold the result.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from radix import TEXT_CHARS_MAX, TOKENS_MAX, is_name, sane_whole

MODELS_MAX = 4096
"""Most models of one worker, adapters included; further ones are left out."""

_START_TIME = re.compile(r"^process_start_time_seconds(?:\{[^}]*\})?[ \t]+(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One entry of a worker's ``/v1/models``.

    Attributes:
        max_model_len: Longest context in tokens; 0 if unknown.
        root: Base model (LoRA adapters name theirs as ``parent`` or ``root``).
        parent: Base model of a LoRA adapter; else empty.
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
    sound = isinstance(value, str) and len(value) <= TEXT_CHARS_MAX and value.isprintable()
    return str(value) if sound else ""


def cached_as(models: Sequence[ServedModel], name: str) -> str | None:
    """Name under which an engine caches requests for ``name``; None if it does not serve that.

    An adapter has a cache of its own. Other names of one model share the cache of the first of them.
    """
    for served in models:
        if served.model_id == name:
            break
    else:
        return None
    if served.parent or not served.root:
        return name
    return next(other.model_id for other in models if other.root == served.root and not other.parent)


def started_unix_ms(metrics: str) -> int:
    """Start of the process by its own clock, in milliseconds; 0 if its metrics do not report it."""
    found = _START_TIME.search(metrics)
    try:
        started_unix_s = float(found.group(1)) if found is not None else 0.0
    except ValueError:
        return 0
    return round(started_unix_s * 1000) if isfinite(started_unix_s) and 0 < started_unix_s < 1e12 else 0
