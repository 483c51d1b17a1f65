"""The fleet's state: a fold over the shared log (design law 2).

Owns the workers, their caches (`radix.PrefixTree`), loads (`policies.state.loads`) and learned facts.
Replicas that saw the same operations decide the same: operations commute and repeat harmlessly.

    WorkerPut, WorkerGone   newest (time, replica) wins; a removal also forgets the worker's cache
    Placed                  reserves load, and inserts the prompt: a burst of requests with one
                            prefix must meet on one worker, not after the first has been prefilled
    FirstToken, Finished, Left   release
    LoadVector              newest of each replica counts for each worker (`policies.state.load_rows`)
    Waiting                 newest counts, unless the request was placed or ended (`policies.state.waiting`)
    Shipping, Shipped       newest counts, unless it arrived or the request ended (`policies.state.links`)
    Insert, Trim, Forget, EndGone, EndReach   correct the worker's cache contents
    Register                newest (time, replica) wins; of some, unless the worker was removed since
    Started                 the same; one of a new process forgets the worker's cache
    Audited, Expire         the newest are kept
    SettingsChanged         of each key the newest counts (`policies.state.overrides`)

A worker is a row (*slot*) in every column. Slots are local to the process; the log and the snapshot name
workers by id. `policies.fleet.columns` derives the columns of policies. Nothing here reads a clock: log time
(microseconds) is an argument.
"""

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import numpy as np
from msgspec.structs import replace as replaced

from policies.estimates.costs import PROFILES, Floats, ServiceModel
from policies.estimates.decodes import DecodeFit
from policies.estimates.fetch_times import bounded
from policies.estimates.host_memory import HOST_LABEL, HOST_TOKEN_S
from policies.estimates.kv_bytes import UNKNOWN_KV, KvBytes
from policies.estimates.length_histogram import LengthHistogram
from policies.estimates.slowdowns import KEPT_US
from policies.fleet.cache_pools import ANY_POOL, HOLDER, POOL_LABEL, CachePool, PoolMembers, PoolWrites
from policies.fleet.columns import Columns
from policies.fleet.hot_prefixes import HotPrefixes
from policies.fleet.pairing import SITE_LABEL
from policies.fleet.quotas import Quotas, ShareOf, no_shares
from policies.fleet.ranks import place_of, rank_id, rank_of
from policies.fleet.roles import DECODE
from policies.pricing.views import Candidates, Slots, Splitting
from policies.state.block_size import BlockSize
from policies.state.bucket_members import BucketMembers
from policies.state.buckets import ANY_BUCKET, BUCKET_LABEL, LengthBuckets
from policies.state.digests import Digest, Word, digest_of
from policies.state.fairness import Fairness, equal_weights
from policies.state.links import LinkRules, Links
from policies.state.load_reports import LoadReports
from policies.state.loads import Loads
from policies.state.newest import Newest
from policies.state.ops import (
    Audited,
    BytesPerToken,
    CapacityLearned,
    Circuit,
    CircuitSet,
    DecodeFitted,
    EarlyRatio,
    Expire,
    FetchTime,
    Finished,
    FirstToken,
    Fitted,
    HostMemory,
    Left,
    LoadVector,
    OffloadPlan,
    Op,
    Placed,
    Register,
    SettingsChanged,
    Shipped,
    Shipping,
    SlowdownLearned,
    Started,
    Tracked,
    Waiting,
    WorkerGone,
    WorkerPut,
    tag_of,
)
from policies.state.overrides import Overrides, version_of
from policies.state.queue_view import QueueView
from policies.state.registers import AllRegisters
from policies.state.slot_registers import Circuits, Evidence, Reports
from policies.state.snapshot import SNAPSHOT_VERSION, merged, written
from policies.state.waiting import Tickets
from policies.state.waiting_lines import Ticket
from policies.state.worker_fields import changed, generation_of
from policies.state.worker_fields import merged as merged_entry
from radix import (
    HASH_BYTES,
    TOKENS_MAX,
    WHOLE_MAX,
    WORKERS_MAX,
    AttentionProfile,
    Forget,
    Match,
    PrefixTree,
    TreeOp,
    apply,
    check_path,
    finished,
    is_base_url,
    parsed_whole,
)

GONE_MAX = 1000
"""Removals remembered after the worker's row was freed; beyond it the oldest are forgotten."""

ROLE_CHANGES_KEPT = 20

AUDIT_KEPT = 1000
EXPIRES_KEPT = 1000
"""Actions of operators that are kept, for the audit; orders to end a wait, until they are obeyed."""

LOADS_MAX = 16
"""Workers whose loading from host memory is computed for one request: 2 us each."""

PLACED_PATHS_MAX = 256
"""Placed prompts remembered until they are read: some tenths of a second in overload."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker as the log describes it (`WorkerPut`).

    Attributes:
        slot: Its row in the columns of this process.
        version: ``(log time, replica, removed)`` of the newest change.
        gone: True after removal, until nothing of it is in flight any more.
        gone_us: Log time of its last removal; 0 if it never was removed.
        site: Its label ``site``, else `FleetRules.site`.
        entry: Its entry in the log; None if only operations on it were seen so far, or it is gone.
        ranks: Data-parallel ranks that requests can be sent to; up to 1 for none.
        rank: The rank that this row stands for; -1 for a whole worker.
        base: The worker of that rank; empty for a whole worker.
    """

    worker_id: str
    slot: int
    url: str = ""
    role: str = "plain"
    draining: bool = False
    capacity_tokens: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    version: tuple[int, str, bool] = (0, "", False)
    gone: bool = False
    gone_us: int = 0
    site: str = ""
    drain_us: int = 0
    leaving: bool = False
    entry: WorkerPut | None = None
    ranks: int = 0
    rank: int = -1
    base: str = ""

    @property
    def is_parted(self) -> bool:
        """True for a worker whose ranks take its requests."""
        return self.ranks > 1 and self.rank < 0

    @property
    def worker_class(self) -> str:
        """Name of its cost profile."""
        return self.labels.get("worker_class", "default")

    def changed(
        self, at_us: int, replica: str, labels: Mapping[str, str] | None = None, **fields: Any
    ) -> WorkerPut:
        """Return the operation that changes this worker; others may change other fields at the same time.

        Args:
            at_us: Log time; a later one is taken if the worker was changed since.
            replica: Id of this replica.
            labels: All labels that it is to have; None leaves them.
            fields: New values of some of `policies.state.worker_fields.FIELDS`, and of ``drain_us``.
        """
        assert self.entry is not None
        return changed(self.entry, max(at_us, self.version[0] + 1), replica, fields, labels)


