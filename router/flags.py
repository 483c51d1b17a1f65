"""Flags of the command line, made from the settings.

Flags carry text only: `router.sources` parses and checks the values of all sources alike, so that a wrong
flag gets the same error sentence as a wrong line of the file.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from router.catalogue import CATALOGUE, Setting, section_title
from router.settings import Settings
from router.sources import CONFIG_ENV, did_you_mean

HELP_ALL = "--help-all"

_NOT_YET = {
    "--vllm-discovery-address": "name the workers with --prefill and --decode, or POST /workers",
    "--router-selector": "replicas find each other through Redis; give all of them the same --redis-url",
    "--model-id-from": "models are those that the workers list",
}
_INSTEAD = {
    **{
        f"--{name.replace('_', '-')}": f"write --policy-options {name}=VALUE"
        for name in ("cache_threshold", "balance_abs_threshold", "balance_rel_threshold")
    },
    "--max-tree-size": "write --tree-blocks-max",
    "--k8s-label-selector": "write --selector",
    "--k8s-namespace": "write --service-discovery-namespace",
    "--k8s-port": "write --service-discovery-port",
    "--intra-node-data-parallel-size": "engines tell it; if one does not, write dp_size=N after its URL",
    "--tls-cert-path": "write --ssl-certfile",
    "--tls-key-path": "write --ssl-keyfile",
    "--ca-cert-paths": "write --upstream-ca-file",
    "--client-cert-path": "write --upstream-client-cert",
    "--client-key-path": "write --upstream-client-key",
}
"""Flags of the peers that mean something here under another name."""


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


def chosen(namespace: argparse.Namespace) -> dict[str, Any]:
    """Return the values given on the command line, by dotted key."""
    return {key: value for key, value in vars(namespace).items() if key in CATALOGUE}


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
        if flag in _NOT_YET:
            return f"{flag} is not available in this version: {_NOT_YET[flag]}"
        if flag in _INSTEAD:
            return f"there is no flag {flag}; {_INSTEAD[flag]}"
        return f"there is no flag {flag}{did_you_mean(flag, [row.flag for row in CATALOGUE.values()])}"

    def error(self, message: str) -> NoReturn:
        """Print a sentence or two, not a page of usage, and exit with status 2."""
        sys.stderr.write(f"{self.prog}: {message}\nSee {self.prog} --help\n")
        raise SystemExit(2)


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=40, width=110)
