"""Actions of a case on the stage, as values."""

from dataclasses import dataclass
from typing import Literal

Listener = Literal["data", "admin"]

NUMBERED = b"@@@@@@@@"
"""In a wire that is repeated, eight digits of the repetition's number stand for these bytes."""


@dataclass(frozen=True, slots=True)
class Wire:
    """Bytes on a connection of their own to a replica.

    Attributes:
        pieces: Each is a write of its own.
        leaves: The client leaves when all is written, without an answer: it resets the connection, or closes
            it if that is one of many.
        repeat: Number of connections on which the same is written.
    """

    pieces: tuple[bytes, ...]
    replica: int = 0
    listener: Listener = "data"
    leaves: bool = False
    repeat: int = 1


@dataclass(frozen=True, slots=True)
class Script:
    """A worker that is added, asked, and removed.

    Attributes:
        answers: Whole answers with heads, by path; other paths get a good answer.
        hangs: Paths after whose bytes the connection stays open.
        requests: Bodies of completions, sent to a replica meanwhile.
    """

    answers: dict[str, bytes]
    hangs: frozenset[str]
    requests: tuple[bytes, ...]


Argument = bytes | str | int


@dataclass(frozen=True, slots=True)
class Commands:
    """Commands to Redis; an argument that begins with ``key:`` is a key of the namespace."""

    commands: tuple[tuple[Argument, ...], ...]


@dataclass(frozen=True, slots=True)
class Pods:
    """Pods of the API server, one JSON object each; they are deleted again afterwards."""

    pods: tuple[bytes, ...]


Action = Wire | Script | Commands | Pods
