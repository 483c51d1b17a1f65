"""Workers named in the settings with more than a URL: ``URL [BOOTSTRAP_PORT|none] [LABEL=VALUE ...]``.

    --prefill http://a:30000 8998                    as users of the peers type it
    --prefill http://far:30000 none site=dc2         labels follow
    fleet: {prefill: ["http://a:30000 8998", ...]}   the same in a file

Each URL begins a new worker, in any source. ``none`` stands for the engine's default port (SGLang
router_args.py, ``_parse_prefill_urls``). A line is kept as text, so that the effective settings can be saved
and read again; `named_worker` parses it.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import BeforeValidator

from policies import HAND_OVERS
from radix import RANKS_MAX, parsed_whole
from router.values import http_url

SITE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
"""Names of sites: they are parts of a link's name, and label values of metrics."""

_LABEL = re.compile(r"([A-Za-z0-9._/-]{1,64})=(.*)", re.DOTALL)
_HOST = re.compile(r"[A-Za-z0-9_.-]{1,253}|[0-9A-Fa-f.]*:[0-9A-Fa-f:.]+|\[[0-9A-Fa-f:.]+\]")
_PORT = re.compile(r"[0-9]+|none", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class NamedWorker:
    """One worker of a list."""

    url: str
    labels: Mapping[str, str]
    role: str


def _port(text: str) -> None:
    if not parsed_whole(text, 65535):
        raise ValueError(f"bootstrap_port {text[:20]!r} is not a port; give 1 to 65535, or none")


def _one_of(name: str, *words: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        if text not in words:
            raise ValueError(f"{name} {text[:40]!r} is not known; give {' or '.join(words)}")

    return check


def _site(text: str) -> None:
    if not SITE.fullmatch(text):
        raise ValueError(f"site {text[:80]!r} is no name of letters, digits, dots and dashes")


def _ranks(text: str) -> None:
    if not parsed_whole(text, RANKS_MAX):
        raise ValueError(f"dp_size {text[:20]!r} is not a number of ranks; give 1 to {RANKS_MAX}")


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _host(text: str) -> None:
    if not (_HOST.fullmatch(text) and (":" not in text or _is_address(text.strip("[]")))):
        raise ValueError(f"bootstrap_host {text[:80]!r} is neither a host name nor an address")


_CHECKS: Mapping[str, Callable[[str], None]] = MappingProxyType(
    {
        "bootstrap_host": _host,
        "bootstrap_port": _port,
        "handover": _one_of("handover", *HAND_OVERS),
        "convertible": _one_of("convertible", "true", "false"),
        "site": _site,
        "dp_size": _ranks,
    }
)


def check_labels(labels: Mapping[str, str]) -> None:
    """Check the labels about prefill and decode; a ValueError says how to mend a wrong one."""
    for name, check in _CHECKS.items():
        if name in labels:
            check(labels[name])


def _line(words: Iterable[str]) -> str:
    """Normalise the words of one worker: URL, then labels in the order of their names."""
    first, *rest = words
    url = http_url(first)
    labels: dict[str, str] = {}
    for number, word in enumerate(rest):
        label = _LABEL.fullmatch(word)
        name, value = label.groups() if label else ("bootstrap_port", word)
        if label is None and number:
            raise ValueError(f"{word[:80]!r} after {url} is no label; write LABEL=VALUE")
        if name in labels:
            raise ValueError(f"{name} is given twice for {url}")
        labels[name] = value
    if labels.get("bootstrap_port", "").lower() == "none":
        del labels["bootstrap_port"]
    check_labels(labels)
    return " ".join((url, *(f"{name}={labels[name]}" for name in sorted(labels))))


def _lines(given: Any) -> Any:
    """Split words into those of each worker."""
    if not isinstance(given, list | tuple) or not all(isinstance(entry, str) for entry in given):
        return given
    workers: list[list[str]] = []
    for word in " ".join(given).split():
        if _PORT.fullmatch(word) or _LABEL.fullmatch(word):
            if not workers:
                raise ValueError(
                    f"{word[:80]!r} comes before any URL; write URL [BOOTSTRAP_PORT] [LABEL=VALUE ...]"
                )
            workers[-1].append(word)
        else:
            workers.append([word])
    return tuple(_line(words) for words in workers)


WorkerLines = Annotated[tuple[str, ...], BeforeValidator(_lines)]
"""Workers with their labels, a line each."""


def named_worker(line: str, role: str = "plain") -> NamedWorker:
    """Read one of `WorkerLines`."""
    url, *labels = line.split(" ")
    return NamedWorker(url, dict(label.split("=", 1) for label in labels), role)
