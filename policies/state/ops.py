"""What replicas tell each other: the entries of the shared log, as values and as bytes.

One stream entry carries a msgpack array of operations. Each operation is an array that
starts with its tag; fields are only ever added at the end, with a default. A tag that
this version does not know is skipped and counted (design section 6), so old and new
replicas share one log during a roll-out. A tag that no version writes any more is passed over
without being counted, and never given to another kind (`RETIRED_TAGS`).

    worker:   WorkerPut, WorkerGone
    request:  Placed -> FirstToken -> Finished        (all by the replica that owns the request)
              Placed -> Finished                      (a short answer, or none)
              Waiting -> Placed | Finished            (before that, if no worker had room)
    cache:    Insert, Trim, Forget, EndGone           (`radix.ops`)
    replica:  Left                                    (shut down, or its heartbeat expired)
    links:    Shipping -> Shipped | Finished          (the hand-over of a request whose prefill is remote)
    people:   Audited, Expire
    settings: SettingsChanged
    register: every subclass of `Register`            (of each subject the newest word counts)

In the log a `Placed` has a shorter form, too, and prompts are asked for (tags 17 to 19,
`policies.state.placed_forms`).

A register is declared here and nowhere else: the log, the fold and the snapshot find it in `REGISTERS`.
"""

from collections.abc import Sequence
from enum import StrEnum
from types import GenericAlias
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, TypeVar, Union, get_args

import msgspec

