"""`RunStore` beside a naive model that keeps every block by itself."""

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_digest

from loadtest.engine.kv.pieces import window_end
from loadtest.engine.kv.runs import RunStore, Stored

BLOCK, WINDOW = 100, 30


def chain(path: str) -> bytes:
    """Packed chained hashes of a sequence whose blocks are letters."""
    return b"".join(xxh3_64_digest(path[: end + 1].encode()) for end in range(len(path)))


@dataclass
class Object:
    index: int
    used_s: float
    disk: bool = False
    window: bool = False

    @property
    def size(self) -> int:
        return BLOCK + self.window * WINDOW


class NaiveStore:
    """One object per block."""

    def __init__(self, memory: int, disk: int, ttl_s: float | None) -> None:
        self.memory, self.disk, self.ttl_s = memory, disk, ttl_s
        self.objects: dict[bytes, Object] = {}

    def bytes_of(self, *, disk: bool) -> int:
        return sum(each.size for each in self.objects.values() if each.disk is disk)

    def keys(self, blocks: bytes, start: int, end: int) -> list[tuple[int, bytes]]:
        return [(index, blocks[8 * index : 8 * index + 8]) for index in range(start, end)]

    def held(self, blocks: bytes, start: int, end: int, window: int) -> int:
        reach = start
        for index, key in self.keys(blocks, start, end):
            if key not in self.objects:
                break
            reach = index + 1
        for boundary in range(reach, start, -1):
            first = boundary - window
            if first < start and not (start == 0 and window):
                continue
            if all(self.objects[key].window for _, key in self.keys(blocks, max(first, 0), boundary)):
                return boundary
        return reach if window == 0 else start

    def store(self, blocks: bytes, start: int, end: int, window_start: int, now_s: float) -> Stored:
        added = windows = 0
        for index, key in self.keys(blocks, start, end):
            if key not in self.objects:
                added += 1
                self.objects[key] = Object(index, now_s)
            each = self.objects[key]
            each.used_s = now_s
            if index >= window_start and not each.window:
                windows += 1
                each.window = True
        self.shrink()
        return Stored(added, windows)

    def read(self, blocks: bytes, start: int, end: int, now_s: float) -> int:
        moved = 0
        for _, key in self.keys(blocks, start, end):
            if key in self.objects:
                each = self.objects[key]
                each.used_s = now_s
                moved += each.size * each.disk
                each.disk = False
        self.shrink()
        return moved

    def touch(self, blocks: bytes, start: int, end: int, now_s: float) -> None:
        for _, key in self.keys(blocks, start, end):
            if key in self.objects:
                self.objects[key].used_s = now_s

    def oldest(self, *, disk: bool) -> bytes:
        candidates = [
            (each.used_s, -each.index, key) for key, each in self.objects.items() if each.disk is disk
        ]
        return min(candidates)[2]

    def shrink(self) -> None:
        while self.bytes_of(disk=False) > self.memory:
            key = self.oldest(disk=False)
            if self.disk:
                self.objects[key].disk = True
            else:
                del self.objects[key]
        while self.bytes_of(disk=True) > self.disk:
            del self.objects[self.oldest(disk=True)]

    def expire(self, now_s: float) -> None:
        if self.ttl_s is not None:
            self.objects = {k: v for k, v in self.objects.items() if v.used_s + self.ttl_s >= now_s}


PATHS = ("a" * 12, "aaaabbbbbbbb", "aaaabbbaaa", "aab", "bbbbbbbb", "bbbba")
steps = st.lists(
    st.tuples(
        st.sampled_from(["store", "store", "store", "held", "read", "touch", "lose"]),
        st.sampled_from(PATHS),
        st.one_of(st.just(0), st.integers(0, 11)),
        st.integers(1, 12),
        st.integers(0, 4),
    ),
    min_size=8,
    max_size=40,
)


@given(steps, st.sampled_from([350, 800, 3000]), st.sampled_from([0, 300, 900]), st.sampled_from([None, 6.0]))
def test_a_store_of_runs_holds_what_a_store_of_single_blocks_holds(
    operations: list[tuple[str, str, int, int, int]], memory: int, disk: int, ttl_s: float | None
) -> None:
    store = RunStore(memory, disk, BLOCK, WINDOW, ttl_s)
    naive = NaiveStore(memory, disk, ttl_s)
    for now, (name, path, first, last, window) in enumerate(operations):
        blocks = chain(path)
        start, end = min(first, len(path)), min(last, len(path))
        now_s = float(now)
        if name == "lose" and disk == 0:
            store.lose(lambda packed: np.flatnonzero(np.frombuffer(packed, "<u8") % 5 == 0).tolist())
            naive.objects = {
                key: each for key, each in naive.objects.items() if int.from_bytes(key, "little") % 5
            }
        elif name == "lose" or start >= end:
            continue
        else:
            naive.expire(now_s)
            if name == "store":
                window_start = max(start, end - window)
                spans = [(window_start, end)] if window else []
                assert store.store(b"", blocks, start, end, spans, now_s) == naive.store(
                    blocks, start, end, window_start, now_s
                )
            elif name == "read":
                assert store.read(b"", blocks, start, end, now_s) == naive.read(blocks, start, end, now_s)
            elif name == "touch":
                store.touch(b"", blocks, start, end, now_s)
                naive.touch(blocks, start, end, now_s)
            reach, windows = store.reach(b"", blocks, start, end, now_s)
            assert window_end(windows, start, reach, window) == naive.held(blocks, start, end, window)
        assert store.memory_bytes == naive.bytes_of(disk=False) <= memory
        assert store.disk_bytes == naive.bytes_of(disk=True) <= disk
