"""Price of following KV events: engines' real encodings on real sockets, and their events alone.

    python -m loadtest.bench.kv_events [--workers 200] [--events-per-s 200] [--groups 1|6] [--seconds 20]
    python -m loadtest.bench.kv_events --residency

    publishers (one process)  ──ZeroMQ──>  follower (this process)  ──operations──>  a second fold

Printed are batches and events, CPU as a share of one core, delay of the event loop, operations and bytes for
the log, and the CPU of another replica that applies them. The first of ``--groups`` has full attention, the
others keep sliding windows at the ends of prompts.

With ``--residency`` `radix.Residency` alone gets decoded events; the tree is told every 100 (0.5 s at 200/s).

    dense          one group, blocks of 16 tokens, tree blocks of the same size
    dense, 256     the same for a tree with blocks of 256 tokens
    hybrid         a full group and three sliding windows that keep the ends of prompts (W = 128)
    hybrid, all    the same, the windows keep everything and lose the oldest blocks

*ops* and *bytes* are per 1,000 events. Memory is the growth of the resident set for another 200,000 blocks in
a process of its own. CPU is the least of several runs.
"""

import argparse
import asyncio
import contextlib
import gc
import os
import ssl
import tempfile
import time
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import httpx
import msgspec
import numpy as np
import zmq

from loadtest.bench.child import say, started
from loadtest.bench.costs import apart
from loadtest.bench.event_engine import MIXES, Engine, Mix
from loadtest.bench.process_tree import rss_bytes
from policies import FleetRules, FleetState, Op, WorkerPut, decode_ops, encode_op, encode_ops
from radix import PrefixTree, apply
from radix.residency import BlocksRemoved, BlocksStored, EngineEvent, Residency
from router.destinations import Destinations
from router.fleet import Core, LocalWorker, Registry, ServedModel
from router.fleet.kv_events import KvEvents, State
from router.fleet.kv_events.following import FollowingRules
from router.gateway.identity import PromptHasher
from router.shared import LogPort, LogStatus

TOLD_EVERY = 100
TREE_BLOCK = 64
PUBLISHED_BLOCKS = 3_000
"""Blocks in each publishing engine."""

STREAMS = 20
"""Number of different engines."""

WARM_S = 12.0
"""Until then caches fill, and little is removed."""

JOINED_S = 4.0
"""Until then followers ask for old batches, of which there are none."""


class PublishPlan(msgspec.Struct, frozen=True):
    """Engines that publish: where, how many, with how many cache groups, how much and for how long."""

    folder: str
    workers: int
    groups: int
    events_per_s: float
    seconds: float


def batches(engine: Engine, events: float) -> list[tuple[int, bytes]]:
    """Encode an engine's steps until they have ``events``, each with the number of events so far."""
    count, encoded = 0, []
    step: list[dict[str, Any]] = []
    while count < events:
        for event in engine.turn():
            step.append(_as_vllm(event))
            if isinstance(event, BlocksStored) and not event.group:
                count += len(step)
                encoded.append((count, msgspec.msgpack.encode((time.time(), step, 0))))
                step = []
    return encoded


def _as_vllm(event: EngineEvent) -> dict[str, Any]:
    if isinstance(event, BlocksRemoved):
        return {
            "type": "BlockRemoved",
            "block_hashes": event.hashes,
            "medium": event.medium,
            "group_idx": event.group,
        }
    assert isinstance(event, BlocksStored)
    return {
        "type": "BlockStored",
        "block_hashes": event.hashes,
        "parent_block_hash": event.parent,
        "token_ids": event.token_ids,
        "block_size": event.block_tokens,
        "lora_id": None,
        "medium": event.medium,
        "lora_name": None,
        "group_idx": event.group,
        "kv_cache_spec_kind": event.kind,
        "kv_cache_spec_sliding_window": event.window_tokens,
    }


