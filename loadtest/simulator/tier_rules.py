"""Rules of memory below the device, as on the command line: ``--pool mooncake,ttl_s=600,nodes=4``.

    a name of `PUBLISHED`, or a YAML file, or neither ──then──> key=value, ...

Sizes are no part of it. The keys are those of a YAML file, too, and the fields of `HiCacheSettings` (host
memory of a worker) and `L3Settings` (the shared pool), where their sources stand.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import inf
from pathlib import Path
from types import MappingProxyType

import yaml

from loadtest.engine.kv.l3 import Absence, L3Settings
from loadtest.engine.kv.tiers import HiCacheSettings

FILE_BYTES_MAX = 1 << 16

Value = str | float | bool | tuple[Absence, ...] | tuple[int, ...]
Values = tuple[tuple[str, Value], ...]

PUBLISHED: Mapping[str, Mapping[str, Value]] = MappingProxyType(
    {
        "gcache": {},
        "mooncake": {"kind": "pooled", "keep_alive": False},
    }
)
"""Pools by name: GCache as MiMo-V2.5 describes it, the default; Mooncake Store below SGLang's HiCache."""

CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "kind": ("grouped", "pooled"),
        "write_policy": ("write_through", "write_through_selective", "write_back"),
        "prefetch_policy": ("best_effort", "wait_complete", "timeout"),
    }
)

LIMITS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "prefetch_threshold_tokens": (0, 1 << 30),
        "prefetch_timeout_base_s": (0, 86_400),
        "prefetch_timeout_per_ki_token_s": (0, 3_600),
        "prefetch_timeout_max_s": (0, 86_400),
        "prefetch_limit_ratio": (0, 1),
        "prefetch_batch_blocks": (1, 1 << 20),
        "nodes": (1, 1_024),
        "disk_tokens": (0, 1 << 50),
        "ttl_s": (0, 1e9),
        "node_bytes_per_s": (1e6, 1e15),
        "disk_bytes_per_s": (1e6, 1e15),
        "latency_s": (0, 60),
        "sdk_timeout_s": (0, 3_600),
        "detection_s": (0, 86_400),
        "group_tokens": (1, 1 << 30),
        "rank_loss_ratio": (0, 0.999),
    }
)
"""Least and most of each number."""

SWITCHES = ("keep_alive", "share_tensor_parallel", "decode_writes")

LISTS = ("absences", "tensor_parallel")

KEYS = (*CHOICES, *LIMITS, *SWITCHES, *LISTS)

HOST_KEYS = frozenset(field.name for field in fields(HiCacheSettings))

_WHOLE = frozenset(
    {"prefetch_threshold_tokens", "prefetch_batch_blocks", "nodes", "disk_tokens", "group_tokens"}
)

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

_ABSENCE = re.compile(r"(\d{1,4})@(\d{1,9}(?:\.\d{1,6})?)-(\d{1,9}(?:\.\d{1,6})?)?(?::(lost|kept|planned))?")


@dataclass(frozen=True, slots=True)
class TierRules:
    """Rules that differ from the defaults of `HiCacheSettings` and of `L3Settings`."""

    host: Values = ()
    pool: Values = ()

    def __str__(self) -> str:
        """The rules as they were told."""
        return ", ".join(f"{key}={_told(value)}" for key, value in (*self.host, *self.pool))


PLAIN = TierRules()


def read_tier_rules(text: str) -> TierRules:
    """Read rules from a command line.

    Raises:
        ValueError: An unknown name, key or value, or a file that cannot be read; it says what is valid.
    """
    first, *rest = (part.strip() for part in text.split(","))
    values: dict[str, Value] = {}
    if "=" in first:
        rest.insert(0, first)
    elif first in PUBLISHED:
        values.update(PUBLISHED[first])
    elif first:
        values.update({key: _value(key, told) for key, told in _file(Path(first)).items()})
    for part in rest:
        key, equals, told = part.partition("=")
        if not equals:
            raise ValueError(f"{part!r} is not KEY=VALUE, as in ttl_s=600")
        values[key.strip()] = _value(key.strip(), told.strip())
    rules = TierRules(
        tuple((key, value) for key, value in values.items() if key in HOST_KEYS),
        tuple((key, value) for key, value in values.items() if key not in HOST_KEYS),
    )
    # Contradictions raise an error here.
    HiCacheSettings(**dict(rules.host))  # type: ignore[arg-type]
    L3Settings(**dict(rules.pool))  # type: ignore[arg-type]
    return rules


def _file(path: Path) -> Mapping[str, str]:
    try:
        with path.open("rb") as file:
            told = yaml.safe_load(file.read(FILE_BYTES_MAX))
    except OSError as error:
        names = ", ".join(PUBLISHED)
        raise ValueError(
            f"{str(path)!r} is no pool by name ({names}) and no file: {error.strerror}"
        ) from None
    except (yaml.YAMLError, ValueError):
        raise ValueError(f"{str(path)!r} is not YAML") from None
    lines = told.items() if isinstance(told, dict) else [(None, None)]
    read: dict[str, str] = {}
    for key, value in lines:
        parts = value if isinstance(value, list) else [value]
        if not isinstance(key, str) or not all(isinstance(part, str | int | float) for part in parts):
            raise ValueError(f"{str(path)!r} has more than lines of the form key: value")
        read[key] = " ".join(map(str, parts))
    return read


def _value(key: str, told: str) -> Value:
    if key in CHOICES:
        if told not in CHOICES[key]:
            raise ValueError(f"{key}: {told!r} is none of {', '.join(CHOICES[key])}")
        return told
    if key in SWITCHES:
        return _switch(key, told)
    if key in LIMITS:
        return _number(key, told)
    if key == "absences":
        return tuple(_absence(part) for part in told.split())
    if key == "tensor_parallel":
        return tuple(int(_within(key, part, 1, 1_024)) for part in told.split())
    raise ValueError(f"unknown key {key!r}; there are {', '.join(KEYS)}")


def _switch(key: str, told: str) -> bool:
    found = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}.get(
        told.lower()
    )
    if found is None:
        raise ValueError(f"{key}: {told!r} is neither yes nor no")
    return found


def _number(key: str, told: str) -> float:
    value = _within(key, told, *LIMITS[key])
    return int(value) if key in _WHOLE else value


def _told(value: Value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(str, value)) if isinstance(value, tuple) else f"{value}"


def _within(key: str, text: str, low: float, high: float) -> float:
    unit = _UNITS.get(text[-1:].upper(), 1)
    try:
        value = float(text[:-1] if unit > 1 else text) * unit
    except ValueError:
        value = -inf
    if not low <= value <= high:
        raise ValueError(f"{key}: {text!r} is not a number from {low:g} to {high:g}")
    return value


def _absence(text: str) -> Absence:
    found = _ABSENCE.fullmatch(text)
    if found is None:
        raise ValueError(
            f"absences: {text!r} is not NODE@FROM-TO in seconds, as in 2@600-900 or 2@600-900:planned"
        )
    returns_s = float(found[3]) if found[3] else inf
    return Absence(int(found[1]), float(found[2]), returns_s, found[4] or "lost")  # type: ignore[arg-type]
