"""A judge of the log: it derives the course of each attempt from the raw entries.

A *course* is the sequence of entries on one attempt, in the order of the log: ``placed`` always, then
``first`` (token), ``finished`` (which may include the first token), ``trim`` (its blocks taken back), or
``left`` in place of ``finished`` if its replica left. Every course must be one of `LEGAL`.

Replicas report first tokens and ends only if they are asked to (`ends_told`): load vectors report the rest.

A request that waited is placed under the id of its ticket, or finished without a placement: then it had no
attempt, and no course.
"""

import asyncio
from collections.abc import Iterable
from contextlib import AbstractContextManager
from unittest import mock

import msgspec
from redis.asyncio import Redis

from policies import OP_KINDS, Finished, FirstToken, Left, Op, Placed, Trim, Waiting, encode_ops
from router.shared.keys import Keys
from router.shared.placed_forms import Onward, decode_entry

ANSWERED = "placed first finished"
TAKEN_BACK = "placed finished trim"
PREDICTED_ONLY = "placed first finished trim"
"""The prefill was over by the prediction, but nothing of an answer came."""

NOTHING_NEW = "placed finished"
"""It failed, and the worker had held all of its whole blocks before."""

LEGAL = frozenset((ANSWERED, TAKEN_BACK, PREDICTED_ONLY, NOTHING_NEW, "placed left", "placed first left"))


def ends_told() -> AbstractContextManager[object]:
    """Replicas of this process publish every operation, as they do beside an older version."""
    return mock.patch("policies.state.load_reports.LoadReports.tells", return_value=True)


class Journal:
    """Reads the stream of a namespace, entry by entry as it stands there."""

    def __init__(self, redis: "Redis", namespace: str) -> None:
        self._redis = redis
        self._key = Keys(namespace).log
        self._position = "-"
        self._reading = asyncio.Lock()
        self._seen: set[int] = set()
        self._placed: dict[str, Placed] = {}
        self._earlier: set[str] = set()
        self._waiting: set[str] = set()
        self._said: dict[str, list[str]] = {}
        self._trims: dict[tuple[str, int], str] = {}
        self._left_us: dict[str, int] = {}

    async def courses(self, workers: Iterable[str] | None = None) -> list[str]:
        """The course of every attempt on these workers (on all, if None), in order of placement.

        An entry whose acknowledgement was lost is in the log twice; the very same operation counts
        once, but a second one of its kind counts.
        """
        async with self._reading:
            for entry_id, fields in await self._redis.xrange(self._key, min=self._position):
                self._position = f"({entry_id.decode()}"
                decoded = decode_entry(fields.get(b"o", b"\x90"))
                assert decoded.unknown + decoded.invalid == 0
                for op in decoded.ops:
                    if isinstance(op, Onward):
                        self._note(op.placed)
                    elif isinstance(op, OP_KINDS):
                        self._note(op)
        wanted = None if workers is None else set(workers)
        return [
            self._course(op)
            for op in self._placed.values()
            if wanted is None or (op.worker in wanted and op.request_id not in self._earlier)
        ]

    async def introduce(self, worker_id: str) -> None:
        """Start over with a worker: an earlier worker may have had its port, and so its id."""
        await self.courses()
        self._earlier |= {op.request_id for op in self._placed.values() if op.worker == worker_id}

    def _note(self, op: Op) -> None:
        # A placement that comes twice may come as its new part and then whole.
        same = msgspec.structs.replace(op, paths=()) if isinstance(op, Placed) else op
        digest = hash(encode_ops((same,)))
        if digest in self._seen:
            return
        self._seen.add(digest)
        match op:
            case Waiting():
                assert op.request_id not in self._placed, "waits after it was placed"
                self._waiting.add(op.request_id)
            case Placed():
                assert op.request_id not in self._placed, "placed twice"
                self._waiting.discard(op.request_id)
                self._placed[op.request_id] = op
                self._trims[op.worker, op.at_us + 1] = op.request_id
                self._said[op.request_id] = ["placed"]
            case Finished() if op.request_id in self._waiting:
                self._waiting.remove(op.request_id)
            case FirstToken() | Finished():
                assert op.at_us >= self._placed[op.request_id].at_us
                if isinstance(op, FirstToken) or op.prefilled_us:
                    self._said[op.request_id].append("first")
                if isinstance(op, Finished):
                    self._said[op.request_id].append("finished")
            case Trim() if (op.worker, op.before_us) in self._trims:
                self._said[self._trims[op.worker, op.before_us]].append("trim")
            case Left():
                self._left_us[op.replica] = op.at_us

    def _course(self, op: Placed) -> str:
        said = self._said[op.request_id]
        left = "finished" not in said and op.at_us <= self._left_us.get(op.replica, -1)
        return " ".join([*said, "left"] if left else said)
