"""What following KV events costs: many engines' real encodings on real sockets, and one process that follows.

    publishers (one process)  ──ZeroMQ──>  follower (this process)  ──operations──>  a second fold

Each engine is a small model of one: prompts that are stored whole, extended by a turn, and the oldest
evicted, told as vLLM tells it (maps; one removal per block and group, one store per span and group). Printed
are, over the time measured: batches and events that came, the CPU that this process used as a share of one
core, how late its event loop was, operations and bytes for the log, and what another replica pays to apply
them.

    python -m loadtest.bench.kv_events [--workers 200] [--events-per-s 200] [--groups 1|6] [--seconds 20]
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import random
import ssl
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import msgspec
import numpy as np
import zmq

from policies import FleetRules, FleetState, Op, WorkerPut, decode_ops, encode_op, encode_ops
from router.destinations import Destinations
from router.fleet import Core, LocalWorker, Registry, ServedModel
from router.fleet.kv_events import KvEvents, State
from router.fleet.kv_events.following import FollowingRules
from router.gateway.identity import PromptHasher
from router.shared import LogPort, LogStatus

BLOCK = 32
TREE_BLOCK = 64
PROMPT_BLOCKS = 40
TURN_BLOCKS = 8
HELD_SESSIONS = 40
WINDOW = 4
STREAMS = 20
WARM_S = 12.0
"""Until then caches fill, and nothing is removed."""
JOINED_S = 4.0
"""Until then everybody asks for old batches, of which there are none."""


class Engine:
    """One engine's cache, and what it says of a step.

    Args:
        groups: Cache groups: the first of full attention, the others of sliding windows.
        seed: Of its prompts.
    """

    def __init__(self, groups: int, seed: int) -> None:
        self._random = random.Random(seed)
        self._groups = groups
        self._next = seed << 32
        self._sessions: deque[list[int]] = deque()

    def step(self) -> list[dict[str, Any]]:
        """Store one prompt or turn, and remove as much."""
        new = len(self._sessions) < HELD_SESSIONS or self._random.random() < TURN_BLOCKS / PROMPT_BLOCKS
        events: list[dict[str, Any]] = []
        if new and len(self._sessions) >= HELD_SESSIONS:
            gone = self._sessions.popleft()
            for group in range(self._groups):
                kept = gone if group == 0 else gone[-WINDOW:]
                events += (
                    {"type": "BlockRemoved", "block_hashes": [at], "medium": "GPU", "group_idx": group}
                    for at in reversed(kept)
                )
        session = [] if new else self._sessions[self._random.randrange(len(self._sessions))]
        count = PROMPT_BLOCKS if new else TURN_BLOCKS
        hashes = list(range(self._next, self._next + count))
        self._next += count
        ids = [self._random.randrange(150_000) for _ in range(count * BLOCK)]
        for group in range(self._groups):
            full = group == 0
            if not full and session:
                events += (
                    {"type": "BlockRemoved", "block_hashes": [at], "medium": "GPU", "group_idx": group}
                    for at in session[-WINDOW:]
                )
            store: dict[str, Any] = {
                "type": "BlockStored",
                "block_hashes": hashes if full else hashes[-WINDOW:],
                "parent_block_hash": session[-1] if session else None,
                "token_ids": ids,
                "block_size": BLOCK,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
                "group_idx": group,
                "kv_cache_spec_kind": "full_attention" if full else "sliding_window",
            }
            if not full:
                store["kv_cache_spec_sliding_window"] = WINDOW * BLOCK
            events.append(store)
        session.extend(hashes)
        if new:
            self._sessions.append(session)
        return events


def stream(groups: int, seed: int, events: float) -> list[tuple[int, bytes]]:
    """What one engine says until it has told so many events: batches, each with the events so far."""
    engine, told, batches = Engine(groups, seed), 0, []
    while told < events:
        step = engine.step()
        told += len(step)
        batches.append((told, msgspec.msgpack.encode((time.time(), step, 0))))
    return batches


def publish(folder: str, workers: int, groups: int, events_per_s: float, seconds: float) -> None:
    """Be the engines: a process of its own. What they say is made beforehand; `STREAMS` engines differ."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 4 * workers + 100)
    streams = [stream(groups, seed + 1, seconds * events_per_s) for seed in range(min(STREAMS, workers))]
    sockets, routers = [], []
    for number in range(workers):
        socket, router = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
        socket.set_hwm(100_000)
        socket.bind(f"ipc://{folder}/e{number}")
        router.bind(f"ipc://{folder}/r{number}")
        sockets.append(socket)
        routers.append(router)
    sent, began_s = [0] * workers, time.monotonic()
    while True:
        now_s = time.monotonic() - began_s
        for number, router in enumerate(routers):
            if now_s < JOINED_S:
                with contextlib.suppress(zmq.Again):
                    client = router.recv_multipart(zmq.NOBLOCK)[0]
                    router.send_multipart((client, b"", b"", (2**64 - 1).to_bytes(8, "big"), b""))
                continue
            batches, at = streams[number % len(streams)], sent[number]
            # One after the other, not all at once.
            due = (now_s - JOINED_S - number / workers) * events_per_s
            while at < len(batches) and batches[at][0] <= due:
                sockets[number].send_multipart((b"", at.to_bytes(8, "big"), batches[at][1]))
                at += 1
            sent[number] = at
        time.sleep(0.002)


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
    said: list[Op] = []

    def tell(op: Op, *more: Op) -> None:
        for each in (op, *more):
            fleet.apply(each)
            said.append(each)
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
                LogPort(names[0], tell, lambda: time.time_ns() // 1000, lambda: status),
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
        before, began_ops = kv_events.counts(), len(said)
        cpu_s, wall_s, late = time.process_time(), time.monotonic(), []
        while time.monotonic() - wall_s < seconds:
            asked_s = time.monotonic()
            await asyncio.sleep(0.005)
            late.append(time.monotonic() - asked_s - 0.005)
        cpu_s, wall_s = time.process_time() - cpu_s, time.monotonic() - wall_s
        counts = kv_events.counts()
        counts.subtract(before)
        ops = said[began_ops:]
        followed = len(kv_events.followers)
        live = sum(follower.state is State.LIVE for follower in kv_events.followers.values())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    other = FleetState(FleetRules(block_tokens=TREE_BLOCK))
    for op in said[:began_ops]:
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


@contextlib.contextmanager
def publishing(*arguments: Any) -> Iterator[None]:
    """Run the engines in a process of their own."""
    process = multiprocessing.get_context("spawn").Process(target=publish, args=arguments, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--replicas", type=int, default=1, help="of which this is one, with its share")
    parser.add_argument("--events-per-s", type=float, default=200.0, help="of each worker")
    parser.add_argument("--groups", type=int, default=1, help="cache groups; 6: five sliding windows")
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (folder, given.workers, given.groups, given.events_per_s, given.seconds + WARM_S + 2)
        with publishing(*arguments):
            while not Path(folder, f"r{given.workers - 1}").exists():
                time.sleep(0.05)
            figures = asyncio.run(measure(folder, given.workers, given.replicas, given.seconds))
    for name, figure in figures.items():
        print(f"{name:30} {figure:12,.1f}")


if __name__ == "__main__":
    main()
