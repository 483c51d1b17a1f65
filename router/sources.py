"""Sources of the settings' values, and their precedence.

    flag  >  environment  >  file  >  default

Every source becomes *offers*: a setting's key, a raw value, and its place. The strongest offer of each key
goes into one tree, which is validated once. All problems are collected, so that an operator mends them in one
go.

PyYAML, 1.2 MB of each process, is imported where there is YAML.

An empty environment variable and a null in the file count as "not set". Variables that Kubernetes injects for
a Service called ``cacheway`` (``CACHEWAY_PORT=tcp://...``) are passed over; any other unknown ``CACHEWAY_*``
stops the start.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from router.catalogue import CATALOGUE, ENV_PREFIX, Setting
from router.errors import SettingsError
from router.own_policies import full_name
from router.settings import Settings

if TYPE_CHECKING:
    from yaml import SafeLoader

CONFIG_ENV = f"{ENV_PREFIX}CONFIG"
HIDDEN = "********"

KEY_SHOWN = 100
"""Characters of a key that is none of ours."""

_POLICIES = {f"placement.{name}" for name in ("policy", "prefill_policy", "shadow_policy", "own_policies")}
"""Settings that take the name of an entry point for its value."""

_SECRET = re.compile(r"API|KEY|TOKENS_FILE|SECRET|PASSW|AUTH|CREDENTIAL")

_BY_ENV = {row.env: row for row in CATALOGUE.values()}
_SERVICE_LINK = re.compile(
    r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$"
)
_SERVICE_URL = re.compile(r"(tcp|udp|sctp)://")


@dataclass(frozen=True, slots=True)
class Origin:
    """Source of a value: ``place`` is a flag, a variable or ``FILE line N``; empty for a default.

    ``runtime`` is a change since the start (`router.live_settings`).
    """

    kind: Literal["flag", "environment", "file", "default", "runtime"]
    place: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.place}".rstrip()


@dataclass(frozen=True, slots=True)
class Loaded:
    """Effective settings, with the origin of each by dotted key.

    ``note`` reports on another router's command line (`router.peers`).
    """

    settings: Settings
    origins: Mapping[str, Origin]
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Offer:
    row: Setting
    value: Any
    origin: Origin


def load(
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    file: str | None = None,
) -> Loaded:
    """Find the effective settings; raise SettingsError with all problems.

    Args:
        flags: Values of the command line, by dotted key.
        environ: The environment.
        file: Path of a YAML file; it wins over the path in ``CACHEWAY_CONFIG``.
    """
    problems: list[str] = []
    environ = environ or {}
    path = file or environ.get(CONFIG_ENV)
    offers: dict[str, _Offer] = {}
    for source in (
        _from_file(Path(path), problems) if path else [],
        _from_environment(environ, problems),
        [
            _Offer(CATALOGUE[key], value, Origin("flag", CATALOGUE[key].flag))
            for key, value in (flags or {}).items()
        ],
    ):
        offers.update({offer.row.key: offer for offer in source})
    settings = _validated(offers, problems)
    if problems or settings is None:
        raise SettingsError(problems)
    default = Origin("default")
    return Loaded(settings, {key: offers[key].origin if key in offers else default for key in CATALOGUE})


def changed(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """Return the settings with some values replaced, typed as in the file.

    An empty text is None, where a setting may be None. Raise SettingsError with all problems.
    """
    problems = [no_such_setting(key) for key in values if key not in CATALOGUE]
    offers = {
        key: _Offer(CATALOGUE[key], _none_if_empty(CATALOGUE[key], value), Origin("runtime"))
        for key, value in values.items()
        if key in CATALOGUE
    }
    parts = {name: getattr(settings, name) for name in Settings.model_fields}
    for section in {offer.row.section for offer in offers.values()}:
        rows = (row for row in CATALOGUE.values() if row.section == section)
        parts[section] = {row.name: getattr(parts[section], row.name) for row in rows}
    judged = _validated(offers, problems, parts)
    if problems or judged is None:
        raise SettingsError(problems)
    return judged


def no_such_setting(key: str) -> str:
    """Say that a key is none, and which one may be meant."""
    return f"there is no setting {printable(key)}{did_you_mean(key[:KEY_SHOWN], CATALOGUE)}"


def printable(key: str) -> str:
    """Return the printable start of a key from a configuration."""
    return key[:KEY_SHOWN].encode("ascii", "backslashreplace").decode()


def _none_if_empty(row: Setting, value: Any) -> Any:
    return None if value == "" and row.default is None else value


def did_you_mean(word: str, known: Iterable[str], ratio_min: float = 0.6) -> str:
    """Suggest the nearest known word; empty if none is as similar as ``ratio_min``."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=ratio_min)
    return f"; did you mean {near[0]}?" if near else ""


