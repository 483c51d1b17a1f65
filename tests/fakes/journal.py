"""The log as a judge: what its raw entries say became of each attempt.

A *course* is what was said of one attempt, in the order of the log: ``placed`` always, then ``first``
(token), ``finished``, ``trim`` (its blocks taken back), or ``left`` in place of ``finished`` if its
replica left. Whatever happens, it must be one of `LEGAL`.
"""

from collections.abc import Iterable

from redis.asyncio import Redis

from policies import Finished, FirstToken, Left, Op, Placed, Trim, decode_ops, encode_ops
from router.shared.keys import Keys

ANSWERED = "placed first finished"
TAKEN_BACK = "placed finished trim"
PREDICTED_ONLY = "placed first finished trim"
"""The prefill was over by the prediction, but nothing of an answer came."""

NOTHING_NEW = "placed finished"
"""It failed, and the worker had held all of its whole blocks before."""

LEGAL = frozenset((ANSWERED, TAKEN_BACK, PREDICTED_ONLY, NOTHING_NEW, "placed left", "placed first left"))


async def read_log(redis_url: str, namespace: str) -> list[Op]:
    """Every operation in the stream of a namespace, as its entries stand there."""
    async with Redis.from_url(redis_url, protocol=2) as redis:
        entries = await redis.xrange(Keys(namespace).log)
    ops: list[Op] = []
    for _, fields in entries:
        understood, skipped = decode_ops(fields.get(b"o", b"\x90"))
        assert skipped == 0
        ops += understood
    return ops


def courses(ops: Iterable[Op], workers: Iterable[str] | None = None) -> list[str]:
    """The course of every attempt on these workers (on all, if None), in order of placement.

    An entry whose acknowledgement was lost is in the log twice; the very same operation counts
    once, but a second one of its kind counts.
    """
    said: dict[str, list[str]] = {}
    placed: dict[str, Placed] = {}
    trimmed: dict[tuple[str, int], str] = {}
    unique = {encode_ops((op,)): op for op in ops}.values()
    for op in unique:
        match op:
            case Placed():
                assert op.request_id not in placed, "placed twice"
                placed[op.request_id] = op
                trimmed[op.worker, op.at_us + 1] = op.request_id
                said[op.request_id] = ["placed"]
            case FirstToken():
                assert op.at_us >= placed[op.request_id].at_us
                said[op.request_id].append("first")
            case Finished():
                assert op.at_us >= placed[op.request_id].at_us
                said[op.request_id].append("finished")
            case Trim() if (op.worker, op.before_us) in trimmed:
                said[trimmed[op.worker, op.before_us]].append("trim")
    left_us = {op.replica: op.at_us for op in unique if isinstance(op, Left)}
    for request_id, op in placed.items():
        if "finished" not in said[request_id] and op.at_us <= left_us.get(op.replica, -1):
            said[request_id].append("left")
    wanted = None if workers is None else set(workers)
    return [" ".join(said[key]) for key, op in placed.items() if wanted is None or op.worker in wanted]
