"""Mends that can be taken out of a gateway, to see that the fuzzer finds their bugs.

Each puts a former bug back into this process alone, before the gateway starts.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Union

import msgspec

from policies import Decider, Decoded, Op, QueueOrder
from router import logs
from router.discovery import pods, settling
from router.encoding.encoding import Encoding
from router.encoding.registrations import Registrations
from router.fleet import engine_info
from router.gateway import bodies
from router.proxy import client_protocol
from router.shared import reader
from router.shared.placed_forms import ENTRY_KINDS, LogOp
from router.shared.state import SharedState


@dataclass(frozen=True, slots=True)
class Unmended:
    """A former finding.

    Attributes:
        shows: Matches the fuzzer's words for it.
        take_out: Takes its mend out; called before the gateway starts.
    """

    what: str
    shows: str
    take_out: Callable[[], None]


def _put(owner: Any, **values: Any) -> None:
    for name, value in values.items():
        assert hasattr(owner, name), name
        setattr(owner, name, value)


_encoder = msgspec.msgpack.Encoder()


def _publish(self: SharedState, op: Op, *more: Op) -> None:
    for each in (op, *more):
        self._fold.apply(each)
        self._publisher.put(_encoder.encode(each))


def _unbounded(names: tuple[str, ...], kind: Any) -> None:
    """Decode some fields of bodies as a kind without bounds."""
    for endpoint, (_, *reading) in list(bodies.READERS.items()):
        bounded = bodies._TYPES[endpoint]
        fields = [(name, kind | None, None) for name in names if name in bounded.__struct_fields__]
        loose = msgspec.defstruct(bounded.__name__, fields, bases=(bounded,), gc=False)
        bodies.READERS[endpoint] = msgspec.json.Decoder(loose).decode, reading[0], reading[1]
        tables: tuple[dict[Any, Any], ...] = bodies.SCOPE, bodies.SCOPE_FIELDS, bodies.BESIDE_IDS
        for table in tables:
            table[loose] = table[bounded]


def _numbers() -> None:
    _unbounded(("max_tokens", "max_completion_tokens", "max_output_tokens", "n", "priority"), int)
    for part in (Decider, QueueOrder):  # decisions, and turns
        _put(sys.modules[part.__module__], TOKENS_MAX=inf, whole=lambda value, most: round(value))
    _put(SharedState, publish=_publish)


_kept: list[Any] = []


def _registrations() -> None:
    def add(_self: Registrations, _part: str, request: Any) -> None:
        _kept.append(request)

    _put(Encoding, check=lambda _self: None)
    _put(Registrations, add=add)


def _entries() -> None:
    kinds: Any = Union[ENTRY_KINDS]  # noqa: UP007
    decoder = msgspec.msgpack.Decoder(list[kinds])

    def decode(data: bytes) -> Decoded[LogOp]:
        try:
            return Decoded(decoder.decode(data))
        except msgspec.MsgspecError:
            return Decoded([], invalid=1)

    _put(reader, decode_entry=decode)


def _names() -> None:
    _unbounded(("model", "service_tier", "prompt_cache_key"), str)
    _put(logs, bounded=logs.encoded)


def _ids() -> None:
    _put(engine_info, is_name=lambda text: isinstance(text, str) and bool(text))


def _pods() -> None:
    """Read numbers as Python does, and let one pod's trouble go up."""
    _put(pods, parsed_whole=lambda text, most=0: int(text) if text.isdigit() else None)
    _put(settling.Settling, settle=settling.Settling._settle)


def _pipelining() -> None:
    _put(client_protocol, PIECE_BYTES=1 << 40)


UNMENDED: dict[str, Unmended] = {
    "C1": Unmended(
        "a number of one request is applied and cannot be published", "internal_error|OverflowError", _numbers
    ),
    "C4": Unmended("registrations of encoder parts are kept for ever", "grew by", _registrations),
    "C5": Unmended(
        "an entry of the log stops all replicas", "redis.failed|UnicodeDecodeError|RecursionError", _entries
    ),
    "C14": Unmended(
        "an id of a worker's model cannot be written", "UnicodeEncodeError|internal_error|OpRefused", _ids
    ),
    "C7": Unmended("names of megabytes are logged whole", "a log line of", _names),
    "C12": Unmended("one pod's annotation ends the watch", "discovery.crashed|task.failed", _pods),
    "C15": Unmended(
        "one read of pipelined requests holds the loop", "one read of a connection began", _pipelining
    ),
}
