"""Rows of the tables: one flag of another router, and its meaning here.

    taken      a flag of ours has its meaning: the value goes there
    accepted   no setting here stands for it, and the gateway serves rightly without it
    refused    without it something would be open, unreachable or lost: the start stops and says what to write

Tables are written as text, in groups of flags that share a sentence::

    ROUTER, ROUTER | sentence, which
    | may go on
        --switch --flag-with-a-value V --flag-with-several V...
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

Verdict = Literal["taken", "accepted", "refused"]
Values = Literal["none", "one", "many"]

SGLANG, SMG, VLLM = "sglang-router", "smg", "vllm-router"
STACK, LLM_D, DYNAMO, LITELLM, AIBRIX = "production-stack", "llm-d", "Dynamo", "LiteLLM", "AIBrix"
ROUTERS = (SGLANG, SMG, VLLM)
"""The routers whose command lines are taken as they are."""

_ARITIES: dict[str, Values] = {"V": "one", "V...": "many"}


@dataclass(frozen=True, slots=True)
class PeerFlag:
    """A flag that is none of ours.

    Attributes:
        says: Completes "``--flag``: ...": what to write, or why it has no effect.
        ours: The flag that takes its value, or ``NAME=`` for an option of a policy; empty unless taken.
        only: Values for which the verdict holds; others are refused. Empty: all values.
        value: Value that our flag gets for any value of theirs; empty for theirs.
    """

    flag: str
    peers: tuple[str, ...]
    values: Values
    verdict: Verdict
    says: str
    ours: str = ""
    only: tuple[str, ...] = ()
    value: str = ""


def groups(text: str) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Yield the groups of a table: routers, sentence, and flags."""
    peers, says, flags = "", "", ""
    for line in text.strip().splitlines():
        if line.startswith(" "):
            flags += f" {line}"
        elif line.startswith("| "):
            says += line[1:]
        else:
            if peers:
                yield tuple(peers.split(", ")), says, flags
            peers, says = line.split(" | ", 1)
            flags = ""
    yield tuple(peers.split(", ")), says, flags


def flags_of(text: str) -> Iterator[tuple[str, Values]]:
    """Yield each flag of a group with the number of its values."""
    for word, following in pairwise([*text.split(), ""]):
        if word.startswith("--"):
            yield word, _ARITIES.get(following, "none")


def rows(text: str, verdict: Verdict) -> Iterator[PeerFlag]:
    """Yield the flags of a table whose groups share a verdict."""
    for peers, says, flags in groups(text):
        for flag, values in flags_of(flags):
            yield PeerFlag(flag, peers, values, verdict, says)


def taken(text: str) -> Iterator[PeerFlag]:
    """Yield the flags of a table that have a counterpart."""
    for row in rows(text, "taken"):
        name = row.says.removesuffix("=")
        says = row.says if name == row.says else f"--policy-options {name}=VALUE"
        yield replace(row, says=says, ours=row.says)
