"""What is asked of a load client, and what it says when it is done.

A client is a program in a virtual environment of its own: it is run with a command line, writes a report into
a folder, and that report is read. How it measures the time to first token is said in the module of each; all
of them begin before the request leaves and end when a piece of the answer was read, so all of them count the
way there and back and their own time, which the gateway cannot see.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


class ReportUnreadable(Exception):
    """A client wrote no report, or one of another format; the message says which."""


@dataclass(frozen=True, slots=True)
class Load:
    """What every client sends: streamed completions, of which some prompts begin alike.

    Attributes:
        url: Of the gateway, without a path.
        model: Name of the model.
        tokenizer: Folder of its tokenizer.
        requests: How many.
        concurrency: At a time, where a client has a closed loop.
        rate_per_s: Requests per second, where it has an open one.
        prompt_tokens: Length of a prompt, about.
        shared_tokens: How much of it others have, too, where a client can do that.
        output_tokens: Length of an answer.
        seed: Of the prompts.
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
    """What a client says.

    Attributes:
        completed: Requests.
        failed: Requests.
        ttft_s: Mean time to first token.
        ttft_p50_s: Its median; None if the client does not say it, or rounds it.
        ttft_p90_s: Likewise the 90th percentile.
        prompt_tokens: As the server reported them to the client; None if the client does not tell.
        cached_tokens: Likewise those of them that were cached.
        output_tokens: Likewise those that were generated.
        unfinished: Requests that it began and whose end it did not wait for; nothing of them is in the rest.
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
    """How a client is installed.

    Attributes:
        folder: Name of its virtual environment; empty: it is part of this project's own.
        program: What is run, in the ``bin`` of that environment.
        module: In this project's own, what must be there to be imported; empty: the program alone says it.
        python: Oldest version of Python that it runs on, and newest.
        steps: What pip is told, one list of requirements after the other.
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
        """What it is called, on the command line and in tables."""

    @property
    def install(self) -> Install:
        """How it is installed."""

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment variables that it wants."""

    def command(self, program: Path, load: Load, folder: Path) -> list[str]:
        """Return its command line; files that it reads are written into the folder.

        Args:
            program: What is run.
            load: What it is to send.
            folder: Where its report goes.
        """

    def read(self, folder: Path) -> Report:
        """Read what it wrote.

        Raises:
            ReportUnreadable: It did not, or something else.
        """


OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
"""For clients that would ask a model hub about a tokenizer that is a folder."""
