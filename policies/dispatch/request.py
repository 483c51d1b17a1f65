"""Facts of a request that decisions need, however it was parsed, and a request to decide."""

from typing import Protocol

import msgspec

from policies.dispatch.queue_lanes import lane_by, lane_of
from policies.fleet.pairing import Pairing
from policies.pricing.views import Slots
from policies.state.buckets import ANY_LENGTH, LengthClass
from radix import AttentionProfile


class RequestFacts(Protocol):
    """A request, as decisions see it; a gateway's parsed request has these fields, among others."""

    @property
    def model(self) -> str | None:
        """Model, as the client wrote it; None if there is none."""

    @property
    def paths(self) -> tuple[bytes, ...]:
        """Packed block hashes of each prompt (`radix.chain_bytes`); empty without a prompt."""

    @property
    def prompt_bytes(self) -> int:
        """Canonical bytes of all prompts; 0 for token ids."""

    @property
    def prompt_token_ids(self) -> int:
        """Token ids of all prompts; 0 for text."""

    @property
    def tokenized_bytes(self) -> int:
        """Canonical bytes of the prompts whose token ids were found out; 0 if they were not."""

    @property
    def output_tokens_max(self) -> int | None:
        """The client's limit of output tokens of each answer, None if absent."""

    @property
    def n(self) -> int:
        """Answers per prompt, >= 1."""

    @property
    def key(self) -> int:
        """64-bit hash of all of the prompt."""

    @property
    def prefix_key(self) -> int:
        """64-bit hash of the prompt's first block, or of all of it if it is shorter."""

    @property
    def tenant(self) -> str:
        """Name of the tenant; empty for none."""

    @property
    def computes_all(self) -> bool:
        """True if engines compute the whole prompt, even its cached part."""


class BareRequest(msgspec.Struct, frozen=True, gc=False):
    """The facts alone, for simulations, which parse nothing (see `RequestFacts`)."""

    model: str | None
    paths: tuple[bytes, ...]
    prompt_bytes: int
    key: int
    prefix_key: int
    prompt_token_ids: int = 0
    tokenized_bytes: int = 0
    output_tokens_max: int | None = None
    n: int = 1
    tenant: str = ""
    computes_all: bool = False


class DecisionInput(msgspec.Struct, frozen=True, gc=False):
    """One request to decide, and the workers that may take it (not empty), at a log time.

    Attributes:
        now_s: Monotonic time at which it will have been sent.
        pairing: None if no worker needs a partner.
        home: Slot of the worker that served its session last; -1 for none.
        arrived_us: Log time of its arrival, however often it has been dispatched since; -1: it never waits.
        flow: ``CLASS/TENANT``, the unit of fairness.
        ticket_id: Ticket under which it waits already; empty if it does not.
        turn: Slot of the worker whose room is offered; -1 if the request asks on its own.
        narrowed: True if some workers of its lane may not take it (they failed it, or start slowly).
        again: True if it was dispatched before: promises are not judged again.
        way: Link that its KV would cross, empty for none; None if no side of a link was chosen.
    """

    parsed: RequestFacts
    profile: AttentionProfile
    slots: Slots
    now_us: int
    now_s: float
    length: LengthClass = ANY_LENGTH
    pairing: Pairing | None = None
    home: int = -1
    arrived_us: int = -1
    flow: str = ""
    ticket_id: str = ""
    turn: int = -1
    narrowed: bool = False
    again: bool = False
    way: str | None = None

    @property
    def lane(self) -> str:
        """Name of its lane in the queue."""
        lane = lane_of(self.parsed.model, self.length)
        return lane if self.way is None else lane_by(lane, self.way)

    @property
    def arrives(self) -> bool:
        """True if the request is new: it neither waits nor was dispatched before."""
        return self.arrived_us < 0 or not (self.ticket_id or self.again)
