"""The fold by definition: the set of all operations seen; every answer is computed from the whole set.

It keeps nothing up to date, so nothing can go stale: order and repetition cannot matter to a set.
`policies.FleetState` is cleverer (one pass, bounded memory), but must give the same answers. Bounds on the
blocks of a worker are left out: they do not commute with removals (`radix.tree`, law 3).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from policies import (
    PROFILES,
    AttentionProfile,
    Audited,
    EndGone,
    Expire,
    Finished,
    FirstToken,
    Fitted,
    Forget,
    Insert,
    Left,
    LoadVector,
    Op,
    Placed,
    SlowdownLearned,
    Started,
    Trim,
    Waiting,
    WorkerGone,
    WorkerPut,
    encode_ops,
)
from policies.state.load_rows import COLUMNS, NONE, unpacked
from policies.state.ops import Register

HASH_BYTES = 8
BLOCK_TOKENS = 256
RATE_WINDOW_S = 16
CONGESTION_MAX_PER_S = 50.0
UTILISATION_MAX = 0.95
FAIRNESS_WINDOW_S = 60.0
FAIRNESS_BUCKETS = 16

R = TypeVar("R", bound=Register)


@dataclass(frozen=True, slots=True)
class NaiveRequest:
    """One request in flight."""

    worker: str
    replica: str
    at_us: int
    service_us: int
    uncached_tokens: int
    context_tokens: int
    prefilled: bool


@dataclass(slots=True)
class NaiveFold:
    """Every operation so far.

    Attributes:
        said: The operations, by their bytes.
        own: The replica whose requests are known one by one, even if it sent vectors.
    """

    said: dict[bytes, Op] = field(default_factory=dict)
    own: str = ""

    def apply(self, op: Op) -> None:
        self.said[encode_ops((op,))] = op

    def copy(self) -> "NaiveFold":
        return NaiveFold(dict(self.said), self.own)

    def merge(self, other: "NaiveFold") -> None:
        self.said |= other.said

    def _placed(self) -> list[Placed]:
        return [op for op in self.said.values() if isinstance(op, Placed)]

    def _first_tokens(self) -> Iterator[tuple[str, int]]:
        """Request and log time of every first token, said by itself or with the end."""
        for op in self.said.values():
            if isinstance(op, FirstToken):
                yield op.request_id, op.at_us
            elif isinstance(op, Finished) and op.prefilled_us:
                yield op.request_id, op.prefilled_us

    def _left_us(self) -> dict[str, int]:
        """Log time at which each replica left last."""
        left_us: dict[str, int] = {}
        for op in self.said.values():
            if isinstance(op, Left):
                left_us[op.replica] = max(op.at_us, left_us.get(op.replica, -1))
        return left_us

    def _vectors(self) -> list[LoadVector]:
        """Vectors of other replicas that count."""
        left_us = self._left_us()
        return [
            op
            for op in self.said.values()
            if isinstance(op, LoadVector)
            and op.replica != self.own
            and op.at_us > left_us.get(op.replica, -1)
        ]

    def _rows(self, worker: str) -> list[dict[str, float]]:
        """The newest row of each replica at a worker, by column."""
        newest: dict[str, LoadVector] = {}
        for op in self._vectors():
            if op.full or worker in op.workers:
                newest[op.replica] = max(op, newest.get(op.replica, op), key=lambda op: op.at_us)
        return [_row(op, worker) for op in newest.values() if worker in op.workers]

    def _done_us(self, worker: str) -> list[float]:
        """Known end times of a worker's prefills."""
        here = {op.request_id for op in self._placed() if op.worker == worker}
        told = [
            _row(op, worker)["done_us"]
            for op in self.said.values()
            if isinstance(op, LoadVector) and op.replica != self.own and worker in op.workers
        ]
        return [at_us for request_id, at_us in self._first_tokens() if request_id in here] + told

    # Registers: the newest word wins.

    def workers(self) -> dict[str, WorkerPut]:
        """The workers that exist."""
        newest: dict[str, WorkerPut | WorkerGone] = {}
        for op in self.said.values():
            if isinstance(op, WorkerPut | WorkerGone):
                known = newest.get(op.worker)
                if known is None or _worker_version(op) > _worker_version(known):
                    newest[op.worker] = op
        return {worker: op for worker, op in newest.items() if isinstance(op, WorkerPut)}

    def newest(self, kind: type[R]) -> dict[str, R]:
        """The newest word on each subject; if it ends with its worker, said since that was last removed."""
        newest: dict[str, R] = {}
        for op in self.said.values():
            if isinstance(op, kind) and not (kind.ends_with_worker and op.at_us <= self._gone_us(op.key)):
                newest[op.key] = max(op, newest.get(op.key, op), key=_version)
        return newest

    def _gone_us(self, worker: str) -> int:
        """Time of a worker's last removal; -1 if there was none."""
        said = self.said.values()
        return max(
            (op.at_us for op in said if isinstance(op, WorkerGone) and op.worker == worker), default=-1
        )

    def people(self, kind: type[Audited | Expire]) -> list[Audited | Expire]:
        """Actions of operators, in the order of their time; the real fold keeps fewer."""
        return sorted({op for op in self.said.values() if isinstance(op, kind)}, key=lambda op: op)  # type: ignore[misc]

    def prices(self, worker: WorkerPut) -> tuple[float, float, float]:
        """Service model of a worker: a_s, b_s, c0_tokens; with its slowdown, if said since it forgot all."""
        worker_class = worker.labels.get("worker_class", "default")
        word = self.newest(SlowdownLearned).get(worker.worker)
        counts = word is not None and word.at_us > self._removed_us(worker.worker, b"")
        slowdown = word.slowdown if word is not None and counts else 1.0
        model = self.newest(Fitted).get(worker_class) or PROFILES.get(worker_class, PROFILES["default"])
        return model.a_s * slowdown, model.b_s * slowdown, model.c0_tokens

    # Blocks of a worker: every use of a block that no removal followed.

    def _uses(self, worker: str) -> Iterable[tuple[bytes, int, int]]:
        """Path, time, and how many boundaries at the end of it are valid."""
        for op in self.said.values():
            if isinstance(op, Insert) and op.worker == worker:
                yield op.path, op.at_us, op.ends if op.end else 0
            elif isinstance(op, Placed) and op.worker == worker:
                for path in op.paths:
                    yield path, op.at_us, int(op.ends)
                    junction = op.junction_blocks * HASH_BYTES
                    if 0 < junction <= len(path):
                        yield path[:junction], op.at_us, 1

    def _removed_us(self, worker: str, block: bytes) -> int:
        """A use of a block before this time does not count."""
        return max(
            (
                op.before_us if isinstance(op, Forget | Trim) else op.at_us
                for op in self.said.values()
                if isinstance(op, Forget | Trim | WorkerGone | Started)
                and op.worker == worker
                and (not isinstance(op, Trim) or block.startswith(op.path))
                and (not isinstance(op, Started) or op.cold)
            ),
            default=0,
        )

    def blocks(self, worker: str) -> dict[bytes, int]:
        """Log time of last use of every block that a worker holds; a block is the path that ends with it."""
        held: dict[bytes, int] = {}
        for path, at_us, _ in self._uses(worker):
            for stop in range(HASH_BYTES, len(path) + 1, HASH_BYTES):
                held[path[:stop]] = max(at_us, held.get(path[:stop], 0))
        return {block: at_us for block, at_us in held.items() if at_us >= self._removed_us(worker, block)}

    def ends(self, worker: str) -> set[bytes]:
        """Paths from whose end this worker can go on, and which it still holds."""
        return {
            path[:stop]
            for path, at_us, ends in self._uses(worker)
            for stop in range(len(path), max(0, len(path) - HASH_BYTES * ends), -HASH_BYTES)
            if at_us >= max(self._removed_us(worker, path[:stop]), self._end_gone_us(worker, path[:stop]))
        }

    def _end_gone_us(self, worker: str, path: bytes) -> int:
        """Time before which statements on the end of a path do not count."""
        return max(
            (
                op.before_us
                for op in self.said.values()
                if isinstance(op, EndGone)
                and op.worker == worker
                and op.path.startswith(path)
                and len(path) > len(op.path) - HASH_BYTES * op.ends
            ),
            default=0,
        )

    def matches(
        self, worker: str, paths: Iterable[bytes], profiles: Sequence[AttentionProfile]
    ) -> list[tuple[int, int]]:
        """Prefix match and window-safe match in blocks, of each path under each profile."""
        held, ends = self.blocks(worker), self.ends(worker)
        found: list[tuple[int, int]] = []
        for path in paths:
            matched = sum(path[:stop] in held for stop in range(HASH_BYTES, len(path) + 1, HASH_BYTES))
            found += [(matched, _safe(path, matched, ends, profile)) for profile in profiles]
        return found

    # Requests of a worker.

    def requests(self) -> dict[str, NaiveRequest]:
        """Placed, not finished, and its replica has neither left nor published its loads there since then."""
        said = self.said.values()
        finished = {op.request_id for op in said if isinstance(op, Finished)}
        prefilled = {request_id for request_id, _ in self._first_tokens()}
        left_us = self._left_us()
        vectors = self._vectors()

        def until_us(op: Placed) -> int:
            rows = [each for each in vectors if each.replica == op.replica]
            told = [each.at_us for each in rows if each.full or op.worker in each.workers]
            return max([left_us.get(op.replica, -1), *told])

        newest: dict[str, Placed] = {}
        for op in self._placed():
            newest[op.request_id] = max(op, newest.get(op.request_id, op), key=lambda placed: placed.at_us)
        return {
            request_id: NaiveRequest(
                op.worker,
                op.replica,
                op.at_us,
                op.service_us,
                op.uncached_tokens,
                op.context_tokens,
                request_id in prefilled,
            )
            for request_id, op in newest.items()
            if request_id not in finished and op.at_us > until_us(op)
        }

    def waiting(self) -> dict[str, Waiting]:
        """Said to wait, not placed or ended, and its replica has not left since."""
        said = self.said.values()
        ended = {op.request_id for op in said if isinstance(op, Placed | FirstToken | Finished)}
        newest: dict[str, Waiting] = {}
        for op in said:
            if isinstance(op, Waiting) and op.request_id not in ended:
                newest[op.request_id] = max(op, newest.get(op.request_id, op), key=lambda op: op.at_us)
        left_us = self._left_us()
        return {key: op for key, op in newest.items() if op.at_us > left_us.get(op.replica, -1)}

    def first(self, worker: str) -> str | None:
        """The next request on a worker, among those that may go to it; all are of one flow."""
        waiting = [op for op in self.waiting().values() if op.worker in ("", worker)]
        waiting.sort(key=lambda op: (op.key_us, op.arrived_us, op.request_id))
        return waiting[0].request_id if waiting else None

    def served_us(self, flow: str, now_us: int) -> int:
        """Prefill charged to a flow in the last window."""
        bucket_us = round(FAIRNESS_WINDOW_S * 1e6) // FAIRNESS_BUCKETS
        charged = {
            op.request_id: op.service_us
            for op in self._placed()
            if op.paths and op.flow == flow and op.at_us // bucket_us > now_us // bucket_us - FAIRNESS_BUCKETS
        }
        return sum(charged.values())

    def loads(self, worker: str, now_us: int) -> tuple[float, float, float, float, float]:
        """Backlog in seconds, prefill tokens, requests in flight and their tokens, requests in prefill."""
        mine = {key: request for key, request in self.requests().items() if request.worker == worker}
        waiting = {key: request for key, request in mine.items() if not request.prefilled}
        rows = self._rows(worker)
        backlog_us = sum(request.service_us for request in waiting.values())
        backlog_us += sum(row["prefill_us"] for row in rows)
        heads = [(row["head_us"], -row["head_service_us"]) for row in rows if row["prefill_requests"]]
        if waiting:
            first = waiting[min(waiting, key=lambda key: (waiting[key].at_us, key))]
            heads.append((first.at_us, -first.service_us))
        if heads:
            placed_us, service_us = min(heads)
            began_us = max([placed_us, *self._done_us(worker)])
            backlog_us -= min(max(now_us - began_us, 0), -service_us)
        return (
            backlog_us / 1e6,
            sum(request.uncached_tokens for request in waiting.values())
            + sum(row["prefill_tokens"] for row in rows),
            len(mine) + sum(row["inflight_requests"] for row in rows),
            sum(request.context_tokens for request in mine.values())
            + sum(row["inflight_tokens"] for row in rows),
            len(waiting) + sum(row["prefill_requests"] for row in rows),
        )

    def congestion_per_s(self, worker: str, now_us: int) -> float:
        """Kappa from the placements of the last seconds."""
        recent = self._recent(worker, now_us)
        utilisation = sum(op.service_us for op in recent) / (1e6 * RATE_WINDOW_S)
        arrivals_per_s = len(recent) / RATE_WINDOW_S
        return min(CONGESTION_MAX_PER_S, arrivals_per_s / (1.0 - min(utilisation, UTILISATION_MAX)))

    def return_ratio(self, now_us: int) -> float:
        """Share of all placements of the last seconds that found at least half of their prompt."""
        recent = [op for worker in self.workers() for op in self._recent(worker, now_us)]
        found = [op for op in recent if 0 < op.safe_blocks >= sum(map(len, op.paths)) / HASH_BYTES / 2]
        return len(found) / len(recent) if recent else 0.0

    def _recent(self, worker: str, now_us: int) -> list[Placed]:
        return [
            op
            for op in self._placed()
            if op.worker == worker
            and op.paths
            and 0 <= now_us // 1_000_000 - op.at_us // 1_000_000 < RATE_WINDOW_S
        ]