@dataclass(frozen=True, slots=True)
class FleetRules:
    """Settings of the fold.

    Attributes:
        capacity_tokens: KV capacity assumed for a worker that does not report one; 0 means unbounded.
        blocks_max: Bound on distinct blocks in the tree.
        congestion_max_per_s: Upper bound of kappa.
        lifetime_s_max: A request in flight or waiting for longer is released.
        memory_s: Memory of ended requests and removed workers.
        default_model: Service model of a worker class without a fit or a profile.
        pools: Caches that workers share, by the name in their label ``cache_pool``; ``*`` without one.
        buckets: None: any worker takes any length.
        weight_of: Weight of a class or flow (`policies.state.fairness.Fairness`).
        quantum_s: Allowed lead of a waiting flow over another.
        site: Site of workers without a label ``site``.
        links: By name (`policies.state.links`); without rules a link may not be used.
        kv_bytes: KV size of each model; ``*`` for all others.
        cache_share_of: Share of KV space of each tenant (`policies.fleet.quotas`).
        copy_horizon_s: Expected use of a copy of a hot prefix (`policies.fleet.hot_prefixes`); 0: no copies.
    """

    block_tokens: int = 256
    capacity_tokens: int = 0
    blocks_max: int = 8_000_000
    congestion_max_per_s: float = 50.0
    lifetime_s_max: float = 7200.0
    memory_s: float = 30.0
    default_model: ServiceModel = PROFILES["default"]
    pools: Mapping[str, CachePool] = field(default_factory=dict)
    buckets: LengthBuckets | None = None
    weight_of: Callable[[str], float] = equal_weights
    quantum_s: float = 1.0
    fairness_window_s: float = 60.0
    site: str = ""
    links: Mapping[str, LinkRules] = field(default_factory=dict)
    kv_bytes: Mapping[str, KvBytes] = field(default_factory=dict)
    cache_share_of: ShareOf = no_shares
    copy_horizon_s: float = 0.0

    def kv_of(self, model: str | None) -> KvBytes:
        """KV size of a model, as far as configured."""
        default = self.kv_bytes.get("*", UNKNOWN_KV)
        return default if model is None else self.kv_bytes.get(model, default)