async def publish(plan: PublishPlan) -> None:
    """Be the engines, until the process is ended. Their events are made beforehand."""
    workers = range(plan.workers)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 4 * plan.workers + 100)
    mix = Mix("", TREE_BLOCK, windows=plan.groups - 1)
    streams = [
        batches(Engine(mix, PUBLISHED_BLOCKS, Random(seed)), plan.seconds * plan.events_per_s)
        for seed in workers[:STREAMS]
    ]
    sockets, routers = ([context.socket(kind) for _ in workers] for kind in (zmq.PUB, zmq.ROUTER))
    for number, (socket, router) in enumerate(zip(sockets, routers, strict=True)):
        socket.set_hwm(100_000)
        socket.bind(f"ipc://{plan.folder}/e{number}")
        router.bind(f"ipc://{plan.folder}/r{number}")
    say(True)  # noqa: FBT003 - ready
    sent, began_s = [0] * plan.workers, time.monotonic()
    while True:
        now_s = time.monotonic() - began_s
        for number, router in enumerate(routers):
            if now_s < JOINED_S:
                with contextlib.suppress(zmq.Again):
                    client = router.recv_multipart(zmq.NOBLOCK)[0]
                    router.send_multipart((client, b"", b"", (2**64 - 1).to_bytes(8, "big"), b""))
                continue
            stream, at = streams[number % len(streams)], sent[number]
            # One after the other, not all at once.
            due = (now_s - JOINED_S - number / plan.workers) * plan.events_per_s
            while at < len(stream) and stream[at][0] <= due:
                sockets[number].send_multipart((b"", at.to_bytes(8, "big"), stream[at][1]))
                at += 1
            sent[number] = at
        time.sleep(0.002)  # noqa: ASYNC251 - the only thing that this process does


class Workers:
    """A registry of workers that are all well."""

    def __init__(self, fleet: FleetState, folder: str, count: int) -> None:
        for number in range(count):
            labels = {"kv_events": f"ipc://{folder}/e{number}", "kv_replay": f"ipc://{folder}/r{number}"}
            worker_id = f"w{number}:80"
            fleet.apply(WorkerPut(worker_id, 1, "static", f"http://{worker_id}", labels=labels))
        models = (ServedModel("tiny", 8192, "", "tiny"),)
        self._all = [
            cast(LocalWorker, SimpleNamespace(worker=worker, models=models, engine="vllm"))
            for worker in fleet.workers()
        ]

    def all(self) -> list[LocalWorker]:
        """All of them."""
        return self._all

    def cached_as(self, model: str) -> str:
        """The name that it has."""
        return model