def _from_environment(environ: Mapping[str, str], problems: list[str]) -> list[_Offer]:
    offers = []
    for name, text in sorted(environ.items()):
        if not name.startswith(ENV_PREFIX) or name == CONFIG_ENV or not text:
            continue
        if _SERVICE_LINK.search(name) or (name.endswith("_PORT") and _SERVICE_URL.match(text)):
            continue
        if name in _BY_ENV:
            offers.append(_Offer(_BY_ENV[name], text, Origin("environment", name)))
        else:
            # A guess must not lead a secret to where it does not belong.
            known = () if _SECRET.search(name) else [env for env in _BY_ENV if not _SECRET.search(env)]
            hint = did_you_mean(
                name.removeprefix(ENV_PREFIX), [env.removeprefix(ENV_PREFIX) for env in known]
            )
            hint = hint.replace("did you mean ", f"did you mean {ENV_PREFIX}")
            problems.append(f"environment {name}: there is no such setting{hint}")
    return offers


def _from_file(path: Path, problems: list[str]) -> list[_Offer]:
    """Read ``section: {name: value}`` with the line of every key."""
    import yaml

    try:
        loader = yaml.SafeLoader(path.read_text(encoding="utf-8"))
        root = loader.get_single_node()
    except OSError as error:
        problems.append(f"file {path}: cannot be read ({error.strerror}); check the path given with --config")
        return []
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" line {mark.line + 1}"
        why = getattr(error, "problem", None) or " ".join(str(error).split())
        problems.append(f"file {path}{where}: is not YAML: {why}")
        return []
    if root is None:
        return []
    offers: dict[str, _Offer] = {}
    for section, line, inner in _entries(loader, root, f"{path}", problems):
        if section not in Settings.model_fields:
            problems.append(f"file {path} line {line}: {_unknown_section(section)}")
            continue
        if inner.id == "scalar" and loader.construct_object(inner) is None:
            continue
        for name, at, node in _entries(loader, inner, f"{path}", problems):
            key, origin = f"{section}.{name}", Origin("file", f"{path} line {at}")
            if key not in CATALOGUE:
                problems.append(f"{origin}: {no_such_setting(key)}")
                continue
            if key in offers:
                problems.append(
                    f"{origin}: {key} is set twice, first in {offers[key].origin.place}; keep one"
                )
            try:
                value = loader.construct_object(node, deep=True)
            except yaml.YAMLError as error:
                problems.append(f"{origin}: {key} is not plain YAML: {' '.join(str(error).split())}")
                continue
            if value is not None:
                offers[key] = _Offer(CATALOGUE[key], value, origin)
    return list(offers.values())


def _entries(loader: "SafeLoader", node: Any, path: str, problems: list[str]) -> list[tuple[str, int, Any]]:
    """Return key, line and value node of each entry of a mapping."""
    if node.id != "mapping":
        problems.append(
            f"file {path} line {node.start_mark.line + 1}: sections hold settings as 'name: value' lines, "
            "for example server: {port: 30000}"
        )
        return []
    loader.flatten_mapping(node)
    return [(str(key.value), key.start_mark.line + 1, value) for key, value in node.value]


