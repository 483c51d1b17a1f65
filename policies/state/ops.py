"""Operations: the entries of the shared log, as values and as bytes.

One stream entry carries a msgpack array of operations, each an array that starts with its tag; fields are
only added at the end, with a default. Old and new replicas share one log during a roll-out: an unknown tag is
skipped and counted (design section 6), one of `RETIRED_TAGS` skipped uncounted.

    worker:   WorkerPut, WorkerGone
    request:  Placed -> FirstToken -> Finished        (all by the replica that owns the request)
              Placed -> Finished                      (a short answer, or none)
              Waiting -> Placed | Finished            (before that, if no worker had room)
    loads:    LoadVector                              (absorbs its replica's earlier placements)
    cache:    Insert, Trim, Forget, EndGone, EndReach (`radix.ops`)
    replica:  Left                                    (shut down, or its heartbeat expired)
    links:    Shipping -> Shipped | Finished          (the hand-over of a request whose prefill is remote)
    people:   Audited, Expire
    settings: SettingsChanged
    register: every subclass of `Register`            (the newest operation on each subject counts)

In all of them ``at_us`` is log time, and ``replica`` the id of the replica that reports. A register is
declared only here: the log, the fold and the snapshot find it in `REGISTERS`.

In the log a `Placed` has a shorter form, too, and prompts are asked for (tags 17 to 19,
`router.shared.placed_forms`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import GenericAlias, MappingProxyType
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar, Union, cast, get_args

import msgspec

from policies.estimates.costs import SUMS
from policies.estimates.slowdowns import SLOWDOWN_MAX
from radix import (
    KEYS_MAX,
    LABELS_MAX,
    PATHS_MAX,
    WORKERS_MAX,
    Amount,
    ContextTokens,
    Count,
    CountOrUnknown,
    EndGone,
    EndReach,
    Forget,
    Insert,
    KvBytes,
    Labels,
    LogTime,
    Micros,
    Name,
    Owner,
    Path,
    Places,
    Rate,
    Real,
    Seconds,
    Share,
    Text,
    TokenBytes,
    Tokens,
    TokenSeconds,
    TokensOrUnknown,
    Trim,
    Url,
    WholeNumber,
    WorkerId,
)

AnOp = TypeVar("AnOp")

Paths = Annotated[tuple[Path, ...], msgspec.Meta(max_length=PATHS_MAX)]
TimesByName = Annotated[dict[Name, LogTime], msgspec.Meta(max_length=KEYS_MAX)]
Stamps = Annotated[dict[Name, tuple[LogTime, Name]], msgspec.Meta(max_length=KEYS_MAX)]
LABEL_STAMPS_MAX = 4 * LABELS_MAX
"""Labels whose changes are remembered, those that were taken away included."""

LabelStamps = Annotated[dict[Name, tuple[LogTime, Name]], msgspec.Meta(max_length=LABEL_STAMPS_MAX)]
NewValues = Annotated[dict[Name, Text | None], msgspec.Meta(max_length=KEYS_MAX)]
Sums = Annotated[tuple[Real, ...], msgspec.Meta(max_length=SUMS)]
Threshold = Annotated[int, msgspec.Meta(ge=-1, le=1 << 53)]
Slowdown = Annotated[float, msgspec.Meta(ge=1.0 / SLOWDOWN_MAX, le=SLOWDOWN_MAX)]
_OfWorkers = msgspec.Meta(max_length=WORKERS_MAX)
LOAD_BYTES_MAX = 36 * WORKERS_MAX
"""Nine 32-bit numbers for each worker."""

RolesOfWorkers = Annotated[dict[WorkerId, Name], _OfWorkers]
TimesOfWorkers = Annotated[dict[WorkerId, LogTime], _OfWorkers]


class Circuit(StrEnum):
    """State of a worker's circuit (`policies.state.breaker`)."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Register(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A fact on a subject, of which the newest ``(at_us, replica)`` counts (`policies.state.registers`).

    Attributes:
        by: Name of the field with the subject; empty if there is only one subject.
        ends_with_worker: The removal of the worker that is the subject voids older operations.
        compared: Replicas compare its values (`policies.state.digests`). False for one that is published
            again and again anyway.
    """

    by: ClassVar[str] = ""
    ends_with_worker: ClassVar[bool] = False
    compared: ClassVar[bool] = True

    @property
    def at_us(self) -> int:
        """Log time."""
        raise NotImplementedError

    @property
    def replica(self) -> str:
        """Id of the replica that reports."""
        raise NotImplementedError

    @property
    def key(self) -> str:
        """The subject."""
        subject: str = getattr(self, self.by) if self.by else ""
        return subject


class Placed(msgspec.Struct, frozen=True, array_like=True, tag=10, gc=False):
    """A replica chose a worker for a request and is about to send it.

    Repeated with a later time and without paths, it renews a reservation that `Left` may have dropped.

    Attributes:
        request_id: Unique per attempt: a redispatch is a new one.
        service_us: Predicted prefill time on that worker, microseconds.
        uncached_tokens: Prompt tokens the worker must prefill, predicted.
        context_tokens: Prompt plus expected output.
        paths: Packed block hashes of the prompt (of each prompt, for a batch); none if this is no arrival.
        ends: Window and linear states at the end of the paths count (`Insert.end`).
        flow: Flow charged with its prefill (`policies.state.fairness`); empty if no request waited.
        safe_blocks: Cached blocks of the first path, predicted (`policies.dispatch.followers`).
        home_uncached_tokens: For disaggregated prefill, the length compared with the threshold t: the least
            uncached tokens in the home site, or over an abundant link anywhere
            (`OffloadVerdict.judged_tokens`), for the slow loop. -1 otherwise, and in the decode half of a
            pair.
        junction_blocks: For windows or states, blocks of the only path that the worker held, after
            which the prompt leaves its cache (`radix.windows`). 0 for none.
        block_tokens: Tokens in one block of the paths, where they differ from those of token ids: text is cut
            by bytes. 0 where they do not.
        owner: Owner of the blocks (`policies.fleet.quotas`); 0 where they are not counted.
    """

    request_id: Name
    at_us: LogTime
    worker: WorkerId
    replica: Name
    service_us: Micros
    uncached_tokens: Tokens
    context_tokens: Tokens
    paths: Paths = ()
    ends: bool = True
    flow: Name = ""
    safe_blocks: Count = 0
    home_uncached_tokens: TokensOrUnknown = -1
    junction_blocks: Count = 0
    block_tokens: Count = 0
    owner: Owner = 0


class FirstToken(msgspec.Struct, frozen=True, array_like=True, tag=11, gc=False):
    """The prefill of a request is done: its prefill reservation ends, its context stays in flight."""

    request_id: Name
    at_us: LogTime


class Finished(msgspec.Struct, frozen=True, array_like=True, tag=12, gc=False):
    """A request left its worker, however it ended: everything it reserved is released.

    ``prefilled_us`` is the log time of its first token, if no `FirstToken` reported it; else 0.
    """

    request_id: Name
    at_us: LogTime
    prefilled_us: LogTime = 0


class Left(msgspec.Struct, frozen=True, array_like=True, tag=13, gc=False):
    """A replica is gone: drop its requests in flight or waiting at or before ``at_us``."""

    replica: Name
    at_us: LogTime


class LoadVector(msgspec.Struct, frozen=True, array_like=True, tag=35, gc=False):
    """Load that a replica has in flight at a log time, at workers with a row.

    A row includes all that it placed there at or before that time.

    Of each worker the newest row of a replica counts. `Left` voids the vectors at or before its time.

    Attributes:
        workers: Workers with a row, each once.
        numbers: A row for each worker: a little-endian 32-bit number for each of
            `policies.state.load_rows.COLUMNS`; greater ones are told as the greatest.
        full: Workers without a row have nothing of this replica in flight; else nothing changed there since
            its vector before, but by what it placed.
    """

    replica: Name
    at_us: LogTime
    workers: Annotated[tuple[WorkerId, ...], _OfWorkers] = ()
    numbers: Annotated[bytes, msgspec.Meta(max_length=LOAD_BYTES_MAX)] = b""
    full: bool = False


class Waiting(msgspec.Struct, frozen=True, array_like=True, tag=14, gc=False):
    """No worker has room for a request: it waits at its replica, in one order with those of all others.

    Repeated with a later time when its key or its worker changed. A `Placed` or a `Finished` with its id ends
    it, even one that comes before it.

    Attributes:
        arrived_us: Log time at which the request arrived.
        key_us: The least goes first: arrival plus a multiple of the cheapest prefill (`waiting`).
        lane: Workers that may take it: ``MODEL|BUCKET``, each empty if it does not matter.
        worker: The worker it waits for; empty if any of its lane will do.
        flow: ``CLASS/TENANT`` (`policies.state.fairness`).
        service_us: Its cheapest predicted prefill, microseconds, of ``uncached_tokens``.
        context_tokens: Prompt plus expected output.
        link: The link whose room its KV waits for; else empty.
    """

    request_id: Name
    at_us: LogTime
    replica: Name
    arrived_us: LogTime
    key_us: LogTime
    lane: Text
    worker: WorkerId
    flow: Name
    service_us: Micros
    uncached_tokens: Tokens
    context_tokens: Tokens
    link: Text = ""


class Shipping(msgspec.Struct, frozen=True, array_like=True, tag=15, gc=False):
    """The KV of a request will cross from one site to another, and uses a part of the link then.

    Repeated with a later time it is planned again. A `Shipped` or a `Finished` with its id, that of the
    `Placed` on the decode worker, ends it, even one that comes before it.

    Attributes:
        link: ``FROM>TO``, the sites (`policies.state.links`).
        kv_bytes: Bytes that cross, predicted.
        start_us: Log time at which it begins.
        end_us: Log time at which the last byte arrives.
        ready_bytes: Part cached at the prefill worker: it leaves at once, as fast as the link allows.
        ready_us: Duration of that; 0 if unknown.
    """

    request_id: Name
    at_us: LogTime
    replica: Name
    link: Text
    kv_bytes: KvBytes
    start_us: LogTime
    end_us: LogTime
    ready_bytes: KvBytes = 0
    ready_us: LogTime = 0


class Shipped(msgspec.Struct, frozen=True, array_like=True, tag=16, gc=False):
    """The KV of a request has arrived, or never will: its part of the link is free."""

    request_id: Name
    at_us: LogTime


class WorkerPut(msgspec.Struct, frozen=True, array_like=True, tag=20, gc=False):
    """A worker was added or changed. Entries of one worker are merged field by field (`worker_fields`).

    Attributes:
        worker: ``host:port``, with a path if its URL has one.
        url: Base URL, without a trailing slash.
        role: ``plain``, ``prefill`` or ``decode``.
        draining: True while it takes no new requests.
        capacity_tokens: KV capacity; 0 if unknown.
        labels: Free labels (``worker_class`` selects the cost profile).
        drain_us: Log time at which its drain began; 0 if it does not drain, or that is unknown.
        leaving: To be removed when it has drained (`policies.fleet.departures`).
        knows: For older versions, which take the newest entry whole: the replicas whose changes are in it.
        stamps: For each field changed since the worker was added, log time and replica of the change; under
            the empty name those of the addition. Empty if this entry adds it.
        label_stamps: The same for labels, removed ones included.
        ranks: Data-parallel ranks that requests can be sent to (`policies.fleet.ranks`); up to 1 for none.
    """

    worker: WorkerId
    at_us: LogTime
    replica: Name
    url: Url
    role: Name = "plain"
    draining: bool = False
    capacity_tokens: Tokens = 0
    labels: Labels = {}
    drain_us: LogTime = 0
    leaving: bool = False
    knows: TimesByName = {}
    stamps: Stamps = {}
    label_stamps: LabelStamps = {}
    ranks: Places = 0


class WorkerGone(msgspec.Struct, frozen=True, array_like=True, tag=21, gc=False):
    """A worker was removed. Competes with `WorkerPut` on ``(at_us, replica)``."""

    worker: WorkerId
    at_us: LogTime
    replica: Name


class CircuitSet(Register, frozen=True, tag=22):
    """The state of a worker's circuit, for all replicas.

    Attributes:
        replica: Author of the change; of a half-open circuit, the replica that probes.
        until_us: Log time before which nothing may be dispatched, if it is not closed.
        successes: Good probes in a row.
    """

    by = "worker"
    ends_with_worker = True

    worker: WorkerId
    at_us: LogTime
    replica: Name
    state: Circuit
    until_us: LogTime = 0
    successes: Count = 0


class Started(Register, frozen=True, tag=23):
    """Start of the process behind a worker, asked for at ``at_us``.

    ``started_unix_ms`` is by the engine's own clock, and only compared with earlier answers. ``cold``: it is
    another process than the one known before, whose cache from before ``at_us`` is gone.
    """

    by = "worker"

    worker: WorkerId
    at_us: LogTime
    replica: Name
    started_unix_ms: LogTime
    cold: bool = False


class Reported(Register, frozen=True, tag=24):
    """An engine's report of its load, asked for at ``at_us``; -1 (``running_max``: 0) if unknown.

    It includes the requests in flight when the engine was asked, so that a later reader adds dispatches
    since, and subtracts ends since, without knowing their authors.

    Attributes:
        running: Requests in its batch.
        waiting: Requests in its own queue.
        kv_tokens: Tokens of KV that running requests hold.
        running_max: Most requests that it runs at a time.
        inflight_requests: Most requests in flight there at ``at_us`` or shortly before, of all replicas, as
            the asking replica knew.
        inflight_tokens: Their prompts and expected outputs.
    """

    by = "worker"
    ends_with_worker = True
    compared = False

    worker: WorkerId
    at_us: LogTime
    replica: Name
    running: CountOrUnknown = -1
    waiting: CountOrUnknown = -1
    kv_tokens: TokensOrUnknown = -1
    running_max: Count = 0
    inflight_requests: Count = 0
    inflight_tokens: WholeNumber = 0


class LinkMeasured(Register, frozen=True, tag=26):
    """Measured properties of a link, ``FROM>TO``.

    The measuring replica continues from the newest report of any replica, so this averages over all.

    Attributes:
        bytes_per_s: Throughput of all transfers together at ``at_us``; 0 if it never was the limit.
        rtt_s: Round trip; 0 if unknown.
        loss_ratio: Share of the latest transfers that failed, 0 to 1.
    """

    by = "link"

    link: Text
    at_us: LogTime
    replica: Name
    bytes_per_s: Rate
    rtt_s: Seconds = 0.0
    loss_ratio: Share = 0.0


class Fitted(Register, frozen=True, tag=30):
    """The fleet's fit of the service-time model of one worker class (`policies.estimates.costs`).

    All replicas price with it. A replica that learns goes on from the newest one of any replica, so it
    averages over all of them.

    Attributes:
        observations: Prefills of all replicas behind it; 0 if the writer does not report them.
        sums: State that the fit continues from (`ServiceFit.sums`); empty if the writer does not report it.
    """

    by = "worker_class"

    worker_class: Text
    at_us: LogTime
    replica: Name
    a_s: Seconds
    b_s: TokenSeconds
    c0_tokens: ContextTokens
    observations: Count = 0
    sums: Sums = ()


class BytesPerToken(Register, frozen=True, tag=31):
    """The fleet's estimate of prompt bytes per token of one model.

    As with `Fitted`, a replica that learns goes on from the newest one. ``tokens`` prompt tokens are behind
    it; 0 if the writer does not report them.
    """

    by = "model"

    model: Name
    at_us: LogTime
    replica: Name
    bytes_per_token: TokenBytes
    tokens: WholeNumber = 0


class EarlyRatio(Register, frozen=True, tag=32):
    """Mean observed over predicted time to first token behind a backlog, late requests counted as 1.

    All replicas use the newest, and so see room in the same places (`policies.fleet.admission`).
    ``observations`` requests of all replicas are behind it; 0 if the writer does not report them.
    """

    by = "worker_class"

    worker_class: Text
    at_us: LogTime
    replica: Name
    ratio: Share
    observations: Count = 0


class CapacityLearned(Register, frozen=True, tag=34):
    """Tokens, above 0, that a worker really keeps for reuse (`policies.estimates.capacities`)."""

    by = "worker"

    worker: WorkerId
    at_us: LogTime
    replica: Name
    tokens: Tokens


class SlowdownLearned(Register, frozen=True, tag=36):
    """Time that a worker takes for a prefill over that of its class (`policies.estimates.slowdowns`)."""

    by = "worker"
    ends_with_worker = True

    worker: WorkerId
    at_us: LogTime
    replica: Name
    slowdown: Slowdown


class FetchTime(Register, frozen=True, tag=37):
    """Time of fetches from a pool, relative to its settings (`policies.estimates.fetch_times`).

    ``pool`` is its name among workers (`policies.fleet.cache_pools.HOLDER`).
    """

    by = "pool"

    pool: WorkerId
    at_us: LogTime
    replica: Name
    factor: Amount


class HostMemory(Register, frozen=True, tag=29):
    """Tokens that a worker can reuse from its host memory, as its engine says (`estimates.host_memory`).

    Those on its device are included; 0: it has none.
    """

    by = "worker"
    ends_with_worker = True

    worker: WorkerId
    at_us: LogTime
    replica: Name
    tokens: Tokens


class DecodeFitted(Register, frozen=True, tag=33):
    """Newest fit of decode on one worker class (`policies.estimates.decodes`).

    For replicas without observations of their own: the leader of the slow loop may have no traffic. Seconds
    per output token are ``base_s + slope_s · batch``; ``requests`` is the mean batch observed, ``decode_s``
    the mean time from first to last token.
    """

    by = "worker_class"

    worker_class: Text
    at_us: LogTime
    replica: Name
    base_s: Seconds
    slope_s: Seconds
    requests: Amount
    decode_s: Seconds


class OffloadPlan(Register, frozen=True, tag=27):
    """Requests to prefill in another site, and the roles of workers in this one.

    The answer of the slow loop (`policies.disaggregation.role_plan`).

    Attributes:
        threshold_tokens: Uncached tokens above which prefill is remote; -1 if unknown yet.
        prefill: Number of workers at home that should prefill; 0 if unknown yet.
        decode: Number that should decode.
        roles: New role of each convertible worker that should change.
        gain_ratio: Gain in throughput, as a share of the present one.
        requests_per_s: Most requests that the model predicts to be served as it is.
        remote_ratio: Share of the requests above the threshold.
        egress_bytes_per_s: Bytes they send across links then.
        changed_us: Log time at which roles last began or ended to change; 0 if never.
        turned: New role of the workers that last changed.
        stuck_us: By worker, log time at which its change was last given up since it did not get free.
    """

    at_us: LogTime
    replica: Name
    threshold_tokens: Threshold = -1
    prefill: Count = 0
    decode: Count = 0
    roles: RolesOfWorkers = {}
    gain_ratio: Real = 0.0
    reason: Text = ""
    requests_per_s: Amount = 0.0
    remote_ratio: Share = 0.0
    egress_bytes_per_s: Rate = 0.0
    changed_us: LogTime = 0
    turned: RolesOfWorkers = {}
    stuck_us: TimesOfWorkers = {}


class SettingsChanged(msgspec.Struct, frozen=True, array_like=True, tag=40, gc=False):
    """A change of settings for all replicas (see `overrides`), valid and counting as a whole.

    Attributes:
        change_id: Unique in the log.
        values: By dotted key the new value as JSON text; None: each replica's value at its start.
        actor: Name of the token.
        comment: The operator's reason.
        undoes: Id of the change before which these values counted; empty if it is no rollback.
    """

    change_id: Name
    at_us: LogTime
    replica: Name
    values: NewValues
    actor: Name = ""
    comment: Text = ""
    undoes: Name = ""


class Audited(msgspec.Struct, frozen=True, array_like=True, tag=41, gc=False, order=True):
    """A change through the admin API. The newest are kept (`policies.state.newest`).

    Attributes:
        actor: Name of the token.
        client: Its address.
        action: Method and route, such as ``PUT /workers/{worker_id}``.
        target: A worker's id, a ticket, a setting; empty if the action is enough.
        status: HTTP status of the answer.
        detail: A JSON object.
        unix_us: Wall-clock time, for people.
    """

    at_us: LogTime
    replica: Name
    request_id: Name
    actor: Name = ""
    client: Name = ""
    action: Text = ""
    target: Text = ""
    status: Count = 0
    detail: Text = "{}"
    unix_us: LogTime = 0


class Expire(msgspec.Struct, frozen=True, array_like=True, tag=42, gc=False, order=True):
    """An operator's order to end the wait of a request; its replica obeys. The newest are kept."""

    at_us: LogTime
    replica: Name
    request_id: Name