async def measure(folder: str, workers: int, replicas: int, seconds: float) -> dict[str, float]:
    """Follow one replica's share of the workers, and say what it cost."""
    fleet = FleetState(FleetRules(block_tokens=TREE_BLOCK))
    published: list[Op] = []

    def tell(op: Op, *more: Op) -> None:
        for each in (op, *more):
            fleet.apply(each)
            published.append(each)
            encode_op(each)

    hasher, destinations = PromptHasher("bench", block_tokens=TREE_BLOCK), Destinations()
    names = tuple(f"replica-{number}" for number in range(replicas))
    status = LogStatus(
        connected=True,
        degraded_reason=None,
        lag_s=0.0,
        snapshot_age_s=None,
        buffered_ops=0,
        dropped_ops=0,
        skipped_ops={},
        replicas=names,
        ready=True,
        warming=None,
    )
    async with httpx.AsyncClient(verify=ssl.create_default_context()) as client:
        kv_events = KvEvents(
            Core(
                fleet,
                cast(Registry, Workers(fleet, folder, workers)),
                LogPort(names[0], tell, lambda: time.time_ns() // 1000, lambda: status, lambda: tuple(names)),
            ),
            client,
            destinations,
            FollowingRules(
                on=True, named=frozenset(f"w{number}:80" for number in range(workers)), timeout_s=1.0
            ),
            root_of=hasher.engine_root,
            identifies=lambda _: True,
        )
        task = asyncio.create_task(kv_events.run())
        await asyncio.sleep(JOINED_S + WARM_S)
        before, began_ops = kv_events.counts(), len(published)
        cpu_s, wall_s, late = time.process_time(), time.monotonic(), []
        while time.monotonic() - wall_s < seconds:
            asked_s = time.monotonic()
            await asyncio.sleep(0.005)
            late.append(time.monotonic() - asked_s - 0.005)
        cpu_s, wall_s = time.process_time() - cpu_s, time.monotonic() - wall_s
        counts = kv_events.counts()
        counts.subtract(before)
        ops = published[began_ops:]
        followed = len(kv_events.followers)
        live = sum(follower.state is State.LIVE for follower in kv_events.followers.values())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    other = FleetState(FleetRules(block_tokens=TREE_BLOCK))
    for op in published[:began_ops]:
        other.apply(op)
    entries = [encode_ops(ops[at : at + 100]) for at in range(0, len(ops), 100)]
    fold_s = time.process_time()
    for entry in entries:
        for op in decode_ops(entry)[0]:
            other.apply(op)
    fold_s = time.process_time() - fold_s
    lateness = np.quantile(late, [0.5, 0.99, 1.0]) * 1000
    return {
        "workers followed": followed,
        "live": live,
        "batches a second": counts["batches"] / wall_s,
        "events a second": (counts["stored"] + counts["removed"]) / wall_s,
        "CPU, % of a core": 100 * cpu_s / wall_s,
        "us an event": 1e6 * cpu_s / max(counts["stored"] + counts["removed"], 1),
        "loop late p50, ms": lateness[0],
        "loop late p99, ms": lateness[1],
        "loop late max, ms": lateness[2],
        "operations a second": len(ops) / wall_s,
        "KiB a second": sum(map(len, entries)) / wall_s / 1024,
        "fold elsewhere, % of a core": 100 * fold_s / wall_s,
        "gaps": counts["gaps"],
    }


def _measured(mix: Mix, count: int, blocks: int) -> tuple[float, float, float, float, float]:
    engine = Engine(mix, blocks, Random(1))
    residency = Residency(mix.tree_tokens, lambda lora, salt: 1)
    tree = PrefixTree(block_tokens=mix.tree_tokens)
    residency.apply(0, engine.fill())
    for op in residency.changes("w", 1):
        apply(tree, op, 0)
    events = engine.events(count)
    apply_ns = changes_ns = audit_ns = ops = op_bytes = audits = 0
    gc.collect()
    for at in range(0, len(events), TOLD_EVERY):
        some = events[at : at + TOLD_EVERY]
        began_ns = time.process_time_ns()
        residency.apply(0, some)
        applied_ns = time.process_time_ns()
        changes = residency.changes("w", at + 2)
        told_ns = time.process_time_ns()
        apply_ns += applied_ns - began_ns
        changes_ns += told_ns - applied_ns
        ops += len(changes)
        op_bytes += len(msgspec.msgpack.encode(changes))
        for op in changes:
            apply(tree, op, 0)
        if at // TOLD_EVERY % 20 == 0:
            began_ns = time.process_time_ns()
            assert not residency.reconcile(tree, 0, "w", at + 2, at)
            audit_ns += time.process_time_ns() - began_ns
            audits += 1
    return (
        apply_ns / len(events) / 1e3,
        changes_ns / len(events) / 1e3,
        audit_ns / audits / 1e3,
        ops / len(events) * 1e3,
        op_bytes / len(events) * 1e3,
    )


def bytes_per_block(mix: Mix) -> float:
    """Memory of an engine's block, by the growth of this process."""
    residency = Residency(mix.tree_tokens, lambda lora, salt: 1)
    random = Random(1)
    for at, engine in enumerate(Engine(mix, 100_000, random) for _ in range(4)):
        if at == 2:
            gc.collect()
            before, blocks = rss_bytes(os.getpid()), residency.blocks
        residency.apply(0, engine.fill())
        residency.changes("w", at + 1)
    gc.collect()
    return (rss_bytes(os.getpid()) - before) / (residency.blocks - blocks)


async def follow(given: argparse.Namespace) -> dict[str, float]:
    """Start the engines and follow them."""
    with tempfile.TemporaryDirectory() as folder:
        seconds = given.seconds + WARM_S + 2
        plan = PublishPlan(folder, given.workers, given.groups, given.events_per_s, seconds)
        async with started(publish, plan) as publishers:
            await publishers.next(bool)
            return await measure(folder, given.workers, given.replicas, given.seconds)


def print_residency(given: argparse.Namespace) -> None:
    """Print the figures of each mix."""
    print("mix            µs/event:  apply  changes  reconcile/call   ops/1,000  bytes/1,000   bytes/block")
    for mix in MIXES:
        rows = [_measured(mix, given.events, given.blocks) for _ in range(given.repeats)]
        apply_us, changes_us, audit_us = (min(row[at] for row in rows) for at in range(3))
        print(
            f"{mix.name:<24} {apply_us:>6.2f} {changes_us:>8.2f} {audit_us:>15.0f}"
            f" {rows[0][3]:>11.0f} {rows[0][4]:>12.0f} {apart(bytes_per_block, mix):>13.0f}"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.kv_events", description="Price of KV events."
    )
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--replicas", type=int, default=1, help="of which this is one, with its share")
    parser.add_argument("--events-per-s", type=float, default=200.0, help="of each worker")
    parser.add_argument("--groups", type=int, default=1, help="cache groups; 6: five sliding windows")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--residency", action="store_true", help="the fold of events alone")
    parser.add_argument("--events", type=int, default=40_000, help="of each mix of it [%(default)s]")
    parser.add_argument("--blocks", type=int, default=60_000, help="of its engine [%(default)s]")
    parser.add_argument("--repeats", type=int, default=3, help="of each mix [%(default)s]")
    given = parser.parse_args()
    if given.residency:
        print_residency(given)
        return
    for name, figure in asyncio.run(follow(given)).items():
        print(f"{name:30} {figure:12,.1f}")


if __name__ == "__main__":
    main()
