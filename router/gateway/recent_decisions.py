"""The newest decisions of this replica.

    request ends ── RequestRecord ──append──> ring of `KEPT_MAX` ──> GET /decisions, GET /tree, the console,
                                                                     POST /explain

A decision is the part of a request's record that stays. It has no body and no text, short names, a cut
message; of the block hashes of long prompts at most `HASHES_BYTES_MAX` are kept. The ring holds most
decisions packed, in some 430 bytes: as objects they took 3 KB in twenty places, which no later request could
use again while a cache still had them.
"""

from collections import deque
from collections.abc import Collection, Iterator
from itertools import islice
from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import astuple

from policies import Attempt, Usage
from router.gateway.endpoints import Endpoint
from router.gateway.parsing import ParsedRequest
from router.tenant import ANONYMOUS, Tenant

KEPT_MAX = 4096

STAYS_MAX = 100
"""Newest requests of a worker in the mean of `RecentDecisions.stay_s`."""

TEXT_CHARS_MAX = 200
"""Longest stored message; names have at most `radix.NAME_CHARS_MAX`."""

SHORT_BYTES_MAX = 1024
"""Hashes of a prompt that are kept as long as its decision: 128 blocks, 4 MiB in the ring."""

HASHES_BYTES_MAX = 12 << 20
"""Bound on the hashes of longer prompts; at a million tokens each, the newest 400 are kept."""


class RecentDecision(msgspec.Struct, eq=False):
    """The decision for one request, and its result.

    Attributes:
        received_s: Monotonic seconds when the request was complete.
        request_id, worker_request_id: The client's, or ours; ours, for the workers.
        endpoint, parsed: None if it was rejected before they were known.
        attempt: The latest of ``attempts``, of a pair the prefill worker's; None if it was never sent. Its
            ``started_s`` is 0 if nothing says when the worker was asked (`router.picker`).
        wait_s: Total wait of all its attempts.
        first_byte_s: Monotonic seconds of the first body byte, of a stream the first that belongs to a token
            (`router.gateway.stream_events`); 0 until then.
        began_s: The same of a stream whose first worker broke off: `first_byte_s` is then the last worker's.
        continued: Times that another worker continued its stream (`router.continuing`).
        number: Counts the requests of this process that ended, from 1.
        ended_s, ended_us: Monotonic seconds; log time.
        outcome: `record.outcome_of`, ``client_left`` or the code of the error.
        usage: None if the engine reported none, or the request was not completed.
        detail: Message of the error.
        decode_worker: Empty unless two workers shared it.
        offload: The choice of the prefill's site, by an option; None if there was no choice.
        model_choice: Decision on its model (`router.models`); None for most requests.
    """

    path: bytes
    client: str
    received_s: float
    request_bytes: int
    request_id: bytes = b""
    worker_request_id: bytes = b""
    endpoint: Endpoint | None = None
    tenant: Tenant = ANONYMOUS
    parsed: ParsedRequest | None = None
    attempt: Attempt | None = None
    attempts: int = 0
    wait_s: float = 0.0
    first_byte_s: float = 0.0
    began_s: float = 0.0
    continued: int = 0
    number: int = 0
    ended_s: float = 0.0
    ended_us: int = 0
    outcome: str = ""
    status: int = 0
    usage: Usage | None = None
    detail: str = ""
    decode_worker: str = ""
    offload: object = None
    model_choice: dict[str, str] | None = None

    @property
    def answered_s(self) -> float:
        """Monotonic seconds when the client got its first byte; 0 before."""
        return self.began_s or self.first_byte_s

    @property
    def model(self) -> str:
        """Its model; empty for none."""
        return "" if self.parsed is None else self.parsed.model or ""

    @property
    def prefix_key(self) -> int:
        """64-bit hash of the first block of its prompt; 0 if it was not parsed."""
        return 0 if self.parsed is None else self.parsed.prefix_key


_Packed = msgspec.defstruct(
    "_Packed",
    [
        (field.name, str if field.name == "tenant" else field.type)
        for field in msgspec.structs.fields(RecentDecision)
        if field.name not in ("offload", "model_choice")
    ],
    array_like=True,
    gc=False,
)
"""A decision as it is packed: its first fields, with the name of its tenant."""

_facts = attrgetter(*("tenant.name" if name == "tenant" else name for name in _Packed.__struct_fields__))
_packer = msgspec.msgpack.Encoder()
_unpack = msgspec.msgpack.Decoder(_Packed).decode