def _safe(path: bytes, matched: int, ends: set[bytes], profile: AttentionProfile) -> int:
    """The longest held beginning that ended here, or where the engine keeps windows or states."""
    interval = profile.retained_interval_tokens

    def valid(blocks: int) -> bool:
        tokens = range(blocks * BLOCK_TOKENS, min(blocks + 1, matched) * BLOCK_TOKENS + 1)
        return (
            profile.kind == "full"
            or path[: blocks * HASH_BYTES] in ends
            or bool(interval and any(token % interval == 0 for token in tokens))
        )

    return max((blocks for blocks in range(matched + 1) if valid(blocks)), default=0)


def _version(op: Register) -> tuple[int, str]:
    return op.at_us, op.replica


def _worker_version(op: WorkerPut | WorkerGone) -> tuple[int, str, bool]:
    return op.at_us, op.replica, isinstance(op, WorkerGone)


def _row(op: LoadVector, worker: str) -> dict[str, float]:
    """The row of a worker by column, with log times."""
    row = dict(zip(COLUMNS, map(float, unpacked(op)[op.workers.index(worker)]), strict=True))
    row["head_us"] = max(op.at_us - row["head_us"], 0.0)
    row["done_us"] = op.at_us - row["done_us"] if row["done_us"] < NONE else 0.0
    return row