def _unknown_section(name: str) -> str:
    """Name the section of a key that stands at the top level."""
    flat = name.replace("-", "_")
    for row in CATALOGUE.values():
        if flat in (row.name, row.flag.removeprefix("--").replace("-", "_")):
            return f"{name} belongs into a section; write {row.section}: {{{row.name}: ...}}"
    sections = list(Settings.model_fields)
    hint = did_you_mean(name, sections) or f"; sections are {', '.join(sections)}"
    return f"there is no section {name}{hint}"


def _parsed(offer: _Offer) -> Any:
    """Parse the text of a flag or variable by its kind; raise ValueError if it has the wrong form."""
    value, kind = offer.value, offer.row.kind
    typed = offer.origin.kind in ("file", "runtime")
    if kind == "list" and not typed:
        pieces = [value] if isinstance(value, str) else value
        value = [word for piece in pieces for word in re.split(r"[,\s]+", piece) if word]
    if offer.row.key in _POLICIES:
        return _named(value)
    if kind == "list":
        return value
    if kind == "map" and not typed:
        return _mapping([value] if isinstance(value, str) else list(value))
    if isinstance(value, bool) and kind != "boolean":
        raise ValueError("true and false need quotes to be text, and are no number")
    return value


def _named(value: Any) -> Any:
    """Name policies in full, where an entry point is named."""
    if isinstance(value, list):
        return [_named(each) for each in value]
    return full_name(value) if isinstance(value, str) else value


def _mapping(pieces: list[str]) -> Any:
    text = " ".join(pieces).strip()
    if text.startswith("{"):
        import yaml

        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(f"it is not a YAML mapping: {' '.join(str(error).split())}") from error
    pairs = [word.partition("=") for word in re.findall(r"(?:\{[^}]*\}|[^,\s])+", text)]
    if not all(equals for _, equals, _ in pairs):
        raise ValueError("a pair lacks its '='")
    return {name: _mapping([value]) if value.startswith("{") else value for name, _, value in pairs}


def _validated(
    offers: Mapping[str, _Offer], problems: list[str], parts: Mapping[str, Any] = MappingProxyType({})
) -> Settings | None:
    """Validate the strongest offers by dotted key; on errors return None and add sentences to ``problems``.

    Sections in ``parts`` are the base; those with an offer are dictionaries.
    """
    tree = dict(parts)
    for offer in offers.values():
        try:
            tree.setdefault(offer.row.section, {})[offer.row.name] = _parsed(offer)
        except ValueError as error:
            problems.append(_sentence(offer, str(error)))
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        problems.extend(_explained(detail, offers) for detail in error.errors(include_url=False))
        return None


_MESSAGES = {
    "unexpected_keyword_argument": "there is no such name",
    "dataclass_type": "give a mapping of names to values",
}
"""Plain messages for errors whose own message speaks of Python, by pydantic's type."""


def _explained(detail: ErrorDetails, offers: Mapping[str, _Offer]) -> str:
    """Turn one of pydantic's errors into a sentence with the place, the mistake and the right form."""
    loc = [str(part) for part in detail["loc"]]
    own = detail["type"] == "value_error"
    what = str(detail["ctx"]["error"]) if own else _MESSAGES.get(detail["type"], detail["msg"])
    what = what if own else what[:1].lower() + what[1:]
    if not loc:
        return what  # of several sections: it names them itself
    offer = offers.get(".".join(loc[:2]))
    if offer is None:
        places = ", ".join(str(entry.origin) for entry in offers.values() if entry.row.section == loc[0])
        return f"{places}: {loc[0]}: {what}"
    inner = "".join(f"[{part}]" for part in loc[2:])
    if offer.row.choices or not (own or inner):
        return _sentence(offer)
    return f"{offer.origin}: {offer.row.key}{inner}: {what}"


def _sentence(offer: _Offer, why: str = "") -> str:
    """Describe a wrong value, and the allowed ones."""
    row = offer.row
    hidden = row.kind == "secret" or "url" in row.name or row.allowed.startswith("URL")
    value = "its value" if hidden else repr(offer.value)
    hint = did_you_mean(str(offer.value), row.choices)
    reason = f" ({why})" if why else ""
    return f"{offer.origin}: {value} is not allowed for {row.key}{reason}; give {row.allowed}{hint}"
