"""Interface of a load client: a program in an environment of its own that writes a report into a folder.

Each module says how its client measures TTFT. All begin before the request leaves and end when a piece of the
answer was read, so they include the network and their own time, which the gateway cannot see.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


class ReportUnreadable(Exception):
    """A client wrote no report, or one of another format; the message says which."""


@dataclass(frozen=True, slots=True)
class Load:
    """Streamed completions, some with a common start.

    Attributes:
        url: URL of the gateway, without a path.
        tokenizer: Folder.
        concurrency: Requests at a time, for clients with a closed loop.
        rate_per_s: For clients with an open loop.
        prompt_tokens: Length, about.
        shared_tokens: Common part of it, if the client can do that.
    """

    url: str
    model: str
    tokenizer: Path
    requests: int = 40
    concurrency: int = 2
    rate_per_s: float = 2.0
    prompt_tokens: int = 384
    shared_tokens: int = 128
    output_tokens: int = 16
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Report:
    """Counts and times of a client's report; None if it does not tell.

    Attributes:
        ttft_s: Mean.
        ttft_p50_s: None also if the client rounds it, like ``ttft_p90_s``.
        prompt_tokens: As the server reported them, like ``cached_tokens`` and ``output_tokens``.
        unfinished: Requests whose end it did not wait for; they count nowhere else.
    """

    completed: int
    failed: int
    ttft_s: float | None
    ttft_p50_s: float | None = None
    ttft_p90_s: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    unfinished: int = 0


@dataclass(frozen=True, slots=True)
class Install:
    """Installation of a client.

    Attributes:
        folder: Name of its virtual environment; empty for this project's own.
        program: In the ``bin`` of that environment.
        module: Importable in this project's environment if installed; empty: the program tells.
        python: Oldest and newest supported version.
        steps: Lists of requirements for pip, one after the other.
    """

    folder: str
    program: str
    module: str = ""
    python: tuple[tuple[int, int], tuple[int, int]] = ((3, 11), (3, 13))
    steps: Sequence[Sequence[str]] = field(default=())


class Client(Protocol):
    """One load client."""

    @property
    def name(self) -> str:
        """Name on the command line and in tables."""

    @property
    def install(self) -> Install:
        """Its installation."""

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment variables that it wants."""

    def command(self, program: Path, load: Load, folder: Path) -> list[str]:
        """Return its command line; write files that it reads, and later its report, into ``folder``."""

    def read(self, folder: Path) -> Report:
        """Read its report; `ReportUnreadable` if there is none, or something else."""


OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
"""For clients that would ask a model hub about a tokenizer that is a folder."""