def _unpacked(kept: bytes | RecentDecision) -> RecentDecision:
    if not isinstance(kept, bytes):
        return kept
    packed: Any = _unpack(kept)
    decision = RecentDecision(*astuple(packed))
    decision.tenant = Tenant(packed.tenant)
    return decision


class RecentDecisions:
    """The ring of one process. For use from the event loop's thread."""

    def __init__(self, kept_max: int = KEPT_MAX, hashes_bytes_max: int = HASHES_BYTES_MAX) -> None:
        self._ring: deque[bytes | RecentDecision] = deque(maxlen=kept_max)
        self._long: deque[RecentDecision] = deque()
        self._hashes_bytes_max, self._hashes_bytes = hashes_bytes_max, 0
        self._packing = bytearray()
        self.cursor = 0
        """Number of the newest one; 0 before the first."""

    def add(self, decision: RecentDecision) -> None:
        """Number a decision, and keep it in place of the oldest."""
        self.cursor = decision.number = self.cursor + 1
        parsed, attempt = decision.parsed, decision.attempt
        kept: bytes | RecentDecision = decision
        if parsed is not None and (paths := parsed.paths):
            if len(paths) != 1 or len(paths[0]) > SHORT_BYTES_MAX:
                self._keep_hashes(decision)
            elif (
                attempt is not None
                and attempt.sglang is None
                and parsed.choice is None
                and decision.offload is None
            ):
                try:
                    _packer.encode_into(_facts(decision), self._packing)
                    kept = bytes(self._packing)  # to measure: what `encode` returns holds 170 bytes more
                except (TypeError, ValueError, OverflowError):  # numbers of a plug-in
                    kept = decision
        else:
            decision.path = decision.path[:TEXT_CHARS_MAX]  # clients choose the end of some
        self._ring.append(kept)

    def _keep_hashes(self, decision: RecentDecision) -> None:
        """Keep the hashes of a long prompt, or of several, in place of the oldest, as the ring does."""
        size, kept = _hashes_bytes(decision), self._long
        left_out = decision.number - (self._ring.maxlen or 0)
        if size:
            self._hashes_bytes += size
            kept.append(decision)
        while kept and (self._hashes_bytes > self._hashes_bytes_max or kept[0].number <= left_out):
            oldest = kept.popleft()
            self._hashes_bytes -= _hashes_bytes(oldest)
            assert oldest.parsed is not None
            oldest.parsed = msgspec.structs.replace(oldest.parsed, paths=())

    def since(self, cursor: int, limit: int = KEPT_MAX) -> tuple[list[RecentDecision], int]:
        """Return the newest decisions after number ``cursor``, oldest first, and how many were left out."""
        newest, left_out = self.latest(cursor, limit)
        return list(newest)[::-1], left_out

    def latest(self, cursor: int, limit: int = KEPT_MAX) -> tuple[Iterator[RecentDecision], int]:
        """Return the same, the newest first; each takes some 3 us, when it is asked for."""
        count = max(self.cursor - max(cursor, 0), 0)
        taken = min(count, limit, len(self._ring))
        return map(_unpacked, islice(reversed(self._ring), taken)), count - taken

    def newest_of(self, request_id: str) -> RecentDecision | None:
        """Return the newest decision with this id, the client's or the gateway's; None if none is kept."""
        sought = request_id.encode("latin-1", "replace")
        for decision in self._with(sought):
            if sought in (decision.request_id, decision.worker_request_id):
                return decision
        return None

    def stay_s(self, places: Collection[str]) -> float | None:
        """Return the mean seconds from sending to the end of a worker's recent completed requests.

        ``places`` are the ids of its ranks, or its own.
        """
        stays = (
            decision.ended_s - decision.attempt.started_s
            for decision in self._with(*(place.encode() for place in places))
            if decision.attempt is not None
            and decision.attempt.started_s
            and (decision.attempt.worker_id in places or decision.decode_worker in places)
            and decision.outcome == "completed"
        )
        newest = list(islice(stays, STAYS_MAX))
        return sum(newest) / len(newest) if newest else None

    def _with(self, *names: bytes) -> Iterator[RecentDecision]:
        """Yield the decisions that may contain one of some names, the newest first."""
        for kept in reversed(self._ring):
            if not isinstance(kept, bytes) or any(name in kept for name in names):
                yield _unpacked(kept)


def _hashes_bytes(decision: RecentDecision) -> int:
    return 0 if decision.parsed is None else sum(map(len, decision.parsed.paths))
