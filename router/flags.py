"""Flags of the command line, made from the settings.

Flags carry text only: `router.sources` parses and checks the values of all sources, so that a wrong
flag gets the same error sentence as a wrong line of the file.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from router.catalogue import CATALOGUE, Setting, section_title
from router.peers import ANSWERS, FLAGS
from router.settings import Settings
from router.sources import CONFIG_ENV, did_you_mean

HELP_ALL = "--help-all"

_PEER = "peer:"
"""Prefix of argparse's names for flags of other routers."""

_OF_SECRETS = re.compile(r"api|key|token|secret|passw|auth|jwt|cert|tls|ssl|credential")
"""Words in flags that name secrets: a guess might send one where it does not belong."""

GUESS_RATIO_MIN = 0.8
"""Least similarity of a flag that is suggested for one that does not exist."""


def first_sentence(text: str) -> str:
    """The part of a description that fits a help text."""
    return text.partition(". ")[0].rstrip(".")


def shown_default(row: Setting) -> str:
    """A default as one would write it; ``none`` for an empty one."""
    value = row.default
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return " ".join(value) or "none"
    return "none" if value in (None, "", {}) else f"{value}"


def add_flags(parser: argparse.ArgumentParser, *, show_all: bool = False) -> None:
    """Add ``--config`` and one flag per setting; the help lists the common ones, or all with ``show_all``."""
    parser.add_argument(HELP_ALL, action="help", help="show the flags of all settings and exit")
    parser.add_argument(
        "--config", metavar="FILE", help=f"YAML file with settings [environment {CONFIG_ENV}, default none]"
    )
    for section in Settings.model_fields:
        rows = [row for row in CATALOGUE.values() if row.section == section]
        shown = show_all or any(row.common for row in rows)
        group = parser.add_argument_group(section, f"{section_title(section)}." if shown else None)
        for row in rows:
            _add_flag(group, row, shown=show_all or row.common)


def _add_flag(group: "argparse._ArgumentGroup", row: Setting, *, shown: bool) -> None:
    words = f": {', '.join(row.choices)}" if row.choices else ""
    about = f"{first_sentence(row.description)}{words} [default {shown_default(row)}]".replace("%", "%%")
    common: dict[str, Any] = {
        "dest": row.key,
        "default": argparse.SUPPRESS,
        "help": about if shown else argparse.SUPPRESS,
    }
    match row.kind:
        case "boolean":
            # A flag that is itself a negation has no negation of its own.
            negated = row.flag.startswith("--disable-")
            action = "store_true" if negated else argparse.BooleanOptionalAction
            group.add_argument(row.flag, action=action, **common)
        case "list" | "map":
            entry = (
                "URL" if row.allowed.startswith("URL") else row.name.rstrip("s").rpartition("_")[2].upper()
            )
            metavar = "NAME=VALUE" if row.kind == "map" else entry
            group.add_argument(row.flag, nargs="+", action="extend", metavar=metavar, **common)
        case _:
            metavar = {"integer": "N", "number": "X", "choice": "NAME", "secret": "KEY"}.get(row.kind, "TEXT")
            group.add_argument(row.flag, metavar=metavar, **common)


def add_peer_flags(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    """Add the flags of other routers that a command line has and that are not refused."""
    arities = {"one": None, "many": "*"}
    for flag in sorted({word.partition("=")[0] for word in argv} & FLAGS.keys()):
        row = FLAGS[flag]
        common: dict[str, Any] = {
            "dest": _PEER + flag,
            "default": argparse.SUPPRESS,
            "help": argparse.SUPPRESS,
        }
        if row.verdict == "refused":
            continue
        if row.values == "none":
            parser.add_argument(flag, action="append_const", const="", **common)
        else:
            action = "append" if row.values == "one" else "extend"
            parser.add_argument(flag, action=action, nargs=arities[row.values], **common)


def chosen(namespace: argparse.Namespace) -> dict[str, Any]:
    """Return the values given on the command line, by dotted key."""
    return {key: value for key, value in vars(namespace).items() if key in CATALOGUE}


def chosen_of_peers(namespace: argparse.Namespace) -> dict[str, list[str]]:
    """Return the values of flags of other routers, by flag; a switch has empty ones."""
    return {key.removeprefix(_PEER): value for key, value in vars(namespace).items() if key.startswith(_PEER)}


def guess(word: str) -> str:
    """Suggest the flag that one that does not exist means; empty if none is near, or it may hold a secret."""
    if _OF_SECRETS.search(word):
        return ""
    meant = CATALOGUE.get(
        word.removeprefix("--").replace("-", "_")
    )  # its name in a file, such as SECTION.NAME
    if meant is not None and meant.flag:
        return f"; did you mean {meant.flag}?"
    rows = [
        row.flag
        for row in CATALOGUE.values()
        if not _OF_SECRETS.search(row.flag) and ("disable" in row.flag) == ("disable" in word)
    ]
    return did_you_mean(word, rows, GUESS_RATIO_MIN)


class Parser(argparse.ArgumentParser):
    """Argument parser whose errors say how to mend the command line."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", _Formatter)
        super().__init__(allow_abbrev=False, **options)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse, and explain flags that do not exist."""
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error("; ".join(self._explained(word) for word in unknown if word.startswith("-")) or
                       f"{unknown[0]} belongs to no flag")  # fmt: skip
        return parsed

    def _explained(self, word: str) -> str:
        flag = word.partition("=")[0]
        row = FLAGS.get(flag) or ANSWERS.get(flag)
        if row is not None:
            return f"there is no flag {flag}; {row.says}"
        return f"there is no flag {flag}{guess(flag)}"

    def error(self, message: str) -> NoReturn:
        """Print a sentence or two, not a page of usage, and exit with status 2."""
        sys.stderr.write(f"{self.prog}: {message}\nSee {self.prog} --help\n")
        raise SystemExit(2)


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=40, width=110)