from radix import (
    KEYS_MAX,
    PATHS_MAX,
    WORKERS_MAX,
    Amount,
    ContextTokens,
    Count,
    CountOrUnknown,
    EndGone,
    Forget,
    Insert,
    KvBytes,
    Labels,
    LogTime,
    Micros,
    Name,
    Path,
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
NewValues = Annotated[dict[Name, Text | None], msgspec.Meta(max_length=KEYS_MAX)]
Threshold = Annotated[int, msgspec.Meta(ge=-1, le=1 << 53)]
_OfWorkers = msgspec.Meta(max_length=WORKERS_MAX)
RolesOfWorkers = Annotated[dict[WorkerId, Name], _OfWorkers]
TimesOfWorkers = Annotated[dict[WorkerId, LogTime], _OfWorkers]


class Circuit(StrEnum):
    """State of a worker's circuit (`policies.state.breaker`)."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Register(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A word on a subject; of each the newest ``(at_us, replica)`` counts (`policies.state.registers`).

    Attributes:
        by: Name of the field with the subject; empty if there is only one subject.
        ends_with_worker: Whether the removal of the worker that is its subject ends what was said before.
    """

    by: ClassVar[str] = ""
    ends_with_worker: ClassVar[bool] = False

    @property
    def at_us(self) -> int:
        """Log time."""
        raise NotImplementedError

    @property
    def replica(self) -> str:
        """Replica id of the writer."""
        raise NotImplementedError

    @property
    def key(self) -> str:
        """The subject."""
        subject: str = getattr(self, self.by) if self.by else ""
        return subject


class Placed(msgspec.Struct, frozen=True, array_like=True, tag=10, gc=False):
    """A replica chose a worker for a request and is about to send it.

    Said again with a later time and without paths, it renews a reservation that `Left` may have dropped.

    Attributes:
        request_id: Unique per attempt: a redispatch is a new one.
        at_us: Log time.
        worker: Worker id.
        replica: Replica id of the owner.
        service_us: Predicted prefill time on that worker, microseconds.
        uncached_tokens: Prompt tokens the worker must prefill, predicted.
        context_tokens: Prompt plus expected output, tokens.
        paths: Packed block hashes of the prompt (of each prompt, for a batch); none if this is no arrival.
        ends: Whether window and linear states at the end of the paths count (`Insert.end`).
        flow: Who is charged with its prefill (`policies.state.fairness`): ``CLASS/TENANT``. Empty if nobody
            waited: what nobody else wanted costs nothing.
        safe_blocks: Blocks of the first path that the worker need not prefill, predicted
            (`policies.dispatch.followers`).
        home_uncached_tokens: Where prefill and decode are apart, what t is compared with: the least that
            would be left to prefill in the home site, or over an abundant link anywhere
            (`policies.disaggregation.offload.OffloadVerdict.judged_tokens`). That is what the slow loop
            counts (`policies.disaggregation.role_plan`). -1 where they are not apart, and in the decode half
            of a pair.
        junction_blocks: Where windows or states count: blocks of the only path that the worker held. There
            the prompt leaves what is known, and the engine keeps what a later one needs to go on
            (`radix.windows`). 0 for none.
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


class FirstToken(msgspec.Struct, frozen=True, array_like=True, tag=11, gc=False):
    """The prefill of a request is done: its prefill reservation ends, its context stays in flight."""

    request_id: Name
    at_us: LogTime


class Finished(msgspec.Struct, frozen=True, array_like=True, tag=12, gc=False):
    """A request left its worker, however it ended: everything it reserved is released.

    Attributes:
        request_id: Of its `Placed`.
        at_us: Log time.
        prefilled_us: Log time of its first token, if no `FirstToken` said it: the same as one at that time,
            and then this. 0 if it was said, or if there was none.
    """

    request_id: Name
    at_us: LogTime
    prefilled_us: LogTime = 0


class Left(msgspec.Struct, frozen=True, array_like=True, tag=13, gc=False):
    """A replica is gone: drop what it had in flight or waiting that was said at or before ``at_us``."""

    replica: Name
    at_us: LogTime


class Waiting(msgspec.Struct, frozen=True, array_like=True, tag=14, gc=False):
    """No worker has room for a request: it waits at its replica, in one order with those of all others.

    Said again with a later time when its key changed, or what it waits for. A `Placed` or a `Finished` with
    its id ends it, even one that comes before it.

    Attributes:
        request_id: Of the `Placed` that will end it.
        at_us: Log time at which this was said.
        replica: Replica id of the owner.
        arrived_us: Log time at which the request arrived.
        key_us: The least goes first: arrival plus a multiple of the cheapest prefill (`waiting`).
        lane: Which workers may take it: ``MODEL|BUCKET``, each empty if it does not matter.
        worker: The worker it waits for; empty if any of its lane will do.
        flow: Who waits: ``CLASS/TENANT`` (`policies.state.fairness`).
        service_us: Its cheapest predicted prefill time, microseconds.
        uncached_tokens: Prompt tokens to prefill then.
        context_tokens: Prompt plus expected output, tokens.
        link: The link that has no room for its KV, if that is what it lacks; else empty.
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
    """The KV of a request will be on its way from one site to another, and uses a part of the link then.

    Said again with a later time it is planned anew. A `Shipped` or a `Finished` with its id ends it, even
    one that comes before it.

    Attributes:
        request_id: Of the `Placed` on the decode worker.
        at_us: Log time at which this was said.
        replica: Replica id of the owner.
        link: ``FROM>TO``, the sites (`policies.state.links`).
        kv_bytes: What crosses, predicted.
        start_us: Log time at which it begins.
        end_us: Log time at which the last byte arrives.
        ready_bytes: What of it the prefill worker has cached: it leaves at once, as fast as the link lets it.
        ready_us: How long that takes; 0 if nobody knows.
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
    """A worker was added or changed. The newest ``(at_us, replica)`` wins whole.

    Attributes:
        worker: Worker id (``host:port``, see `router.fleet`).
        at_us: Log time of the change.
        replica: Who changed it.
        url: Base URL, without a trailing slash.
        role: ``plain``, ``prefill`` or ``decode``.
        draining: True while it takes no new requests.
        capacity_tokens: KV capacity; 0 if unknown.
        labels: Free labels (``worker_class`` selects the cost profile).
        drain_us: Log time at which somebody began to drain it; 0 if it does not drain, or nobody said.
        leaving: It is to be removed when it has drained (`policies.fleet.departures`).
        knows: Which changes by whom are in it: replica to log time, the newest only; under the empty name,
            since when there is such a worker. Empty if it replaces whatever there is.
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


class WorkerGone(msgspec.Struct, frozen=True, array_like=True, tag=21, gc=False):
    """A worker was removed. Competes with `WorkerPut` on ``(at_us, replica)``."""

    worker: WorkerId
    at_us: LogTime
    replica: Name


class CircuitSet(Register, frozen=True, tag=22):
    """The state of a worker's circuit, for all replicas.

    Attributes:
        worker: Worker id.
        at_us: Log time of the change.
        replica: Who changed it; of a half-open circuit, who probes.
        state: Where it is now.
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
    """When the process behind a worker started.

    Attributes:
        worker: Worker id.
        at_us: Log time at which it was asked.
        replica: Who asked.
        started_unix_ms: What it said, by its own clock: only compared with what it said before.
        cold: It is another process than the one known before: what was used before ``at_us`` is gone.
    """

    by = "worker"

    worker: WorkerId
    at_us: LogTime
    replica: Name
    started_unix_ms: LogTime
    cold: bool = False


class Reported(Register, frozen=True, tag=24):
    """What a worker's engine said of its load.

    What was in flight there when it was asked comes along, so that whoever reads this later adds what was
    dispatched since, and takes away what ended since, without knowing who did when.

    Attributes:
        worker: Worker id.
        at_us: Log time at which it was asked.
        replica: Who asked.
        running: Requests in its batch; -1 if it does not say.
        waiting: Requests in its own queue; -1 if it does not say.
        kv_tokens: Tokens of KV that running requests hold; -1 if it does not say.
        running_max: Most requests that it runs at a time; 0 if it does not say.
        inflight_requests: The most that were in flight there at ``at_us`` or shortly before, of all
            replicas, as the asker knew.
        inflight_tokens: The same of their prompts and expected outputs.
    """

    by = "worker"
    ends_with_worker = True

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
    """How a link is, by all that was seen of it so far.

    Who measures goes on from what was said last, whoever said it, so this averages over all replicas.

    Attributes:
        link: ``FROM>TO``, the sites.
        at_us: Log time.
        replica: Who measured.
        bytes_per_s: What all transfers together get through at ``at_us``; 0 if that never was the limit.
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
    """A replica's newest fit of the service-time model of one worker class (`policies.estimates.costs`).

    All replicas price with it.
    """

    by = "worker_class"

    worker_class: Text
    at_us: LogTime
    replica: Name
    a_s: Seconds
    b_s: TokenSeconds
    c0_tokens: ContextTokens


class BytesPerToken(Register, frozen=True, tag=31):
    """A replica's newest estimate of prompt bytes per token of one model."""

    by = "model"

    model: Name
    at_us: LogTime
    replica: Name
    bytes_per_token: TokenBytes


class EarlyRatio(Register, frozen=True, tag=32):
    """How much of the predicted time the queues of a worker class really take (`policies.fleet.admission`).

    All replicas use the newest, and so see room in the same places.

    Attributes:
        worker_class: Whose queues.
        at_us: Log time.
        replica: Who observed it.
        ratio: Mean of the observed over the predicted time to first token behind a backlog, each counted as 1
            if it was late.
    """

    by = "worker_class"

    worker_class: Text
    at_us: LogTime
    replica: Name
    ratio: Share


class CapacityLearned(Register, frozen=True, tag=34):
    """How many tokens a worker really keeps for reuse (`policies.estimates.capacities`).

    Attributes:
        worker: Worker id.
        at_us: Log time.
        replica: Who learned it.
        tokens: Its capacity, above 0.
    """

    by = "worker"

    worker: WorkerId
    at_us: LogTime
    replica: Name
    tokens: Tokens


class DecodeFitted(Register, frozen=True, tag=33):
    """A replica's newest fit of decode on one worker class (`policies.estimates.decodes`).

    For those who have learned nothing themselves: who leads the slow loop may have no traffic.

    Attributes:
        worker_class: Of which workers.
        at_us: Log time.
        replica: Who learned it.
        base_s: Seconds per output token of a batch of none.
        slope_s: And for each request in it.
        requests: In the batches that were seen, on average.
        decode_s: Mean time from first to last token.
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
    """Which requests should be prefilled in another site, and who should prefill and decode in this one.

    The answer of the slow loop (`policies.disaggregation.role_plan`).

    Attributes:
        at_us: Log time.
        replica: Who planned.
        threshold_tokens: Uncached tokens above which prefill is remote; -1 if nothing is known yet.
        prefill: How many workers at home should prefill; 0 if nothing is known yet.
        decode: How many should decode.
        roles: Of each convertible worker that should have another role than now, which.
        gain_ratio: By how much more that would serve, as a share of what is served now.
        reason: Why, in a sentence.
        requests_per_s: What the model says is served at most as it is.
        remote_ratio: Share of the requests that are above the threshold.
        egress_bytes_per_s: What they send across links then.
        changed_us: Log time at which roles last began to change, or ended to; 0 if never.
        turned: Workers whose role last changed: into which.
        stuck_us: Log time at which a worker was last given up that did not get free.
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
    """Somebody changed settings for all replicas (see `overrides`). Of each key the newest word counts.

    One operation for all that changes together: it is right as a whole, and counts as a whole.

    Attributes:
        change_id: Unique in the log.
        at_us: Log time.
        replica: Who was asked.
        values: By dotted key the new value as JSON text; None: what each replica was started with.
        actor: Who asked: the name of a token.
        comment: Why, in that person's words.
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
    """Somebody changed something through the admin API. The newest are kept (`policies.state.newest`).

    Attributes:
        at_us: Log time.
        replica: Who was asked.
        request_id: Of the request.
        actor: Name of the token it came with.
        client: Address it came from.
        action: Method and route, such as ``PUT /workers/{worker_id}``.
        target: What was changed: a worker's id, a ticket, a setting; empty if the action says it all.
        status: HTTP status of the answer.
        detail: What exactly, as a JSON object.
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
    """Somebody wants a request to wait no more. The newest are kept; who holds the request ends it.

    Attributes:
        at_us: Log time.
        replica: Who was asked.
        request_id: As in `Waiting`.
    """

    at_us: LogTime
    replica: Name
    request_id: Name


class Tracked(Register, frozen=True, tag=43):
    """By what a worker's cache is known (`policies.state.evidence`).

    Attributes:
        worker: Worker id.
        at_us: Log time.
        replica: Who follows its engine's events, or gave it up.
        exact: Whether its events describe it, followed without a gap since it started or was cleared.
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


class OpRefused(ValueError):
    """An operation that no replica would accept, by its bounds: nothing was published, nothing changed."""


def encode_op(op: Op) -> bytes:
    """Encode one operation: an item of the array that `encode_ops` makes.

    It is read back as the other replicas will read it, since only that checks its bounds (0.2 to 0.6 us).

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
    """Encode those of some operations that can be, as one log entry.

    Returns:
        The entry, and how many operations were left out.
    """
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
    """What one log entry says.

    Attributes:
        ops: The operations that this version understands and whose values are within bounds, in order.
        unknown: Operations of a kind that this version does not know.
        invalid: Operations that are none, or have a value beyond its bounds; an entry that is not a msgpack
            array at all counts as one.
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
        self._tags = frozenset(_tag_of_kind(kind) for kind in kinds)

    def decode(self, data: bytes) -> Decoded[AnOp]:
        """Decode one log entry; whatever its bytes are, nothing is raised."""
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


RETIRED_TAGS = frozenset((25,))
"""Kinds that older versions wrote: 25 was the plan of automatic length buckets (decision 0046)."""

_tag_decoder = msgspec.msgpack.Decoder(Count)


def _tag_of_kind(kind: type[Any]) -> int:
    tag: int = kind.__struct_config__.tag
    return tag


def _tag_of(raw: msgspec.Raw) -> int | None:
    """The tag of an operation; None if it is not well formed."""
    try:
        items = _raw_decoder.decode(raw)
        return _tag_decoder.decode(items[0]) if items else None
    except (ValueError, RecursionError):
        return None


_ops: OpDecoder[Op] = OpDecoder(OP_KINDS)


def decode_ops(data: bytes) -> Decoded[Op]:
    """Decode operations that were encoded as one log entry; whatever the bytes are, nothing is raised."""
    return _ops.decode(data)
