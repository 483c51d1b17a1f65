"""One simulation: arrivals, replicas, engines and a book of computed blocks, on one virtual clock.

    open loop     a session starts when the workload says so (``start_s``)
    closed loop   ``users`` each take the next session when they have finished one; their first ones begin
                  evenly spread over ``ramp_s``, so that they do not march in step

Within a session a request comes ``delay_s`` after the end of the last of those that it waits for
(`SimRequest.after`). ``speed`` divides starts and delays, and nothing else: a trace at three times its load.

The book is a `radix.PrefixTree` that nothing leaves: it tells evicted blocks from those never computed.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from random import Random
from struct import pack
from time import process_time
from typing import Any

import numpy as np

from loadtest.engine.kv.l3 import L3Settings
from loadtest.engine.kv.tiers import HiCacheSettings
from loadtest.engine.profiles import EngineProfile
from loadtest.simulator.bounds import hit_ratio, infinite_hit_tokens, pooled_lru_hit_tokens
from loadtest.simulator.clock import VirtualClock
from loadtest.simulator.contenders import policy_of
from loadtest.simulator.fleet import Fleet, WorkerGroup, capacity_tokens
from loadtest.simulator.flight import Flight
from loadtest.simulator.least_work import prefills_s
from loadtest.simulator.queueing import DEFAULT_FLOW, QueueRules
from loadtest.simulator.records import Bounds, Outcome, Records, Result, Timeline, Whole
from loadtest.simulator.replica import START_NS, Replica, ReplicaRules
from loadtest.simulator.shared_log import SharedLog
from loadtest.simulator.site_links import LinkPlan
from loadtest.simulator.utilisation import time_scale
from loadtest.simulator.workload import Session, Workload
from policies import DECODE_COST, CachePool, FleetRules, KvBytes, LengthBuckets, LinkRules
from policies.disaggregation import OffloadRules, RoleRules, decode_policy
from radix import AttentionProfile, PrefixTree

HOUSEKEEPING_S = 5.0
"""Time between two looks at the fleet; replicas forget old entries, and the timeline gets a row."""

LINKS_S = 0.25
"""Between two looks at what crosses links (`policies.LinkWatch`)."""

TURNING_S = 2.0
"""Between two looks of the slow loop while a worker turns (`router.pairs.role_planner`)."""

SWITCH_S = 60.0
"""Time from a free worker to its new role. [guess] SGLang captures CUDA graphs, "minutes" for the largest."""

TIMELINE_ROWS_MAX = 1_000
"""With more, every other one is dropped."""


@dataclass(frozen=True, kw_only=True)
class SimulationConfig:
    """Configuration of a simulation.

    Attributes:
        engine: Profile of the workers.
        workers: Number that take requests.
        bucket_workers: Length buckets, as pairs of an upper bound in tokens of prompt plus expected output
            and of the workers labelled with it; they add up to ``workers``. Longer requests are rejected, and
            requests spill as in production. Empty: all workers take any length.
        decode_workers: Number that only decode; 0: those that take requests decode, too.
        groups: All workers, instead of those numbers; ``engine`` then only tells the gateway of the model,
            and gives the floor of the time to first token.
        roles: Rules by which convertible ones change their roles.
        links: Between the groups' sites, as ``FROM>TO``.
        tells_links: The gateway knows of them; if not, sites mean nothing to it.
        offload: Choice of the site of a prefill.
        replicas: Replicas of the gateway; each request comes to a random one.
        log_delay_s: From a replica's operation until the others have applied it.
        flush_interval_s: Pause between two flushes of one replica (``shared.flush_interval_ms``).
        speed: Divides the workload's starts and delays.
        block_tokens: Block size of the gateway; whole blocks of the workload.
        expected_output_tokens: Assumed by the gateway of every answer.
        utilisation: Prefill is scaled until the least possible work keeps the workers so busy
            (`loadtest.simulator.utilisation`); None: no scaling.
        host: Host memory of the workers that take requests (HiCache). None: none, or with ``l3`` the default.
        l3: A pool that they share, known to the gateway; None for none.
        rules: Overrides of `policies.FleetRules`.
        queue: None: requests never wait in the gateway.
        dp_aware: The gateway chooses the data-parallel rank, too; if not, engines do (`Scheduler`).
        warmup_s: Earlier requests are left out of the summary.
        ramp_s: Closed loop: time over which the users begin.
    """

    engine: EngineProfile
    policy: str = "expected_cost"
    policy_options: Mapping[str, float] = field(default_factory=dict)
    workers: int = 8
    bucket_workers: tuple[tuple[int, int], ...] = ()
    decode_workers: int = 0
    groups: tuple[WorkerGroup, ...] = ()
    links: Mapping[str, LinkPlan] = field(default_factory=dict)
    tells_links: bool = True
    offload: OffloadRules = field(default_factory=OffloadRules)
    roles: RoleRules = field(default_factory=RoleRules)
    decode_policy: str = DECODE_COST
    replicas: int = 1
    log_delay_s: float = 0.005
    flush_interval_s: float = 0.003
    speed: float = 1.0
    utilisation: float | None = None
    seed: int = 1
    block_tokens: int = 256
    expected_output_tokens: int = 256
    host: HiCacheSettings | None = None
    l3: L3Settings | None = None
    rules: Mapping[str, Any] = field(default_factory=dict)
    queue: QueueRules | None = None
    dp_aware: bool = True
    warmup_s: float = 0.0
    ramp_s: float = 30.0

    def __post_init__(self) -> None:
        """Check that every worker is in a bucket of ascending bounds, if there are any; else `ValueError`."""
        if self.buckets is None:
            return
        counts = [count for _, count in self.bucket_workers]
        if min(counts) < 1 or sum(counts) != self.workers:
            raise ValueError(f"buckets of {counts} workers do not add up to {self.workers}")

    @property
    def buckets(self) -> LengthBuckets | None:
        """The ranges of lengths that have workers of their own; None: there is one pool."""
        bounds = tuple(bound for bound, _ in self.bucket_workers)
        return LengthBuckets(bounds) if bounds else None


def simulate(
    workload: Workload,
    config: SimulationConfig,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Run a workload through a fleet; ``progress`` gets the ended requests, and all, now and then."""
    return _Simulation(workload, config, progress).run()


