"""CPU of calls, and calls in a process of their own."""

import time
from collections.abc import Callable, Iterable
from multiprocessing import get_context
from statistics import median
from typing import Any, TypeVar

Answer = TypeVar("Answer")


def mean_us(call: Callable[[int], object], calls: int) -> float:
    """Return the mean CPU of this process in calls with 0, 1, ..., microseconds."""
    began_ns = time.process_time_ns()
    for number in range(calls):
        call(number)
    return (time.process_time_ns() - began_ns) / calls / 1e3


def median_us(call: Callable[[int], object], numbers: Iterable[int]) -> float:
    """Return the median CPU of this process in calls with these numbers, microseconds."""
    spent_ns: list[int] = []
    for number in numbers:
        began_ns = time.process_time_ns()
        call(number)
        spent_ns.append(time.process_time_ns() - began_ns)
    return median(spent_ns) / 1e3


def apart(function: Callable[..., Answer], *arguments: Any) -> Answer:
    """Call a function of a module in a new process, whose memory holds nothing else."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)
