"""Freed memory, in processes of their own: the thresholds of glibc are those of a whole process."""

import asyncio
import gc
import os
import platform
import subprocess
import sys

import pytest

from router import freed_memory
from router.freed_memory import GIVE_BACK_EVERY_S, give_back_freed_memory, give_back_while_idle

ROUNDS = """
import resource
from router.freed_memory import give_back_freed_memory, keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bodies = [bytearray(b"x") * (4 << 20) for _ in range(4)]
    del bodies
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def pages():
    return int(open("/proc/self/statm").read().split()[1])

faults(), faults()
usual = faults()
keep_freed_memory()
faults()
kept, before = faults(), pages()
give_back_freed_memory()
print(usual, kept, before - pages())
"""
"""A round makes and frees four bodies of 4 MB."""

PAGES = (16 << 20) // os.sysconf("SC_PAGE_SIZE")


def rounds(**environ: str) -> list[int]:
    """Faults of a round before and after memory is kept, and pages that are given back then."""
    command = [sys.executable, "-c", ROUNDS]
    run = subprocess.run(command, env={**os.environ, **environ}, check=True, capture_output=True, text=True)
    return [int(number) for number in run.stdout.split()]


glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries keep no memory")


@glibc
def test_freed_bodies_are_kept_for_the_next_and_given_back_on_request() -> None:
    usual, kept, given_back = rounds()
    assert usual > 0, "glibc trims the heap by itself from 8 MB on"
    assert kept < usual / 10
    assert given_back > PAGES * 0.9


@glibc
@pytest.mark.parametrize(
    "setting",
    [
        {"MALLOC_TRIM_THRESHOLD_": "131072"},
        {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=131072"},
    ],
    ids=["variable", "tunable"],
)
def test_a_setting_of_the_user_stays(setting: dict[str, str]) -> None:
    usual, kept, _ = rounds(**setting)
    assert kept > usual / 2


async def test_memory_is_given_back_once_in_each_idle_time() -> None:
    ended = iter((0, 0, 0, 7, 9, 9, 9, 9))  # before the first look, and at each
    busy = iter((0, 1, 0))  # where none ended since the look before
    waits: list[float] = []
    given_back: list[int] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 8:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await give_back_while_idle(
            lambda: next(ended), lambda: next(busy), lambda: given_back.append(len(waits)), sleep
        )
    assert given_back == [1, 6]
    assert waits == [GIVE_BACK_EVERY_S] * 8


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that it does not have is an AttributeError of ctypes."""
    monkeypatch.setattr(freed_memory, "_libraries", object)
    give_back_freed_memory()


@glibc
def test_giving_back_again_and_again_leaves_no_garbage() -> None:
    """It happens 17,000 times a day in a process that makes little else."""
    give_back_freed_memory()
    gc.collect()
    give_back_freed_memory()
    assert gc.collect() == 0