class Tracked(Register, frozen=True, tag=43):
    """Source of a worker's cache contents (`policies.state.slot_registers`).

    ``exact`` is true if its engine's events describe it, followed without a gap since it started or was
    cleared.
    """

    by = "worker"
    ends_with_worker = True

    worker: WorkerId
    at_us: LogTime
    replica: Name
    exact: bool


Op = (
    Placed
    | FirstToken
    | Finished
    | Left
    | LoadVector
    | Waiting
    | Shipping
    | Shipped
    | WorkerPut
    | WorkerGone
    | SettingsChanged
    | Audited
    | Expire
    | Register
    | Insert
    | Trim
    | Forget
    | EndGone
    | EndReach
)

REGISTERS: tuple[type[Register], ...] = tuple(Register.__subclasses__())
"""All registers, in the order of their declarations."""

OP_KINDS: tuple[type[Op], ...] = (*(kind for kind in get_args(Op) if kind is not Register), *REGISTERS)
"""All kinds of operations."""

_encoder = msgspec.msgpack.Encoder()

ENTRY_BYTES_MAX = 1 << 26
ENTRY_OPS_MAX = 1 << 16
"""A longer log entry is skipped whole: reading it would hold the event loop for a second."""

_few = msgspec.Meta(max_length=ENTRY_OPS_MAX)
_raw_decoder: msgspec.msgpack.Decoder[list[msgspec.Raw]] = msgspec.msgpack.Decoder(
    Annotated[list[msgspec.Raw], _few]
)


