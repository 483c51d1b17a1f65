"""Label selectors of Kubernetes, as people write them on a command line, in the environment or in a file.

    --selector app=sglang tier=inference                 as users of the peers type it: all must hold
    --selector 'app in (sglang, vllm)' '!canary'         and as kubectl takes it
    discovery: {selector: ["app=sglang,tier!=batch"]}    the same in a file

Spaces or commas separate words. Requirements are kept in Kubernetes' own form (``labels.Parse``), so that the
API server understands them and equal selectors look equal.
"""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_KEY = rf"(?:[a-z0-9](?:[a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_NAME}"
_VALUE = rf"(?:{_NAME})?"
_REQUIREMENT = re.compile(
    rf"(?P<key>{_KEY})\s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\)"
    rf"|(?P<left>{_KEY})\s*(?P<equal>==?|!=)\s*(?P<right>{_VALUE})"
    rf"|(?P<exists>!?\s*{_KEY})"
)
_GAP = re.compile(r"[\s,]*")
_LIST = re.compile(rf"{_VALUE}(?:[\s,]+{_VALUE})*")


def requirements(text: str) -> tuple[str, ...]:
    """Split a selector into requirements; a ValueError names the wrong place."""
    found: list[str] = []
    at = 0
    while True:
        gap = _GAP.match(text, at)
        at = at if gap is None else gap.end()
        if at == len(text):
            return tuple(dict.fromkeys(found))
        match = _REQUIREMENT.match(text, at)
        if match is None or not (match.end() == len(text) or text[match.end()] in " ,\t\n"):
            raise ValueError(f"{text[at : at + 60]!r} is no requirement of labels; write KEY=VALUE")
        found.append(_written(match))
        at = match.end()


def _written(match: re.Match[str]) -> str:
    if match["set"]:
        values = match["values"].strip(" ,\t\n")
        if not values or not _LIST.fullmatch(values):
            raise ValueError(f"{match[0][:60]!r} needs values: write KEY in (VALUE, VALUE)")
        listed = ",".join(sorted(set(re.split(r"[\s,]+", values))))
        return f"{match['key']} {match['set']} ({listed})"
    if match["equal"]:
        return f"{match['left']}{'!=' if match['equal'] == '!=' else '='}{match['right']}"
    if match["exists"] in ("in", "notin"):
        raise ValueError(f"{match[0]!r} stands alone; write KEY {match[0]} (VALUE, VALUE)")
    return "".join(match["exists"].split())


def _selector(given: Any) -> Any:
    """Read the words of one selector, which may have been taken apart at commas and spaces."""
    if isinstance(given, str):
        given = [given]
    if isinstance(given, dict):  # as in a pod's or a service's own file
        given = [f"{key}={value}" for key, value in given.items()]
    if not isinstance(given, list | tuple) or not all(isinstance(word, str) for word in given):
        return given
    return requirements(" ".join(given))


Selector = Annotated[tuple[str, ...], BeforeValidator(_selector)]
"""Requirements that must all hold; empty selects nothing here."""
