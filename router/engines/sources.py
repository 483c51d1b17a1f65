"""ZeroMQ publishers of an engine's KV events, for all dialects.

Data-parallel rank r publishes at port + r (``offset_endpoint_port`` in vLLM's distributed/kv_events.py, the
same in SGLang). ``*`` and the addresses that mean any become the worker's host.
"""

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import msgspec

from radix import parsed_whole

RANKS_MAX = 1024
"""No engine has more data-parallel ranks."""

TCP = re.compile(r"tcp://(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):(\d{1,5})")
IPC = re.compile(r"ipc://[!-~]{1,100}")
ANY_HOST = frozenset(("*", "0.0.0.0", "[::]", "::"))  # noqa: S104 - what engines write


@dataclass(frozen=True, slots=True)
class Source:
    """A publisher at a ``tcp://HOST:PORT`` or ``ipc://PATH``, whose messages begin with a topic.

    Old batches can be asked for at ``replay``. The gateway ``listens`` there if the engine connects.
    """

    rank: int
    endpoint: str
    replay: str | None = None
    topic: str = ""
    listens: bool = False


def decoded(answer: bytes | None, kind: Any) -> Any:
    """Return the JSON of a page, of a type; None if it has another."""
    try:
        return None if not answer else msgspec.json.decode(answer, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def at_worker(endpoint: str | None, url: str) -> str | None:
    """Return an engine's endpoint as seen from here; None if it cannot be connected to."""
    if endpoint is None or IPC.fullmatch(endpoint):
        return endpoint
    head, colon, port = endpoint.rpartition(":")
    if head.removeprefix("tcp://") in ANY_HOST:
        host = urlsplit(url).hostname or ""
        head = f"tcp://[{host}]" if ":" in host else f"tcp://{host}"
    found = TCP.fullmatch(head + colon + port)
    return found[0] if found is not None and parsed_whole(found[2], 65535) else None


def shifted(endpoint: str, rank: int) -> str:
    """Return the endpoint of a data-parallel rank, given the first one's."""
    if not rank or not endpoint:
        return endpoint
    if not endpoint.startswith("tcp:"):
        return f"{endpoint}_dp{rank}"
    base, _, port = endpoint.rpartition(":")
    return f"{base}:{int(port) + rank}"
