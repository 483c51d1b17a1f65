"""The keys file: YAML (or JSON, which is YAML) to a `KeyTable`, or to all that is wrong with it.

    tenants:
      acme:
        keys:
          - sha256:9f86d081...                       # what `cacheway keys new acme` prints
          - hash: sha256:2c26b46b...
            not_before: 2026-12-01
            expires: 2027-03-01T00:00:00+01:00       # without an offset: UTC
        weight: 2
        class: high
        salt: pV4...                                 # keeps the tenant's cache apart
        limits: {requests_per_minute: 600, tokens_per_minute: 1000000, concurrent_tokens: 200000}

A problem names the line and the field, and never quotes a value: a careless hand puts keys where hashes
belong.
"""

import math
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from router.tenants.keys import INDEX_BYTES, KeyTable, TenantKey
from router.tenants.tenant import NAME, Tenant, TenantLimits

FILE_BYTES_MAX = 16 << 20
TENANTS_MAX = 10_000
"""As many label values as a metric takes (`router.tallies.SERIES_MAX`)."""

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster, where libyaml is there


class KeysFileError(Exception):
    """A keys file that cannot be used: one sentence per problem."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


def _hash(value: object) -> object:
    if isinstance(value, str) and not value.startswith("sha256:"):
        raise ValueError("must be 'sha256:' and 64 hexadecimal digits; `cacheway keys new TENANT` prints one")
    return value


def _moment(value: object) -> object:
    """Read a time; one without an offset is UTC, a date is its beginning."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            value = None
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if not isinstance(value, datetime):
        raise ValueError("must be a date or a time like 2027-03-01T00:00:00Z")  # noqa: TRY004 - for pydantic
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)


_Hash = Annotated[str, BeforeValidator(_hash), Field(pattern=r"^sha256:[0-9a-fA-F]{64}$")]
_Moment = Annotated[datetime, BeforeValidator(_moment)]
_Limit = Annotated[int, Field(gt=0, le=10**15)]


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)


