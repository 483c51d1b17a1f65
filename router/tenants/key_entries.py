"""Reader of YAML or JSON files of key hashes, of tenants and of operators.

A problem names the line and the field, and never quotes a value: it may be a key in the place of its hash.
PyYAML, 1.2 MB of each process, is imported where there is a file.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from router.tenant import NAME

FILE_BYTES_MAX = 16 << 20


class KeysFileError(Exception):
    """A keys file that cannot be used: one sentence per problem."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


def _hash(value: object) -> object:
    if isinstance(value, str) and not value.startswith("sha256:"):
        raise ValueError("must be 'sha256:' and 64 hexadecimal digits; `cacheway keys` prints one")
    return value


def _moment(value: object) -> object:
    """Parse a time; one without an offset is UTC, a date is its beginning."""
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


KeyHash = Annotated[str, BeforeValidator(_hash), Field(pattern=r"^sha256:[0-9a-fA-F]{64}$")]
Moment = Annotated[datetime, BeforeValidator(_moment)]


class Entry(BaseModel):
    """A mapping of the file, which refuses fields that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)


E = TypeVar("E", bound=Entry)


def content_of(path: Path) -> bytes:
    """Return the content of a file; raise KeysFileError if it cannot be read, or is too long."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise KeysFileError([f"{path}: cannot be read ({error.strerror})"]) from error
    if len(content) > FILE_BYTES_MAX:
        raise KeysFileError([f"{path}: is longer than {FILE_BYTES_MAX} bytes"])
    return content


def _message(detail: dict[str, Any]) -> str:
    if detail["type"] == "value_error":
        return str(detail["ctx"]["error"])
    if detail["type"] == "extra_forbidden":
        return "there is no such field"
    if detail["type"] == "model_type":
        return "must be a mapping"
    message = str(detail["msg"])
    return message[:1].lower() + message[1:]


class Reading:
    """Values of a file's content, with the place of each, and a sentence for each problem."""

    def __init__(self, content: bytes, place: str) -> None:
        self.problems: list[str] = []
        self._content = content
        self._place = place
        self._root: Any = None

    def entries(self, group: str, most: int) -> Iterator[tuple[str, Any]]:
        """Return name and value of each entry of the mapping ``group``, at most ``most`` of them."""
        value = self._value(group)
        if value is None:
            return
        if not isinstance(value, dict) or not isinstance(value.get(group), dict):
            self.problem((), f"must be a mapping '{group}: {{NAME: {{...}}}}'")
            return
        for name in value.keys() - {group}:
            self.problem((name,), "there is no such field")
        if len(value[group]) > most:
            self.problem((group,), f"has more than {most} entries")
            return
        for name, entry in value[group].items():
            if isinstance(name, str) and NAME.fullmatch(name):
                yield name, entry
            else:
                allowed = "up to 64 letters, digits, '.', '_', '-' or '@', a letter or digit first"
                self.problem((group, name), f"is no name of a {group.removesuffix('s')}; give {allowed}")

    def validated(self, loc: tuple[str | int, ...], kind: type[E], value: object) -> E | None:
        """An entry; None, and problems, if something is wrong with it."""
        try:
            return kind.model_validate(value)
        except ValidationError as error:
            for detail in error.errors(include_url=False, include_input=False):
                self.problem((*loc, *detail["loc"]), _message(dict(detail)))
            return None

    def _value(self, group: str) -> Any:
        """Return the content; None and a problem if there is none."""
        from yaml import YAMLError

        try:
            root = self._node()
            if root is None:
                self.problem((), f"is empty; write '{group}: {{}}' for no {group}")
                return None
            value = _loader(b"").construct_document(root)
        except (YAMLError, UnicodeDecodeError, ValueError) as error:
            mark = getattr(error, "problem_mark", None)
            line = "" if mark is None else f" line {mark.line + 1}"
            # The message of a parser may quote the file.
            what = getattr(error, "problem", None) or type(error).__name__
            self.problems.append(f"{self._place}{line}: is not YAML ({what})")
            return None
        self._twice(root, ())
        return value

    def _node(self) -> Any:
        if self._root is None:
            self._root = _loader(self._content).get_single_node()
        return self._root

    def _twice(self, node: Any, loc: tuple[str | int, ...]) -> None:
        """Find duplicate names of tenants and fields."""
        if node.id != "mapping" or len(loc) > 3:
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
        """Note a problem and its place."""
        line = self._line(loc)
        where = f"{self._place} line {line}" if line else self._place
        self.problems.append(f"{where}: {_dotted(loc)}: {message}" if loc else f"{where}: {message}")

    def _line(self, loc: tuple[Any, ...]) -> int | None:
        """Return the line of a field, or of the mapping that lacks it."""
        node = self._node()
        if node is None:
            return None
        line: int = node.start_mark.line + 1
        for part in loc:
            if node.id == "mapping":
                found = [(key, value) for key, value in node.value if key.value == str(part)]
            elif node.id == "sequence" and isinstance(part, int) and part < len(node.value):
                found = [(node.value[part], node.value[part])]
            else:
                break
            if not found:
                break
            line = found[-1][0].start_mark.line + 1
            node = found[-1][1]
        return line


def _loader(content: bytes) -> Any:
    """Return a loader of YAML; libyaml's, where it is there, is ten times faster."""
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)(content)


def _dotted(loc: tuple[Any, ...]) -> str:
    return ".".join(str(part)[:100] for part in loc)
