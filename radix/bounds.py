"""Bounds of every number, name and text, from any source.

Values from clients, administrators, workers, pods and Redis are checked where they enter. The types of the
operations that replicas exchange carry these bounds too, for decoder and encoder.

Sums in the columns of the fold are float64, exact for whole numbers up to 2**53 (`WHOLE_MAX`). One request
adds at most 2**36 tokens or microseconds, so 2**17 requests in flight at one worker still add up exactly.
"""

from math import inf
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta

WHOLE_MAX = (1 << 53) - 1
"""Greatest whole number that is exact in float64, and log time in microseconds until the year 2255."""

TOKENS_MAX = 1 << 36
"""Tokens of one request, or of one worker's cache: 64,000 times the longest context of today."""

DURATION_US_MAX = 1 << 36
"""Predicted time of one request in microseconds: 19 hours."""

COUNT_MAX = (1 << 31) - 1
"""Requests, blocks, tokens of one output."""

ANSWERS_MAX = 16_384
"""Answers to one prompt (``n``). vLLM's bound, too (``VLLM_MAX_N_SEQUENCES`` in its envs.py)."""

RANKS_MAX = 4096
"""Data-parallel ranks of one worker."""

PLACES_MAX = 512
"""Data-parallel ranks of one worker that requests can be sent to: a row of the fold each."""

KV_BYTES_MAX = 1 << 42
"""KV of one request: 4 TiB; 2**11 transfers that share a link add up exactly."""

AMOUNT_MAX = 1e9
"""Learned numbers with a fraction: seconds (32 years), requests."""

RATE_MAX = 2.0**43
"""Bytes per second of a link: 70 Tbit/s."""

NAME_CHARS_MAX = 256
"""Names: models, adapters, tenants, replicas, classes, requests. Longer ones are refused."""

TEXT_CHARS_MAX = 4096
"""Texts: reasons, values of labels and settings."""

URL_CHARS_MAX = 2048
"""URLs of workers, and so their ids."""

LABELS_MAX = 64
"""Labels of one worker."""

KEYS_MAX = 1024
"""Entries of one operation's mapping that names no workers."""

WORKERS_MAX = 16_384
"""Workers of one fleet, including those removed lately."""

PATH_BYTES_MAX = 1 << 24
"""Packed block hashes of one prompt: two million blocks."""

PATHS_MAX = 1 << 16
"""Prompts of one batch."""

SHARED = 1 << 48
"""Owner of blocks that several owners brought. Other owners are above 0 and below this."""

WholeNumber = Annotated[int, Meta(ge=0, le=WHOLE_MAX)]
LogTime = WholeNumber
Owner = Annotated[int, Meta(ge=0, lt=SHARED)]
Micros = Annotated[int, Meta(ge=0, le=DURATION_US_MAX)]
Tokens = Annotated[int, Meta(ge=0, le=TOKENS_MAX)]
TokensOrUnknown = Annotated[int, Meta(ge=-1, le=TOKENS_MAX)]
Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
CountOrUnknown = Annotated[int, Meta(ge=-1, le=COUNT_MAX)]
Places = Annotated[int, Meta(ge=0, le=PLACES_MAX)]
KvBytes = Annotated[int, Meta(ge=0, le=KV_BYTES_MAX)]
Amount = Annotated[float, Meta(ge=0.0, le=AMOUNT_MAX)]
Seconds = Amount
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Rate = Annotated[float, Meta(ge=0.0, le=RATE_MAX)]
Real = Annotated[float, Meta(ge=-AMOUNT_MAX, le=AMOUNT_MAX)]
TokenSeconds = Annotated[float, Meta(ge=1e-12, le=1e3)]
ContextTokens = Annotated[float, Meta(ge=1.0, le=1e15)]
TokenBytes = Annotated[float, Meta(ge=1 / 1024, le=4096.0)]
Name = Annotated[str, Meta(max_length=NAME_CHARS_MAX)]
Text = Annotated[str, Meta(max_length=TEXT_CHARS_MAX)]
WorkerId = Annotated[str, Meta(max_length=URL_CHARS_MAX)]
Url = Annotated[str, Meta(max_length=URL_CHARS_MAX)]
Labels = Annotated[dict[Name, Text], Meta(max_length=LABELS_MAX)]
Path = Annotated[bytes, Meta(max_length=PATH_BYTES_MAX)]


def whole(value: float, most: int) -> int:
    """Round a computed number, 0 to ``most``; NaN and greater numbers give ``most``."""
    if value < most:
        return round(value) if value > 0.0 else 0
    return most


def parsed_whole(text: str, most: int = WHOLE_MAX) -> int | None:
    """Read a whole number in ASCII digits; None if the text is none, or the number is above ``most``.

    Unlike ``int``, it refuses other scripts' digits, and ``"²"``, for which ``isdigit`` is true and ``int``
    raises.
    """
    if not text.isascii() or not text.isdigit() or len(text.lstrip("0")) > len(str(most)):
        return None
    number = int(text[-len(str(most)) :])
    return number if number <= most else None


def sane_whole(value: object, most: int) -> int:
    """Return a whole number that a machine reported, 0 to ``most``; 0 for everything else."""
    return value if type(value) is int and 0 <= value <= most else 0


def sane_real(value: float, most: float) -> float:
    """Return a number that a machine reported, 0 to ``most``; -1 for everything else."""
    return value if 0 <= value <= most and value < inf else -1.0


def is_name(text: object) -> bool:
    """True if a text can be a name: not empty, not too long, printable."""
    return isinstance(text, str) and 0 < len(text) <= NAME_CHARS_MAX and text.isprintable()


def is_base_url(url: str) -> bool:
    """True for an http or https URL of a host, with a port and a path at most."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:  # brackets that are no address, a port that is none
        return False
    return (
        len(url) <= URL_CHARS_MAX
        and url.isascii()
        and url.isprintable()
        and " " not in url
        and parts.scheme in ("http", "https")
        and bool(parts.hostname)
        and not (parts.query or parts.fragment or "@" in parts.netloc)
    )
