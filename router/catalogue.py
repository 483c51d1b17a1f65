"""The settings as a flat list: one row per setting, derived from the tree in `router.settings`.

    server.request_timeout_s  ->  --request-timeout-secs  ->  CACHEWAY_REQUEST_TIMEOUT_SECS
    key (section.name)            flag                        environment variable

Command line, environment, file, reference and error sentences all read these rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from router.settings import Settings

Kind = Literal["boolean", "integer", "number", "text", "secret", "choice", "list", "map"]

ENV_PREFIX = "CACHEWAY_"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting; ``live`` ones may change while the gateway serves, ``--help`` shows ``common`` ones.

    ``allowed`` is read after "give": ``a whole number, 1 to 65535``. No ``choices``: any text.
    """

    section: str
    name: str
    flag: str
    env: str
    kind: Kind
    default: Any
    choices: tuple[str, ...]
    allowed: str
    description: str
    live: bool = False
    common: bool = False

    @property
    def key(self) -> str:
        """Dotted name, as in messages and in the file."""
        return f"{self.section}.{self.name}"


def _class_of(section: str) -> type[Any]:
    kind = Settings.model_fields[section].annotation
    assert isinstance(kind, type)
    return kind


def section_title(section: str) -> str:
    """Return the first line of a section's docstring, without its full stop."""
    return (_class_of(section).__doc__ or "").strip().rstrip(".")


def _section_fields(section: str) -> Mapping[str, FieldInfo]:
    fields: Mapping[str, FieldInfo] = _class_of(section).__pydantic_fields__
    return {name: field for name, field in fields.items() if field.json_schema_extra}


def _bare(annotation: Any) -> Any:
    """Drop ``Annotated`` and ``| None``."""
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            annotation = get_args(annotation)[0]
        elif origin in (Union, UnionType):
            annotation = next(arm for arm in get_args(annotation) if arm is not type(None))
        else:
            return annotation


def _kind(annotation: Any, choices: tuple[str, ...]) -> Kind:
    kinds: dict[Any, Kind] = {bool: "boolean", int: "integer", float: "number", SecretStr: "secret"}
    if choices:
        return "choice"
    if get_origin(annotation) is tuple:
        return "list"
    if get_origin(annotation) is dict:
        return "map"
    return kinds.get(annotation, "text")


def _range(field: FieldInfo) -> str:
    """Return the limits of a number in words; empty without any."""
    limits = {name: getattr(entry, name) for entry in field.metadata for name in ("ge", "gt", "le", "lt")
              if hasattr(entry, name)}  # fmt: skip
    words = []
    if "ge" in limits and "le" in limits:
        return f", {limits['ge']} to {limits['le']}"
    for name, word in (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below")):
        if name in limits:
            words.append(f"{word} {limits[name]}")
    return f", {' and '.join(words)}" if words else ""


def _allowed(kind: Kind, field: FieldInfo, choices: tuple[str, ...]) -> str:
    match kind:
        case "boolean":
            return "true or false"
        case "integer":
            return f"a whole number{_range(field)}"
        case "number":
            return f"a number{_range(field)}"
        case "choice":
            return f"one of {', '.join(choices)}"
        case "list":
            return "a list; in the environment separated by commas or spaces"
        case "map":
            return "NAME=VALUE pairs or a YAML mapping"
        case "secret" | "text":
            return "text"


def _row(section: str, name: str, field: FieldInfo) -> Setting:
    extra: Any = field.json_schema_extra
    annotation = _bare(field.annotation)
    choices = tuple(extra["choices"])
    if get_origin(annotation) is Literal:
        choices = get_args(annotation)
    kind = _kind(annotation, choices)
    seconds = name.endswith("_s") and not name.endswith("_per_s")
    flag = extra["flag"] or (f"{name[:-2]}_secs" if seconds else name).replace("_", "-")
    return Setting(
        section=section,
        name=name,
        flag=f"--{flag}",
        env=ENV_PREFIX + flag.replace("-", "_").upper(),
        kind=kind,
        default=field.get_default(call_default_factory=True),
        choices=choices,
        allowed=extra["allowed"] or _allowed(kind, field, choices),
        description=field.description or "",
        live=extra["live"],
        common=extra["common"],
    )


def _rows() -> dict[str, Setting]:
    rows: dict[str, Setting] = {}
    for section in Settings.model_fields:
        for name, field in _section_fields(section).items():
            row = _row(section, name, field)
            rows[row.key] = row
    return rows


CATALOGUE: Mapping[str, Setting] = MappingProxyType(_rows())
"""All settings by dotted key, in the order of the tree."""