class FleetState:
    """This replica's state of the fleet.

    Args:
        rules: Settings of the fold.
        own: Id of this replica; empty for a state that only follows others.

    Attributes:
        at_slot: Returns the worker in a slot that `candidates` returned.
        handlers: The fold: applies an operation, by its type.
    """

    snapshot_version = SNAPSHOT_VERSION

    def __init__(self, rules: FleetRules = FleetRules(), own: str = "") -> None:
        self.rules = rules
        self.tree = PrefixTree(rules.blocks_max, rules.block_tokens)
        self.loads = Loads(memory_us=round(rules.memory_s * 1e6), own=own)
        self.fairness = Fairness(rules.weight_of, rules.quantum_s, rules.fairness_window_s)
        self.tickets = Tickets(self.fairness)
        self.links = Links(rules.links, memory_us=round(rules.memory_s * 1e6))
        self.relieved: set[int] = set()
        """Slots that may have got room since it was last emptied; only filled while tickets wait."""
        self.placed_paths: deque[bytes] = deque(maxlen=PLACED_PATHS_MAX)
        """The latest prompts placed since it was emptied, which may have made others cheaper; likewise."""
        self.revision = 0
        """Counts changes of workers, so that a caller can keep lists of them."""
        self.circuits = Circuits()
        self.buckets = BucketMembers(rules.buckets)
        self.lengths = LengthHistogram()
        """Lengths of late, while a worker belongs to a length bucket."""
        self.uncached_lengths = LengthHistogram()
        """Lengths of late for disaggregated prefill, by uncached tokens in the home site."""
        self.offload_plan: OffloadPlan | None = None
        """The newest answer of the slow loop (`policies.disaggregation.role_plan`)."""
        self.role_changes: deque[OffloadPlan] = deque(maxlen=ROLE_CHANGES_KEPT)
        """Plans that this replica saw change roles; the admin API lists them."""
        self.reports = Reports()
        self.evidence = Evidence()
        self.overrides = Overrides()
        self.audit: Newest[Audited] = Newest(AUDIT_KEPT)
        self.expires: Newest[Expire] = Newest(EXPIRES_KEPT)
        self.registers = AllRegisters(self.circuits, self.reports, self.evidence, self.links.measured)
        self._bytes_per_token = self.registers.of(BytesPerToken)
        self._pools = PoolMembers()
        self.columns = Columns(
            self.loads,
            self.tree,
            self.buckets,
            self._pools,
            congestion_max_per_s=rules.congestion_max_per_s,
            block_tokens=rules.block_tokens,
        )
        self.quotas = Quotas(self.tree, self.columns, rules.cache_share_of, rules.block_tokens)
        self.hot = HotPrefixes(self.tree, self.loads, rules.copy_horizon_s)
        self._prefilling: tuple[int, Slots] = -1, np.zeros(0, dtype=np.intp)
        """Slots of the workers that prefill, as of a revision."""
        self.returned_us = np.zeros(8)
        """Log time at which the worker in a slot last returned to service; 0 if it was never away."""
        self._revised_at = np.zeros(8, dtype=np.int64)
        self.last_return_us = 0
        """The newest of them."""
        self.left_out_ops = 0
        """Operations that snapshots left out, since they could not be encoded."""
        self._block_sizes: dict[int, BlockSize] = {}
        """By slot, of workers that were given text whose blocks have other sizes than those of token ids."""
        self._digest = Digest()
        """Digest of the workers that exist."""
        self._seldom: dict[int, tuple[int, int]] = {}
        """Revision and digest of registers that change seldom, by tag."""
        self._workers: dict[str, Worker] = {}
        self._absent: dict[str, None] = {}
        """Those that do not exist: named only so far, removed, or pools."""
        self._by_slot: dict[int, Worker] = {}
        self.at_slot: Callable[[int], Worker] = self._by_slot.__getitem__
        self._ranks: dict[str, dict[int, int]] = {}
        """By worker the slots of its ranks that were named, real ones or not, by number."""
        self._free: list[int] = []
        self._gone: dict[str, WorkerGone] = {}
        self._pool_writes = PoolWrites(self.loads, self._hold)
        self.load_reports = LoadReports(
            self.loads, self.tickets, self.links, self._pools.slots, lambda slot: self.at_slot(slot).worker_id
        )
        self.handlers = self._handlers()

    def use(self, rules: FleetRules) -> None:
        """Apply changed rules as far as this state can follow.

        These are ``congestion_max_per_s``, ``lifetime_s_max``, ``default_model``, ``weight_of``,
        ``quantum_s`` and ``copy_horizon_s``. All others shaped the state so far, and stay.
        """
        self.rules = replace(
            self.rules,
            congestion_max_per_s=rules.congestion_max_per_s,
            lifetime_s_max=rules.lifetime_s_max,
            default_model=rules.default_model,
            weight_of=rules.weight_of,
            quantum_s=rules.quantum_s,
            copy_horizon_s=rules.copy_horizon_s,
        )
        self.hot.horizon_s = rules.copy_horizon_s
        self.fairness.use(rules.weight_of, rules.quantum_s)
        self.columns.congestion_max_per_s = rules.congestion_max_per_s
        self.columns.refresh_soon()
        for worker_class in self.columns.classes:
            self.columns.price(worker_class, self.service_model(worker_class))

    # The fold.

    def apply(self, op: Op) -> None:
        """Apply one operation. Repeating it, or applying it late, changes nothing more."""
        self.handlers[type(op)](op)

    def _handlers(self) -> dict[type, Callable[[Any], object]]:
        """Return the fold as a table: the handler of each type of operation.

        A register without a row of its own is put, or, if it is about a worker, passes `_of_worker`.
        """
        return {
            Placed: self._placed,
            FirstToken: self._first_token,
            Finished: self._finished,
            Left: self._left,
            LoadVector: self._load_vector,
            Waiting: self._waiting,
            Shipping: self._shipping,
            Shipped: self._shipped,
            WorkerPut: self._worker_put,
            WorkerGone: self._worker_gone,
            **{
                each.kind: self._of_worker if each.kind.ends_with_worker else each.put
                for each in self.registers
            },
            CircuitSet: self._circuit_set,
            Started: self._started_at,
            Tracked: self._tracked,
            Fitted: self._fitted,
            SlowdownLearned: self._slowdown_learned,
            OffloadPlan: self._offload_plan,
            CapacityLearned: self._learned_capacity,
            HostMemory: self._host_memory,
            FetchTime: self._fetch_time,
            SettingsChanged: self.overrides.apply,
            Audited: self.audit.put,
            Expire: self.expires.put,
            **dict.fromkeys(get_args(TreeOp), self._tree_op),
        }

    def collect(self, now_us: int) -> int:
        """Forget entries that are too old to matter; call every few seconds.

        Returns the requests released because they were in flight or waiting for more than ``lifetime_s_max``.
        """
        lifetime_us_max = round(self.rules.lifetime_s_max * 1e6)
        expired = self.loads.collect(now_us, lifetime_us_max) + self.tickets.collect(now_us, lifetime_us_max)
        if expired:
            self._relieve_all()
        expired += self.links.collect(now_us, lifetime_us_max)
        horizon_us = now_us - round(2e6 * self.rules.memory_s)
        self._pool_writes.collect(now_us)
        self._end_slowdowns(now_us)
        removals = []
        for worker in [self._workers[worker_id] for worker_id in self._absent]:
            if worker.worker_id.startswith(HOLDER):
                continue
            idle = not self.loads.inflight_requests[worker.slot] and not self.tickets.waits_for(worker.slot)
            if idle and worker.version[0] < horizon_us:
                if worker.gone:
                    removals.append(WorkerGone(worker.worker_id, *worker.version[:2]))
                self.tree.drop(worker.slot)
                self._block_sizes.pop(worker.slot, None)
                self.loads.drop(worker.slot)
                del self._workers[worker.worker_id], self._absent[worker.worker_id]
                self.registers.of(Started).discard(worker.worker_id)
                # Regardless of the times of the words: the slot becomes another worker's.
                self.registers.drop(worker.worker_id, worker.slot, WHOLE_MAX)
                self.buckets.gone(worker.slot)
                self.returned_us[worker.slot] = 0
                self.relieved.discard(worker.slot)
                del self._by_slot[worker.slot]
                self._forget_rank(worker.worker_id)
                self._free.append(worker.slot)
                self._revised(worker.slot)
        self._remember_gone(removals)
        return expired

    def cut_off(self, own: str, now_us: int) -> list[Left]:
        """Return `Left` of all other replicas, for a replica that hears none any more.

        Their requests end unheard, and unreleased ones would leave no worker any room. The log gets these
        operations too, when it can: the living replicas then repeat their requests in flight.
        """
        return [
            Left(each, now_us) for each in sorted((self.loads.replicas() | self.tickets.replicas()) - {own})
        ]

    # Questions.

    def workers(self) -> list[Worker]:
        """The workers that exist, in order of their ids; each once, even with several ranks."""
        known = self._workers
        return [known[key] for key in sorted(known) if known[key].rank < 0 and self._exists(known[key])]

    def places(self, worker: Worker) -> list[Worker]:
        """Rows that a worker's requests go to: its ranks, or itself."""
        if not worker.is_parted:
            return [worker]
        slots = self._ranks[worker.worker_id]
        return [self._by_slot[slots[rank]] for rank in range(worker.ranks)]

    def slots(self, worker: Worker) -> list[int]:
        """Slots of a worker's places."""
        return [place.slot for place in self.places(worker)]

    def leaving(self) -> list[Worker]:
        """The workers to be removed when they have drained, in order of their ids."""
        return sorted(
            (worker for worker in self._workers.values() if worker.leaving and self._exists(worker)),
            key=lambda worker: worker.worker_id,
        )

    def holders(self) -> list[Worker]:
        """The places of the workers that exist, and the caches that some share, in order of their ids."""
        pools = [worker for name, worker in self._workers.items() if name.startswith(HOLDER)]
        places = [place for worker in self.workers() for place in self.places(worker)]
        return sorted((*places, *pools), key=lambda worker: worker.worker_id)

    def worker(self, worker_id: str) -> Worker | None:
        """A worker or a rank by id, or None if there is none of that name."""
        worker = self._workers.get(worker_id)
        return worker if worker is not None and worker.url and not worker.gone else None

    def revised(self, revision: int) -> list[int]:
        """Slots whose worker has changed since a ``revision``, free ones among them."""
        return np.flatnonzero(self._revised_at > revision).tolist()

    def in_slot(self, slot: int) -> Worker | None:
        """The worker that exists in a slot; None if there is none."""
        worker = self._by_slot.get(slot)
        return worker if worker is not None and self._exists(worker) else None

    def pool_of(self, worker_id: str) -> str | None:
        """Name in operations of the pool that a worker shares; None if it shares none."""
        worker = self._workers.get(worker_id)
        slot = None if worker is None else self._pools.slots.get(worker.slot)
        return None if slot is None else self.at_slot(slot).worker_id

    def tracks(self, worker_id: str) -> bool:
        """True if a worker's cache is known by its engine's events (`policies.state.slot_registers`)."""
        worker = self._workers.get(worker_id)
        return worker is not None and worker.slot in self.evidence.exact

    def cache_tokens(self, worker: Worker) -> int:
        """Tokens that a worker is believed to keep; 0 for no bound.

        The learned capacity counts, but never more than the reported one, of device and host. Without either
        an assumption counts.
        """
        reported = self.reported_tokens(worker)
        learned = self.registers.newest(CapacityLearned, worker.worker_id)
        if learned is None or learned.at_us <= worker.gone_us:
            return reported or self.rules.capacity_tokens // (max(worker.ranks, 1) if worker.rank >= 0 else 1)
        return min(reported, learned.tokens) if reported else learned.tokens

    def reported_tokens(self, worker: Worker) -> int:
        """Tokens that device and host memory of a worker hold for reuse, as reported; 0 if unknown."""
        return max(worker.capacity_tokens, self.host_tokens(worker))

    def host_tokens(self, worker: Worker) -> int:
        """Tokens that a worker can reuse from its host memory; 0 for none, or if unknown.

        Each rank has an equal part.
        """
        tokens = parsed_whole(worker.labels.get(HOST_LABEL, ""), TOKENS_MAX)
        if tokens is None:
            said = self.registers.newest(HostMemory, worker.base or worker.worker_id)
            tokens = 0 if said is None else said.tokens
        return tokens // max(worker.ranks, 1) if worker.rank >= 0 else tokens

    def block_tokens(self, slot: int) -> float:
        """Tokens in a block of a worker's latest prompts; text is cut by bytes."""
        size = self._block_sizes.get(slot)
        return self.rules.block_tokens if size is None else size.tokens_per_block

    def learned_capacity(self, worker_id: str) -> CapacityLearned | None:
        """Newest capacity of a worker learned from its answers."""
        return self.registers.newest(CapacityLearned, worker_id)

    def started(self, worker_id: str) -> Started | None:
        """Start of a worker's process, if its engine reports it."""
        return self.registers.newest(Started, worker_id)

    def forgot_us(self, slot: int) -> int:
        """Log time before which the worker in a slot is known to have lost everything; 0 if it never did."""
        return self.tree.holdings_of(slot).forgot_us

    def returns(self, slot: int, at_us: int) -> None:
        """Note that the worker in a slot is back in service, by the log or as only this replica saw."""
        self.last_return_us = max(self.last_return_us, at_us)
        for row in self._rows_of(slot):
            self.returned_us[row] = max(self.returned_us[row], at_us)
            self._relieve(row)

    def bytes_per_token(self, model: str, default: float) -> float:
        """Prompt bytes per token of a model, learned from answers of any replica."""
        learned = self._bytes_per_token.known.get(model)
        return learned.bytes_per_token if learned is not None else default

    def early_ratio(self, worker_class: str) -> float:
        """Share of the predicted time that the queues of a worker class really take, 0 to 1."""
        learned = self.registers.newest(EarlyRatio, worker_class)
        return learned.ratio if learned is not None else 1.0

    def decode_fit(self, worker_class: str) -> DecodeFit:
        """Fit of decode on a worker class by any replica; an empty one if there is none."""
        told = self.registers.newest(DecodeFitted, worker_class)
        if told is None:
            return DecodeFit()
        return DecodeFit.told(told.base_s, told.slope_s, told.requests, told.decode_s)

    def service_model(self, worker_class: str) -> ServiceModel:
        """The service model that prices a worker class now: the newest fit, else its profile."""
        fit = self.registers.newest(Fitted, worker_class)
        if fit is not None:
            return ServiceModel(fit.a_s, fit.b_s, fit.c0_tokens)
        return self.profile(worker_class)

    def model_at(self, slot: int) -> ServiceModel:
        """The service model that prices the worker in a slot: that of its class, times its slowdown."""
        model, slowdown = self.service_model(self._by_slot[slot].worker_class), self.columns.slowdown(slot)
        return ServiceModel(model.a_s * slowdown, model.b_s * slowdown, model.c0_tokens)

    def profile(self, worker_class: str) -> ServiceModel:
        """The service model of a worker class before anything was learned."""
        if worker_class == "default":
            return self.rules.default_model
        return PROFILES.get(worker_class, self.rules.default_model)

    def candidates(
        self,
        slots: Slots,
        paths: Sequence[bytes],
        profile: AttentionProfile,
        prompt_tokens: float,
        tokens_per_block: float,
        now_us: int,
        bucket: int = ANY_BUCKET,
        queue: QueueView | None = None,
        tenant: str = "",
    ) -> Candidates:
        """Build the view of the workers that may take a request.

        Args:
            slots: Their slots, not empty. Callers that pass the same array again save the gathering.
            paths: Packed block hashes of the prompt; several for a batch, whose matches add up.
            profile: Attention profile of the model.
            prompt_tokens: Estimated tokens of the prompt (of all prompts of a batch).
            tokens_per_block: Estimated tokens in one block of these paths.
            now_us: Log time.
            bucket: Length bucket of the request (`BucketMembers.of_length`).
            queue: Tickets for these workers; None if requests do not wait in the gateway.
            tenant: Name of the tenant; empty for none.
        """
        slow = self.columns.gathered(slots, bucket, now_us)
        matches: list[Match] = []
        for path in paths:
            match = self.tree.match(path, profile)
            if match.parts:
                matches.append(match)
        loads, windowed = self.loads, profile.needs_ends
        seen = Candidates(slow, matches, loads, prompt_tokens, tokens_per_block, now_us, queue, windowed)
        if tenant:
            owner, displacing = self.quotas.standing(tenant, slots, now_us)
            if displacing is not None:
                slow = slow.displacing(displacing)
            seen = replaced(seen, slow=slow, owner=owner, displacing=displacing)
        if slow.device_from_us is not None and matches:
            held = [path for path in paths if self.tree.match(path, profile).parts]
            loads_s = self._loads_s(slots, slow.device_from_us, held, matches, tokens_per_block)
            seen = replaced(seen, loads_s=loads_s)
        if self.hot.horizon_s:
            copying = self.hot.copying(paths, matches, tokens_per_block, now_us)
            seen = replaced(seen, copying=copying)
        return seen

    def among(
        self, candidates: Candidates, slots: Slots, bucket: int = ANY_BUCKET, ships: Splitting | None = None
    ) -> Candidates:
        """Narrow a view to some of the candidates; ``ships`` is the cost of splitting the request, if new."""
        slow = self.columns.gathered(slots, bucket, candidates.now_us)
        if candidates.displacing is not None:
            slow = slow.displacing(candidates.displacing)
        return replaced(candidates, slow=slow, ships=ships or candidates.ships)

    def _loads_s(
        self,
        slots: Slots,
        device_from_us: Floats,
        paths: Sequence[bytes],
        matches: Sequence[Match],
        tokens_per_block: float,
    ) -> Mapping[int, float]:
        """Seconds of loading the blocks of these prompts that only host memory has, by slot.

        Of more than `LOADS_MAX` workers those with the longest matches count: a short match loads little.
        """
        rows = np.flatnonzero(device_from_us)
        if len(rows) > LOADS_MAX:
            safe = sum([match.safe[slots[rows]] for match in matches])
            rows = rows[np.argsort(-safe, kind="stable")[:LOADS_MAX]]
        loads_s: dict[int, float] = {}
        for row in rows.tolist():
            slot, from_us, blocks = slots.item(row), int(device_from_us.item(row)), 0
            for path, match in zip(paths, matches, strict=True):
                safe_blocks = match.safe_at(slot)
                if safe_blocks:
                    blocks += max(safe_blocks - self.tree.newest_blocks(slot, path, from_us), 0)
            if blocks:
                loads_s[slot] = blocks * tokens_per_block * HOST_TOKEN_S
        return loads_s

    # Snapshot.

    def snapshot(self) -> list[bytes]:
        """Encode the state for a newcomer, in pieces; workers are named, times are log times."""
        return [piece for piece in self.snapshot_steps() if piece is not None]

    def snapshot_steps(self) -> Generator[bytes | None, None, None]:
        """The same in steps of a few microseconds; yields a piece, each well under a megabyte, or None.

        The pieces include every operation that was applied before the first step; a later one may be included
        or not. So the reader applies later ones again.
        """
        slots = {worker_id: self._workers[worker_id].slot for worker_id in sorted(self._workers)}
        yield from written(self, slots, lambda slot: self.at_slot(slot).worker_id, self._register_ops())

    def _register_ops(self) -> Iterator[Op]:
        """Workers and all other registers as operations; they may change while this goes on."""
        yield from self._worker_ops()
        # The requests themselves are listed without their prompts (`Loads.dump_steps`).
        yield from self._pool_writes.unwritten()
        for words in self.registers.apart:
            yield from words
        yield from self.audit
        yield from self.expires
        yield from [self._gone[key] for key in sorted(self._gone)]
        for words in self.registers.plain:
            yield from words
        yield from self.overrides.dump()

    def _worker_ops(self) -> Iterator[Op]:
        """Workers, and removals whose row is still there, as operations."""
        for worker_id in sorted(self._workers):
            worker = self._workers.get(worker_id)
            if worker is None or worker.rank >= 0:
                continue
            at_us, replica, gone = worker.version
            if worker.gone_us and not gone:
                yield WorkerGone(worker.worker_id, worker.gone_us, "")
            if gone:
                yield WorkerGone(worker.worker_id, at_us, replica)
            elif worker.entry is not None:
                yield worker.entry

    # State that replicas compare (`router.shared.agreement`).

    def digests(self) -> dict[int, list[int]]:
        """Return a digest of each kind of register, by tag: its values since this was last asked.

        The present value comes last. Replicas that know the same words have the same values.
        """
        digests = self.registers.digests
        found = dict(zip(digests, map(Digest.passed, digests.values()), strict=True))
        found[tag_of(WorkerPut)] = self._digest.passed()
        changes = self.overrides
        found[tag_of(SettingsChanged)] = [
            self._digest_of(
                SettingsChanged,
                changes.revision,
                ((change.change_id, *version_of(change)[:2]) for change in changes.dump()),
            )
        ]
        found[tag_of(Audited)] = [
            self._digest_of(
                Audited, self.audit.revision, ((op.request_id, op.at_us, op.replica) for op in self.audit)
            )
        ]
        return found

    def words(self, tags: Collection[int]) -> Iterator[Op]:
        """Return all that this replica knows of some kinds of register, as operations.

        Args:
            tags: Some of those that `digests` names; the removals of workers come with the workers.
        """
        if tag_of(WorkerPut) in tags:
            yield from self._worker_ops()
            yield from [self._gone[key] for key in sorted(self._gone)]
        for words in self.registers:
            if tag_of(words.kind) in tags:
                yield from words
        if tag_of(SettingsChanged) in tags:
            yield from self.overrides.dump()
        if tag_of(Audited) in tags:
            yield from self.audit

    def _digest_of(self, kind: type[Op], revision: int, words: Iterable[Word]) -> int:
        """Return the digest of words that change seldom, and count their changes by a revision."""
        tag = tag_of(kind)
        known = self._seldom.get(tag)
        if known is None or known[0] != revision:
            known = self._seldom[tag] = revision, digest_of(words)
        return known[1]

    def _word(self, worker: Worker | None) -> Word | None:
        """Return the identity of the newest change of a worker; None if there is no such worker."""
        if worker is None or worker.entry is None:
            return None
        stamps = sorted(worker.entry.stamps.items()), sorted(worker.entry.label_stamps.items())
        return (f"{worker.worker_id} {stamps}", *generation_of(worker.entry))

    def restore(self, pieces: Sequence[bytes], own: str = "", *, missed: bool = False) -> None:
        """Merge a snapshot, as if its operations were applied.

        Args:
            pieces: From `snapshot`.
            own: Id of this replica, whose own requests are passed over: another replica may report one that
                ended long ago, and the owner knows best.
            missed: Part of the log was not read, and reading goes on where the snapshot ends. Other replicas'
                requests that the snapshot does not list ended meanwhile, and are released.

        Raises:
            ValueError: This version cannot read it; nothing was changed.
        """
        finished(self.restore_steps(pieces, own, missed=missed))

    def restore_steps(
        self, pieces: Sequence[bytes], own: str = "", *, missed: bool = False
    ) -> Generator[float, None, int]:
        """The same in steps; all is checked before changes. Yields progress, returns operations skipped."""
        skipped = yield from merged(self, pieces, own, self._slot, missed=missed)
        self.columns.refresh_soon()
        self._relieve_all()
        return skipped

    # Inside.

    @staticmethod
    def _exists(worker: Worker) -> bool:
        return bool(worker.url) and not worker.gone

    def _slot(self, worker_id: str) -> int:
        """Slot of a worker; a new one for a worker that only operations have named so far.

        Raises:
            ValueError: There are `WORKERS_MAX` workers, and this is another one.
        """
        worker = self._workers.get(worker_id)
        if worker is not None:
            return worker.slot
        if len(self._workers) >= WORKERS_MAX:
            raise ValueError(f"there are {WORKERS_MAX} workers already")
        slot = self._free.pop() if self._free else len(self._by_slot)
        if slot >= len(self.returned_us):
            self.returned_us = np.concatenate([self.returned_us, np.zeros(len(self.returned_us))])
            self._revised_at = np.concatenate([self._revised_at, np.zeros_like(self._revised_at)])
        self.loads.ensure(slot)
        self.reports.ensure(slot)
        base, rank = rank_of(worker_id)
        if rank >= 0:
            self._ranks.setdefault(base, {})[rank] = slot
        self._set_worker(self._bare(worker_id, slot))
        return slot

    def _bare(self, worker_id: str, slot: int) -> Worker:
        """Return the row of a worker or rank that does not exist."""
        base, rank = rank_of(worker_id)
        return Worker(worker_id, slot) if rank < 0 else Worker(worker_id, slot, rank=rank, base=base)

    def _rows_of(self, slot: int) -> list[int]:
        """Return the row of a worker, and those of its ranks."""
        ranks = self._ranks.get(self._by_slot[slot].worker_id) if self._ranks else None
        return [slot] if ranks is None else [slot, *ranks.values()]

    def _forget_rank(self, worker_id: str) -> None:
        """Free the row of a rank."""
        base, rank = rank_of(worker_id)
        if rank >= 0:
            del self._ranks[base][rank]
            if not self._ranks[base]:
                del self._ranks[base]

    def _follow_ranks(self, worker: Worker) -> None:
        """Give a worker the rows of its ranks, and take those of others."""
        count = worker.ranks if worker.is_parted and self._exists(worker) else 0
        forgot_us = self.forgot_us(worker.slot)
        for rank in range(count):
            slot = self._slot(rank_id(worker.worker_id, rank))
            if forgot_us:
                self.tree.forget(slot, forgot_us)
            self._set_worker(place_of(worker, rank, slot))
        rows = self._ranks.get(worker.worker_id, {})
        together = [rows[rank] for rank in range(count)]
        for rank, slot in rows.items():
            if rank < count:
                self.columns.ranks[slot] = tuple(each for each in together if each != slot)
            elif self._exists(self._by_slot[slot]):
                del self.columns.ranks[slot]
                self._set_worker(self._bare(rank_id(worker.worker_id, rank), slot))

    def _join_pool(self, worker: Worker) -> None:
        name = worker.labels.get(POOL_LABEL, ANY_POOL)
        pool = self.rules.pools.get(name)
        if pool is None or worker.is_parted or not self._exists(worker):
            self._pools.leave(worker.slot)
            return
        pool_slot = self._slot(HOLDER + name)
        self._pools.join(worker.slot, pool_slot, pool)
        blocks = max(1, pool.capacity_tokens // self.rules.block_tokens) if pool.capacity_tokens else None
        self.tree.set_capacity(pool_slot, blocks)

    def _set_worker(self, worker: Worker) -> None:
        slot = worker.slot
        self._digest.replace(self._word(self._workers.get(worker.worker_id)), self._word(worker))
        self._workers[worker.worker_id] = worker
        self._by_slot[slot] = worker
        if self._exists(worker):
            self._absent.pop(worker.worker_id, None)
        else:
            self._absent[worker.worker_id] = None
        self._price(worker)
        if self._exists(worker) and not worker.is_parted:
            self.buckets.put(slot, worker.worker_id, worker.labels.get(BUCKET_LABEL, ""))
        else:
            self.buckets.gone(slot)
        self._bound(worker)
        self._join_pool(worker)
        self._relieve(slot)
        self._revised(slot)

    def _price(self, worker: Worker, since_us: int = 0) -> None:
        """Price a worker by its class, and by its slowdown if that was said after a log time.

        A word from before it last lost its cache is that of another process.
        """
        slot, worker_class = worker.slot, worker.worker_class
        word, slowdown = self.registers.newest(SlowdownLearned, worker.worker_id), 1.0
        if word is not None and word.at_us > max(since_us, self.forgot_us(slot)):
            slowdown = word.slowdown
        self.columns.put(slot, worker.worker_id, worker_class, self.service_model(worker_class), slowdown)

    def _end_slowdowns(self, now_us: int) -> None:
        """Price workers as their classes if their slowdown is no longer renewed or they were restarted."""
        for word in self.registers.of(SlowdownLearned).known.values():
            worker = self._workers[word.worker]
            if word.slowdown != 1.0 and self.columns.slowdown(worker.slot) != 1.0:
                since_us = max(now_us - KEPT_US, self.forgot_us(worker.slot))
                if word.at_us <= since_us:
                    self._price(worker, since_us)

    def _revised(self, slot: int) -> None:
        self.revision += 1
        self._revised_at[slot] = self.revision

    def _bound(self, worker: Worker) -> None:
        """Bound a worker's believed cache, unless its engine reports it."""
        capacity_tokens, device_tokens = self.cache_tokens(worker), worker.capacity_tokens
        has_host = device_tokens < self.host_tokens(worker)
        self.columns.put_device(
            worker.slot, int(device_tokens / self.block_tokens(worker.slot)) if has_host else 0
        )
        blocks = max(1, int(capacity_tokens / self.block_tokens(worker.slot))) if capacity_tokens else None
        takes = self._exists(worker) and not worker.is_parted
        self.quotas.set_space(worker.slot, blocks or 0 if takes else 0)
        self.tree.set_capacity(worker.slot, None if worker.slot in self.evidence.exact else blocks)

    def _measure_blocks(self, op: Placed, slot: int) -> None:
        """Follow how many tokens the blocks of a worker have, and update its bound if that changes."""
        size = self._block_sizes.get(slot)
        if size is None:
            held, ids = self.tree.held_blocks(slot), self.rules.block_tokens
            size = self._block_sizes[slot] = BlockSize(held * ids, held, ids)
        blocks = sum(map(len, op.paths)) // HASH_BYTES - op.safe_blocks
        if blocks > 0 and size.add(op.block_tokens or self.rules.block_tokens, blocks):
            self._bound(self.at_slot(slot))

    def _placed(self, op: Placed) -> None:
        paths = op.paths
        for path in paths:
            if len(path) % HASH_BYTES:
                check_path(path)  # before anything is reserved
        try:
            slot = self._workers[op.worker].slot
        except KeyError:  # a worker that was not named before
            slot = self._slot(op.worker)
        if self.hot.horizon_s and not self.loads.knows(op.request_id):
            self.hot.placed(op, slot, self._prefill_slots())
        if self.tickets.count:
            self.placed_paths.extend(paths)
            self._waits_no_longer(self.tickets.placed(op.request_id, slot, op.at_us), slot)
        if self.loads.placed(op, slot):
            if op.block_tokens or slot in self._block_sizes:
                self._measure_blocks(op, slot)
            if op.flow:
                self.fairness.charge(op.flow, op.at_us, op.service_us)
            if self.buckets.lengths is not None:
                tokens = op.context_tokens // (len(paths) or 1)
                self.lengths.add(op.at_us, tokens, op.service_us)
                self.buckets.count(tokens, slot)
            if op.home_uncached_tokens >= 0:
                prompt_tokens = op.uncached_tokens + op.safe_blocks * self.rules.block_tokens
                cached_tokens = max(prompt_tokens - op.home_uncached_tokens, 0)
                self.uncached_lengths.add(op.at_us, op.home_uncached_tokens, cached_tokens)
        for path in paths:
            self.tree.insert(slot, path, op.at_us, end=op.ends, junction=op.junction_blocks, owner=op.owner)
        if self._pools.slots and slot in self._pools.slots:
            self._pool_writes.placed(op, self._pools.slots[slot])

    def _prefill_slots(self) -> Slots:
        if self._prefilling[0] != self.revision:
            slots = [worker.slot for worker in self.workers() if worker.role != DECODE]
            self._prefilling = self.revision, np.array(slots, dtype=np.intp)
        return self._prefilling[1]

    def _first_token(self, op: FirstToken) -> None:
        if self.tickets.count:
            self._waits_no_longer(self.tickets.ended(op.request_id), self.loads.slot_of(op.request_id))
        self.loads.first_token(op)
        if self._pools.slots:
            self._pool_writes.ended(op.request_id)

    def _finished(self, op: Finished) -> None:
        if self.tickets.count:
            self._waits_no_longer(self.tickets.ended(op.request_id), self.loads.slot_of(op.request_id))
        self.loads.finished(op)
        if self.links.transfers:
            self.links.finished(op.request_id, op.at_us)
        if self._pools.slots:
            self._pool_writes.ended(op.request_id)

    def _left(self, op: Left) -> None:
        for ticket in self.tickets.left(op.replica, op.at_us):
            self._relieve(ticket.slot)
        slots = self.loads.left(op)
        if self.tickets.count:
            self.relieved.update(slots)
        self.links.left(op.replica, op.at_us)

    def _load_vector(self, op: LoadVector) -> None:
        for slot in self.loads.told(op, self._slot):
            self._relieve(slot)

    def _shipping(self, op: Shipping) -> None:
        loads = self.loads
        if op.at_us > loads.left_us(op.replica) and not loads.has_finished(op.request_id):
            self.links.shipping(op)

    def _shipped(self, op: Shipped) -> None:
        self.links.ended(op.request_id, op.at_us)

    def _waiting(self, op: Waiting) -> None:
        if self.loads.knows(op.request_id) or op.at_us <= self.loads.left_us(op.replica):
            return
        self.tickets.put(op, self._slot(op.worker) if op.worker else -1)

    def _waits_no_longer(self, ticket: Ticket | None, slot: int) -> None:
        """Note the room on the worker that a request leaves or takes, and on the one it waited for."""
        self._relieve(slot)
        if ticket is not None:
            self._relieve(ticket.slot)

    def _relieve_all(self) -> None:
        for worker in self._workers.values():
            self._relieve(worker.slot)

    def _relieve(self, slot: int) -> None:
        """Note that a worker may have room, if this is one (not -1) and tickets wait."""
        if slot >= 0 and self.tickets.count:
            self.relieved.add(slot)

    def _hold(self, op: Placed, slot: int) -> None:
        """Insert the prompts of a request for a pool."""
        for path in op.paths:
            self.tree.insert(slot, path, op.at_us, end=op.ends, owner=op.owner)

    def _tree_op(self, op: TreeOp) -> None:
        slot = self._slot(op.worker)
        if isinstance(op, Forget):
            self._forget(slot, op.before_us)
        else:
            apply(self.tree, op, slot)

    def _forget(self, slot: int, before_us: int) -> None:
        """Drop the blocks and slowdowns of a worker and its ranks, if that was before a log time."""
        for row in self._rows_of(slot):
            self.tree.forget(row, before_us)
            if self.columns.slowdown(row) != 1.0:
                self._price(self._by_slot[row])

    def _remember_gone(self, removals: list[WorkerGone]) -> None:
        """Keep removals whose workers' rows are used for others: settings may still name them."""
        for op in removals:
            known = self._gone.get(op.worker, op)
            self._gone[op.worker] = max(op, known, key=lambda gone: (gone.at_us, gone.replica))
        if len(self._gone) > GONE_MAX:
            by_age = sorted(self._gone.values(), key=lambda gone: (gone.at_us, gone.worker))
            self._gone = {gone.worker: gone for gone in by_age[-GONE_MAX:]}

    def _worker_put(self, op: WorkerPut) -> None:
        if not is_base_url(op.url):
            raise ValueError(f"{op.url[:200]!r} is no URL of a worker")
        self._check_whole(op.worker)
        generation = (*generation_of(op), False)
        gone = self._gone.get(op.worker)
        if gone is not None:
            if generation <= (gone.at_us, gone.replica, True):
                return
            del self._gone[op.worker]
        ranks = self._ranks.get(op.worker, ())
        if len(self._workers) + 1 + op.ranks - len(ranks) > WORKERS_MAX:
            raise ValueError(f"there are {WORKERS_MAX} workers and ranks at most")
        slot = self._slot(op.worker)
        known = self._workers[op.worker]
        if known.entry is not None:
            op = merged_entry(known.entry, op)
            if op == known.entry:
                return
        elif generation <= known.version:
            return
        gone_us = max(known.gone_us, gone.at_us if gone is not None else 0)
        self._set_worker(
            Worker(
                op.worker,
                slot,
                op.url,
                op.role,
                op.draining,
                op.capacity_tokens,
                dict(op.labels),
                (op.at_us, op.replica, False),
                gone_us=gone_us,
                site=op.labels.get(SITE_LABEL) or self.rules.site,
                drain_us=op.drain_us,
                leaving=op.leaving,
                entry=op,
                ranks=op.ranks,
            )
        )
        self._follow_ranks(self._workers[op.worker])

    def _worker_gone(self, op: WorkerGone) -> None:
        self._check_whole(op.worker)
        slot = self._slot(op.worker)
        rows = self._rows_of(slot)
        for row in rows:
            self.tree.forget(row, op.at_us)
        known = self._workers[op.worker]
        gone_us = max(known.gone_us, op.at_us)
        version = (op.at_us, op.replica, True)
        since = known.version if known.entry is None else (*generation_of(known.entry), False)
        if version > since:
            self._set_worker(Worker(op.worker, slot, version=version, gone=True, gone_us=gone_us))
        elif gone_us > known.gone_us:
            self._set_worker(replace(known, gone_us=gone_us))
        self._follow_ranks(self._workers[op.worker])
        for row in rows:
            place = self._by_slot[row]
            self.registers.drop(place.worker_id, row, gone_us)
            self._bound(place)
            self._price(place)

    @staticmethod
    def _check_whole(worker_id: str) -> None:
        if rank_of(worker_id)[1] >= 0:
            raise ValueError(f"{worker_id[:200]!r} names a rank of a worker")

    def _said_before_removal(self, op: Register) -> bool:
        """True if the row of this worker, or of this rank's worker, was freed after the operation."""
        gone = self._gone.get(rank_of(op.key)[0])
        return gone is not None and op.at_us <= gone.at_us

    def _of_worker(self, op: Register) -> bool:
        """Apply an operation on a worker, unless it was removed since; False if it does not count."""
        if self._said_before_removal(op):
            return False
        slot = self._slot(op.key)
        worker = self._workers.get(rank_of(op.key)[0])
        gone_us = 0 if worker is None else worker.gone_us
        return op.at_us > gone_us and self.registers.take(op, slot)

    def _circuit_set(self, op: CircuitSet) -> None:
        if self._of_worker(op):
            slot = self._workers[op.worker].slot
            for row in self._rows_of(slot):
                self._relieve(row)
            if op.state is Circuit.CLOSED:
                self.returns(slot, op.at_us)

    def _host_memory(self, op: HostMemory) -> None:
        if self._of_worker(op):
            for row in self._rows_of(self._workers[op.worker].slot):
                self._bound(self._by_slot[row])

    def _fetch_time(self, op: FetchTime) -> None:
        slot = self._slot(op.pool)
        if self.registers.of(FetchTime).put(op):
            self._pools.factors[slot] = bounded(op.factor)
            self.columns.forget()

    def _tracked(self, op: Tracked) -> None:
        if self._of_worker(op):
            self._bound(self._workers[op.worker])

    def _started_at(self, op: Started) -> None:
        slot = self._slot(op.worker)
        if op.cold:
            self._forget(slot, op.at_us)
            self.returns(slot, op.at_us)
        self.registers.of(Started).put(op)

    def _fitted(self, op: Fitted) -> None:
        if self.registers.of(Fitted).put(op):
            self.columns.price(op.worker_class, self.service_model(op.worker_class))

    def _slowdown_learned(self, op: SlowdownLearned) -> None:
        if self._of_worker(op):
            self._price(self._workers[op.worker])

    def _offload_plan(self, op: OffloadPlan) -> None:
        known = self.offload_plan
        if self.registers.of(OffloadPlan).put(op):
            self.offload_plan = op
            if op.changed_us and (known is None or op.changed_us != known.changed_us):
                self.role_changes.append(op)

    def _learned_capacity(self, op: CapacityLearned) -> None:
        if self._said_before_removal(op):
            return
        self._slot(op.worker)
        if self.registers.of(CapacityLearned).put(op):
            self._bound(self._workers[op.worker])