@dataclass(frozen=True, slots=True)
class OpLog:
    """The log as decisions see it; the gateway's own port adds the other replicas (`router.shared.LogPort`).

    Attributes:
        replica: Id of this replica.
        publish: Applies an operation at once and sends it to the other replicas.
        now_us: Log time.
    """

    replica: str
    publish: Callable[[Op], None]
    now_us: Callable[[], int]


class OpRefused(ValueError):
    """An operation beyond its bounds, which no replica would accept; nothing was published or changed."""


def encode_op(op: Op) -> bytes:
    """Encode one operation, an item of the array of `encode_ops`.

    It is decoded once, since only that checks its bounds (0.2 to 0.6 us).

    Raises:
        OpRefused: It has a value that exceeds its bounds, or cannot be encoded.
    """
    try:
        body = _encoder.encode(op)
        _ops.decode_one(body)
    except (ValueError, TypeError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise OpRefused(f"{type(op).__name__}: {error}") from error
    return body


def encode_ops(ops: Sequence[Op]) -> bytes:
    """Encode operations as one log entry."""
    return _encoder.encode(ops)


def encode_sound_ops(ops: Sequence[Op]) -> tuple[bytes, int]:
    """Encode the valid ones of some operations as one log entry; return it and the number left out."""
    try:
        return _encoder.encode(ops), 0
    except (ValueError, TypeError, OverflowError, RecursionError, msgspec.MsgspecError):
        pass
    sound: list[Op] = []
    for op in ops:
        try:
            encode_op(op)
        except OpRefused:
            continue
        sound.append(op)
    return _encoder.encode(sound), len(ops) - len(sound)


class Decoded(NamedTuple, Generic[AnOp]):
    """Content of one log entry.

    Attributes:
        ops: The known operations with values within bounds, in order.
        unknown: Operations of a kind that this version does not know.
        invalid: Malformed operations, or with a value beyond its bounds; an entry that is no msgpack array
            counts as one.
    """

    ops: list[AnOp]
    unknown: int = 0
    invalid: int = 0


class OpDecoder(Generic[AnOp]):
    """Decodes entries whose operations are of some kinds.

    Args:
        kinds: The kinds.
    """

    def __init__(self, kinds: tuple[type[AnOp], ...]) -> None:
        any_kind: Any = Union[kinds]  # noqa: UP007
        one: msgspec.msgpack.Decoder[AnOp] = msgspec.msgpack.Decoder(any_kind)
        self.decode_one = one.decode
        self._entry: msgspec.msgpack.Decoder[list[AnOp]] = msgspec.msgpack.Decoder(
            Annotated[GenericAlias(list, (any_kind,)), _few]
        )
        self._tags = frozenset(map(tag_of, kinds))

    def decode(self, data: bytes) -> Decoded[AnOp]:
        """Decode one log entry; invalid bytes raise nothing."""
        if len(data) > ENTRY_BYTES_MAX:
            return Decoded([], invalid=1)
        try:
            return Decoded(self._entry.decode(data))
        except (ValueError, RecursionError, MemoryError):
            pass
        ops: list[AnOp] = []
        unknown = invalid = 0
        try:
            raws = _raw_decoder.decode(data)
        except (ValueError, RecursionError, MemoryError):
            return Decoded([], invalid=1)
        for raw in raws:
            try:
                ops.append(self.decode_one(raw))
            except (ValueError, RecursionError):
                tag = _tag_of(raw)
                if tag is None or tag in self._tags:
                    invalid += 1
                elif tag not in RETIRED_TAGS:
                    unknown += 1
        return Decoded(ops, unknown, invalid)


def tag_of(kind: type[Any]) -> int:
    """Return the tag that stands for a kind of operation in the log."""
    tag = kind.__struct_config__.tag
    assert isinstance(tag, int)
    return tag


RETIRED_TAGS = frozenset((25,))
"""Tags of older versions, never given to another kind: 25 planned length buckets (decision 0046)."""


class Timed(Protocol):
    """An operation of the log that has a time."""

    @property
    def at_us(self) -> int:
        """Return its log time."""


_ENDS_USE = frozenset((Trim, Forget, EndGone))


def said_us(op: Op | Timed) -> int:
    """Return the log time at which an operation was said, or up to which it counts."""
    if type(op) in _ENDS_USE:
        return cast("Trim | Forget | EndGone", op).before_us
    return cast("Timed", op).at_us


KIND_NAMES: Mapping[int, str] = MappingProxyType({tag_of(kind): kind.__name__ for kind in OP_KINDS})
"""The name of each kind by its tag."""

_tag_decoder = msgspec.msgpack.Decoder(Count)


def _tag_of(raw: msgspec.Raw) -> int | None:
    try:
        items = _raw_decoder.decode(raw)
        return _tag_decoder.decode(items[0]) if items else None
    except (ValueError, RecursionError):
        return None


_ops: OpDecoder[Op] = OpDecoder(OP_KINDS)


def decode_ops(data: bytes) -> Decoded[Op]:
    """Decode operations that were encoded as one log entry; invalid bytes raise nothing."""
    return _ops.decode(data)