class _Key(_Entry):
    hash: _Hash
    not_before: _Moment | None = None
    expires: _Moment | None = None

    @model_validator(mode="before")
    @classmethod
    def _a_hash_alone_is_a_key(cls, value: object) -> object:
        return {"hash": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _ends_after_it_begins(self) -> "_Key":
        if self.not_before is not None and self.expires is not None and self.expires <= self.not_before:
            raise ValueError("expires must be later than not_before")
        return self


class _Limits(_Entry):
    requests_per_minute: _Limit | None = None
    tokens_per_minute: _Limit | None = None
    concurrent_tokens: _Limit | None = None


class _Tenant(_Entry):
    keys: list[_Key] = []
    weight: float = Field(default=1.0, ge=0.001, le=1000)
    priority: str = Field(default="", alias="class", pattern=r"^[A-Za-z0-9_-]{1,32}$")
    salt: str = Field(default="", pattern=r"^[A-Za-z0-9_-]{16,128}$")
    limits: _Limits = _Limits()


def load_keys(path: Path, classes: Collection[str] = ()) -> KeyTable:
    """Read a keys file.

    Args:
        path: The file.
        classes: See `parsed_keys`.

    Raises:
        KeysFileError: With all that is wrong.
    """
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise KeysFileError([f"{path}: cannot be read ({error.strerror})"]) from error
    if len(content) > FILE_BYTES_MAX:
        raise KeysFileError([f"{path}: is longer than {FILE_BYTES_MAX} bytes"])
    return parsed_keys(content, str(path), classes)


def parsed_keys(content: bytes, place: str, classes: Collection[str] = ()) -> KeyTable:
    """Turn the content of a keys file into a table.

    Args:
        content: YAML or JSON.
        place: The file's name, for problems.
        classes: The classes of requests that there are; empty if that is not known.

    Raises:
        KeysFileError: With all that is wrong.
    """
    reading = _Reading(content, place)
    tenants: dict[str, Tenant] = {}
    keys: dict[str, tuple[TenantKey, ...]] = {}
    owners: dict[bytes, str] = {}
    for name, value in reading.tenants():
        # One by one: in a thread beside the event loop, no call takes long.
        try:
            entry = _Tenant.model_validate(value)
        except ValidationError as error:
            for detail in error.errors(include_url=False, include_input=False):
                reading.problem(("tenants", name, *detail["loc"]), _message(dict(detail)))
            continue
        if classes and entry.priority and entry.priority not in classes:
            reading.problem(("tenants", name, "class"), f"is no class; there are {', '.join(classes)}")
        tenants[name] = _tenant(name, entry)
        keys[name] = tuple(map(_key, entry.keys))
        for index, key in enumerate(keys[name]):
            owner = owners.setdefault(key.digest[:INDEX_BYTES], name)
            if owner != name or key.digest in (earlier.digest for earlier in keys[name][:index]):
                reading.problem(("tenants", name, "keys", index), f"is the key of {owner} already")
    if reading.problems:
        raise KeysFileError(reading.problems)
    return KeyTable(tenants, keys)


def _tenant(name: str, entry: _Tenant) -> Tenant:
    limits = entry.limits
    return Tenant(
        name,
        entry.weight,
        entry.priority,
        entry.salt,
        TenantLimits(
            limits.requests_per_minute or 0, limits.tokens_per_minute or 0, limits.concurrent_tokens or 0
        ),
        configured=True,
        namespace=entry.salt.encode(),
    )


def _key(entry: _Key) -> TenantKey:
    return TenantKey(
        bytes.fromhex(entry.hash.removeprefix("sha256:")),
        -math.inf if entry.not_before is None else entry.not_before.timestamp(),
        math.inf if entry.expires is None else entry.expires.timestamp(),
    )


def _message(detail: dict[str, Any]) -> str:
    if detail["type"] == "value_error":
        return str(detail["ctx"]["error"])
    if detail["type"] == "extra_forbidden":
        return "there is no such field"
    if detail["type"] == "model_type":
        return "must be a mapping"
    message = str(detail["msg"])
    return message[:1].lower() + message[1:]


class _Reading:
    """One look at the file's content: its values, and where each stands."""

    def __init__(self, content: bytes, place: str) -> None:
        self.problems: list[str] = []
        self._content = content
        self._place = place
        self._root: yaml.Node | None = None

    def tenants(self) -> Iterator[tuple[str, Any]]:
        """Name and value of each tenant."""
        value = self._value()
        if value is None:
            return
        if not isinstance(value, dict) or not isinstance(value.get("tenants"), dict):
            self.problem((), "must be a mapping 'tenants: {NAME: {keys: [...]}}'")
            return
        for name in value.keys() - {"tenants"}:
            self.problem((name,), "there is no such field")
        if len(value["tenants"]) > TENANTS_MAX:
            self.problem(("tenants",), f"has more than {TENANTS_MAX} entries")
            return
        for name, entry in value["tenants"].items():
            if isinstance(name, str) and NAME.fullmatch(name):
                yield name, entry
            else:
                allowed = "up to 64 letters, digits, '.', '_', '-' or '@', a letter or digit first"
                self.problem(("tenants", name), f"is no name of a tenant; give {allowed}")

    def _value(self) -> Any:
        """The content; None and a problem if there is none."""
        try:
            root = self._node()
            if root is None:
                self.problem((), "is empty; write 'tenants: {}' for no tenants")
                return None
            value = _Loader("").construct_document(root)
        except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
            mark = getattr(error, "problem_mark", None)
            line = "" if mark is None else f" line {mark.line + 1}"
            # The message of a parser may quote what it found.
            what = getattr(error, "problem", None) or type(error).__name__
            self.problems.append(f"{self._place}{line}: is not YAML ({what})")
            return None
        self._twice(root, ())
        return value

    def _node(self) -> yaml.Node | None:
        if self._root is None:
            self._root = _Loader(self._content).get_single_node()
        return self._root

    def _twice(self, node: yaml.Node, loc: tuple[str | int, ...]) -> None:
        """Find entries of the mappings that name things (tenants, fields) that are there twice."""
        if not isinstance(node, yaml.MappingNode) or len(loc) > 3:
            return
        seen: set[str] = set()
        for key, value in node.value:
            if key.value in seen:
                line = key.start_mark.line + 1
                self.problems.append(
                    f"{self._place} line {line}: {_dotted((*loc, key.value))}: is there twice"
                )
            seen.add(key.value)
            self._twice(value, (*loc, key.value))

    def problem(self, loc: tuple[Any, ...], message: str) -> None:
        """Note what is wrong, and where."""
        line = self._line(loc)
        where = f"{self._place} line {line}" if line else self._place
        self.problems.append(f"{where}: {_dotted(loc)}: {message}" if loc else f"{where}: {message}")

    def _line(self, loc: tuple[Any, ...]) -> int | None:
        """Where a field stands, or what it would stand in."""
        node = self._node()
        if node is None:
            return None
        line: int = node.start_mark.line + 1
        for part in loc:
            if isinstance(node, yaml.MappingNode):
                found = [(key, value) for key, value in node.value if key.value == str(part)]
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                found = [(node.value[part], node.value[part])]
            else:
                break
            if not found:
                break
            line = found[-1][0].start_mark.line + 1
            node = found[-1][1]
        return line


def _dotted(loc: tuple[Any, ...]) -> str:
    return ".".join(str(part)[:100] for part in loc)