class _Visit:
    """One session under way: which of its requests may come when."""

    def __init__(self, session: Session, flow: str, name: bytes) -> None:
        self.flow = flow
        self.name = name
        self.requests = session.requests
        self.open = len(session.requests)
        self.missing = [len(request.after) for request in session.requests]
        self.waiting_for: dict[int, list[int]] = {}
        for index, request in enumerate(session.requests):
            for other in request.after:
                self.waiting_for.setdefault(other, []).append(index)


class _Simulation:
    def __init__(
        self, workload: Workload, config: SimulationConfig, progress: Callable[[int, int], None] | None
    ) -> None:
        self._config = config
        self._workload = workload
        self._progress = progress
        self._total = sum(len(session.requests) for session in workload.sessions)
        self._ended = 0
        self._chance = Random(f"{config.seed}/replicas")
        self._flow_chance = Random(f"{config.seed}/flows")
        self._host = config.host or config.engine.host_tier
        if self._host is None and config.l3 is not None:
            self._host = HiCacheSettings()
        self._time_scale = self._find_time_scale()
        self.clock = clock = VirtualClock()
        engine = config.engine.with_prefill(1.0 / self._time_scale)
        self.fleet = Fleet(
            engine,
            clock,
            config.workers,
            config.decode_workers,
            self._host,
            config.l3,
            config.groups,
            config.links,
        )
        self.replicas = self._build_replicas()
        self._sessions: Iterator[Session] = iter(workload.sessions)
        self._visits: dict[Flight, tuple[_Visit, int]] = {}
        self._visited = 0
        self._flights: list[Flight] = []
        self._order: dict[Flight, int] = {}
        self._computed = PrefixTree(1 << 40, workload.block_tokens)
        self._samples: list[tuple[float, list[float], list[int], list[int]]] = []
        self._sample_every = 1
        self._switching: set[str] = set()
        self._role_changes: list[tuple[float, str, str]] = []
        self._looks = 0
        self._digest = blake2b(digest_size=16)

    def _find_time_scale(self) -> float:
        config = self._config
        if config.utilisation is None:
            return 1.0
        return time_scale(
            self._workload,
            config.engine,
            config.workers,
            config.utilisation,
            capacity_tokens=capacity_tokens(config.engine, config.workers, self._host, config.l3),
            decode_workers=config.decode_workers,
            speed=config.speed,
        )

    def _pools(self) -> dict[str, CachePool]:
        """An operator's description of the pool for the gateway."""
        l3, host = self._config.l3, self._host
        if l3 is None or host is None:
            return {}
        return {
            "*": CachePool(
                capacity_tokens=l3.nodes * (l3.memory_tokens + l3.disk_tokens),
                fetch_base_s=l3.latency_s,
                fetch_tokens_per_s=l3.node_bytes_per_s / self.fleet.profile.shape.token_bytes,
                fetch_tokens_min=host.prefetch_threshold_tokens,
                prefetch_policy=host.prefetch_policy,
            )
        }

    def _sites(self) -> dict[str, Any]:
        """An operator's description of the links and their load for the gateway."""
        config, shape = self._config, self._config.engine.shape
        if not (config.links and config.tells_links):
            return {}
        return {
            "site": next(group.site for group in config.groups if group.role == "decode"),
            "links": {
                name: LinkRules(plan.bytes_per_s * 8 / 1e9, plan.rtt_s * 1e3, plan.cap_ratio)
                for name, plan in config.links.items()
            },
            "kv_bytes": {
                "*": KvBytes(
                    shape.token_bytes, shape.window_token_bytes, shape.window_tokens, shape.state_bytes
                )
            },
        }

    def _fairness(self) -> dict[str, Any]:
        queue = self._config.queue
        if queue is None:
            return {}
        return {
            "weight_of": queue.weight_of(),
            "quantum_s": queue.quantum_s,
            "fairness_window_s": queue.window_s,
        }

    def _build_replicas(self) -> list[Replica]:
        config, engine = self._config, self._config.engine
        # Settings that an operator would give the gateway for this model.
        kept = engine.rules
        profile = AttentionProfile(
            kept.attention, kept.window_tokens, kept.retained_interval_tokens, kept.match_rule
        )
        puts = self.fleet.puts(START_NS // 1000, self._bucket_names(), dp_aware=config.dp_aware)
        log = SharedLog(self.clock, delay_s=config.log_delay_s, pause_s=config.flush_interval_s)
        rules = ReplicaRules(
            policy=policy_of(config.policy, config.policy_options),
            decode_policy=decode_policy(config.decode_policy),
            profile=profile,
            fleet=FleetRules(
                **{
                    "block_tokens": config.block_tokens,
                    "pools": self._pools(),
                    "buckets": config.buckets,
                    **self._sites(),
                    **self._fairness(),
                    **config.rules,
                }
            ),
            engine_block_tokens=self._workload.block_tokens,
            queue=config.queue,
            step_tokens=engine.chunk_tokens // (engine.dp_ranks if config.dp_aware else 1),
            expected_output_tokens=config.expected_output_tokens,
            offload=config.offload,
            roles=config.roles,
        )
        replicas = [Replica(f"r{index}", self.clock, rules, log) for index in range(config.replicas)]
        for replica in replicas:
            replica.know(puts)
        return replicas

    def _bucket_names(self) -> list[str]:
        """The bucket of each worker that takes requests; the first ones take the shortest."""
        config = self._config
        if config.buckets is None:
            return []
        counts = (count for _, count in config.bucket_workers)
        return [name for name, count in zip(config.buckets.names, counts, strict=True) for _ in range(count)]

    def run(self) -> Result:
        began_s = process_time()
        users = self._workload.users
        if users:
            for user in range(users):
                self.clock.call_at(self._config.ramp_s * user / users, self._next_session)
        else:
            for session in self._workload.sessions:
                start_s = session.start_s or 0.0
                self.clock.call_at(start_s / self._config.speed, partial(self._visit, session))
        self.clock.call_later(HOUSEKEEPING_S, self._look)
        if self.fleet.links and self._config.tells_links:
            self.clock.call_later(LINKS_S, self._watch)
        if self._plans:
            self.clock.call_later(self._config.roles.interval_s, self._plan)
        self.clock.run()
        assert self._ended == self._total, f"{self._total - self._ended} requests never ended"
        records = self._records()
        found = [replica.fleet.tickets.inversions for replica in self.replicas]
        return Result(
            config=self._config,
            workload_name=self._workload.name,
            records=records,
            timeline=self._timeline(),
            bounds=self._bounds(records.ideal_tokens),
            cpu_s=process_time() - began_s,
            events=self.clock.events,
            decisions_digest=self._digest.hexdigest(),
            time_scale=self._time_scale,
            inversions=sum(inversions.count for inversions in found),
            inversion_s_max=max(inversions.us_max for inversions in found) / 1e6,
            rooms_overdue=sum(replica.room.overdue for replica in self.replicas),
            egress={name: link.egress() for name, link in self.fleet.links.items()},
            pool=self.fleet.pool_figures(),
            role_changes=tuple(self._role_changes),
        )

    # Sessions.

    def _next_session(self) -> None:
        session = next(self._sessions, None)
        if session is not None:
            self._visit(session)

    def _visit(self, session: Session) -> None:
        self._visited += 1
        name = self._visited.to_bytes(4, "little") if self._workload.named_sessions else b""
        visit = _Visit(session, session.flow or self._flow(), name)
        if not visit.open:
            self._left()
        for index, missing in enumerate(visit.missing):
            if not missing:
                self._await(visit, index)

    def _await(self, visit: _Visit, index: int) -> None:
        delay_s = visit.requests[index].delay_s / self._config.speed
        self.clock.call_later(delay_s, partial(self._arrive, visit, index))

    def _arrive(self, visit: _Visit, index: int) -> None:
        request = visit.requests[index]
        flight = Flight(request, self.fleet, self._replica(), self, visit.flow, visit.name)
        self._visits[flight] = visit, index
        self._order[flight] = len(self._flights)
        self._flights.append(flight)
        flight.begin()

    def _left(self) -> None:
        if self._workload.users:
            self.clock.call_later(0.0, self._next_session)

    def _flow(self) -> str:
        flows = self._config.queue.flows if self._config.queue else ()
        if not flows:
            return DEFAULT_FLOW
        (drawn,) = self._flow_chance.choices(flows, [flow.share for flow in flows])
        return drawn.name

    def _replica(self) -> Replica:
        replicas = self.replicas
        return replicas[self._chance.randrange(len(replicas))] if len(replicas) > 1 else replicas[0]

    # Reports of flights (`loadtest.simulator.flight.Watcher`).

    def placed(self, flight: Flight) -> None:
        """Note how much of its prompt some worker has computed, and still holds."""
        self._decided(flight)
        request, block_tokens = flight.request, self._workload.block_tokens
        most = (request.tokens - 1) // block_tokens * block_tokens
        computed = self._computed.match(request.blocks).matched_at(0) * block_tokens
        flight.computed_tokens = min(computed, most)
        flight.best_tokens, flight.held_tokens = self.fleet.reach_tokens(
            request.blocks, request.tokens, flight.worker, flight.computed_tokens
        )

    def began(self, flight: Flight) -> None:
        self._computed.insert(0, flight.request.blocks, self._now_us(), end=False)

    def ended(self, flight: Flight) -> None:
        """Its answer is cached, and what waited for it may come."""
        if flight.dispatch is None:
            self._decided(flight)
        if flight.outcome is Outcome.COMPLETED and flight.request.answer:
            self._computed.insert(0, flight.request.held, self._now_us(), end=False)
        visit, index = self._visits.pop(flight)
        for waiting in visit.waiting_for.get(index, ()):
            visit.missing[waiting] -= 1
            if not visit.missing[waiting]:
                self._await(visit, waiting)
        visit.open -= 1
        if not visit.open:
            self._left()
        self._ended += 1
        if self._progress is not None and (self._ended % 100 == 0 or self._ended == self._total):
            self._progress(self._ended, self._total)

    # Books.

    def _decided(self, flight: Flight) -> None:
        """Take down a choice; without a worker, that there is none."""
        replica = self.replicas.index(flight.replica)
        self._digest.update(pack("<ihhh", self._order[flight], replica, flight.worker, flight.decode_worker))

    def _now_us(self) -> int:
        return int(self.clock.time() * 1e6)

    def _look(self) -> None:
        """Look at the fleet now and then, as long as there is anything to come."""
        if self._ended == self._total:
            self._sample()
            return
        assert len(self.clock) > 0, f"{self._total - self._ended} requests wait for nothing"
        for replica in self.replicas:
            replica.collect()
        self._looks += 1
        if self._looks % self._sample_every == 0:
            self._sample()
            if len(self._samples) > TIMELINE_ROWS_MAX:
                self._samples = self._samples[1::2]
                self._sample_every *= 2
        self.clock.call_later(HOUSEKEEPING_S, self._look)

    def _watch(self) -> None:
        for replica in self.replicas:
            replica.link_watch.look()
        if self._ended < self._total:
            self.clock.call_later(LINKS_S, self._watch)

    @property
    def _plans(self) -> bool:
        """True if the slow loop has anything to decide: a threshold, or roles."""
        config = self._config
        told_links = bool(self.fleet.links) and config.tells_links
        return told_links or any(group.convertible for group in config.groups)

    def _plan(self) -> None:
        leader = self.replicas[0]
        for worker_id, role in leader.plan():
            if worker_id not in self._switching:
                self._switching.add(worker_id)
                self.clock.call_later(SWITCH_S, partial(self._switched, worker_id, role))
        if self._ended < self._total:
            again_s = TURNING_S if leader.turning else self._config.roles.interval_s
            self.clock.call_later(again_s, self._plan)

    def _switched(self, worker_id: str, role: str) -> None:
        """A worker's engine has switched; if it has got work again, it will be asked once more."""
        self._switching.discard(worker_id)
        if self.fleet.workers[self.fleet.places[worker_id]].clear():
            self.replicas[0].role_taken(worker_id, role)
            self._role_changes.append((self.clock.time(), worker_id, role))

    def _sample(self) -> None:
        workers = self.fleet.workers
        self._samples.append(
            (
                self.clock.time(),
                [worker.busy_s for worker in workers],
                [worker.waiting for worker in workers],
                [worker.held_tokens for worker in workers],
            )
        )

    def _timeline(self) -> Timeline:
        time_s, busy_s, waiting, held = (np.array(column) for column in zip(*self._samples, strict=True))
        steps_s = np.diff(time_s, prepend=0.0)
        ratio = np.zeros(busy_s.shape)
        told_s = np.zeros(busy_s.shape[1])
        for row, step_s in enumerate(steps_s.tolist()):
            # Engines count a step when it begins: its remaining time belongs to the next rows.
            spent_s = np.minimum(busy_s[row] - told_s, step_s)
            told_s += spent_s
            ratio[row] = spent_s / step_s
        return Timeline(time_s, ratio, waiting, held)

    def _bounds(self, ideal_tokens: Whole) -> Bounds:
        """Bounds over the requests in the order in which they came."""
        requests = [flight.request for flight in self._flights]
        pooled_tokens = self.fleet.capacity_tokens
        pooled = pooled_lru_hit_tokens(requests, pooled_tokens, block_tokens=self._workload.block_tokens)
        return Bounds(hit_ratio(requests, ideal_tokens), hit_ratio(requests, pooled), pooled_tokens)

    def _records(self) -> Records:
        def leases(name: str) -> list[int]:
            return [getattr(job.lease, name) if job and job.was_admitted else 0 for job in jobs]

        flights = self._flights
        jobs = [flight.job for flight in flights]
        nowhere = float("nan")
        chosen = [flight.dispatch and flight.dispatch.attempt.chosen for flight in flights]
        requests = [flight.request for flight in flights]
        prompts = np.array([request.tokens for request in requests], dtype=np.int64)
        ideal = infinite_hit_tokens(requests, block_tokens=self._workload.block_tokens)
        floor_s = prefills_s(requests, ideal, self.fleet.profile.prefill)
        arrival_s = np.array([flight.arrival_s for flight in flights])
        return Records(
            arrival_s=arrival_s,
            dispatched_s=np.array([flight.dispatched_s for flight in flights]),
            started_s=np.array([job.started_s if job and job.was_admitted else nowhere for job in jobs]),
            first_s=np.array([flight.first_s for flight in flights]),
            finished_s=np.array([flight.finished_s for flight in flights]),
            prompt_tokens=prompts,
            output_tokens=np.array([request.output_tokens for request in requests], dtype=np.int64),
            device_tokens=np.array(leases("device_tokens"), dtype=np.int64),
            host_tokens=np.array(leases("host_tokens"), dtype=np.int64),
            pool_tokens=np.array(leases("pool_tokens"), dtype=np.int64),
            ideal_tokens=ideal,
            floor_ttft_s=np.array(floor_s),
            worker=np.array([flight.worker for flight in flights]),
            decode_worker=np.array([flight.decode_worker for flight in flights]),
            replica=np.array([self.replicas.index(flight.replica) for flight in flights]),
            predicted_tokens=np.array([one.safe_tokens if one else 0 for one in chosen]),
            predicted_ttft_s=np.array([one.estimated_ttft_s if one else nowhere for one in chosen]),
            best_tokens=np.array([flight.best_tokens for flight in flights], dtype=np.int64),
            computed_tokens=np.array([flight.computed_tokens for flight in flights], dtype=np.int64),
            unsafe_tokens=np.array([flight.held_tokens for flight in flights], dtype=np.int64),
            outcome=np.array([flight.outcome for flight in flights], dtype=np.uint8),
        )
