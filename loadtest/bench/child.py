"""Functions of the benchmarks that run in child processes: `python -m loadtest.bench.child FUNCTION KIND`.

    owner                                child
    started(function, plan)  --plan-->   await function(plan)
    running.tell(item)       --line-->   heard(kind)
    running.next(kind)       <--line--   say(item)
    running.stop()           --end--->   input_ended()

A line is one value as JSON. A child ends when its function returns.
"""

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec
import uvloop

LINE_BYTES_MAX = 1 << 26
"""Longest line a child may write: a report may hold a figure for each request."""

Item = TypeVar("Item")
Plan = TypeVar("Plan", bound=msgspec.Struct)


class Running:
    """A child process, as its owner sees it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.pid = process.pid
        self._stdin, self._stdout = process.stdin, process.stdout

    def tell(self, item: object) -> None:
        """Write one line to the child."""
        self._stdin.write(msgspec.json.encode(item) + b"\n")

    async def next(self, kind: type[Item]) -> Item | None:
        """Read the child's next line; None when the child has ended."""
        line = await self._stdout.readline()
        return msgspec.json.decode(line, type=kind) if line else None

    def stop(self) -> None:
        """Close the child's input."""
        self._stdin.close()


@asynccontextmanager
async def started(function: Callable[[Plan], Awaitable[None]], plan: Plan) -> AsyncIterator[Running]:
    """Run a function in a child while the body runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadtest.bench.child", _address(function), _address(type(plan))),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_BYTES_MAX,
    )
    running = Running(process)
    try:
        running.tell(plan)
        yield running
    finally:
        running.stop()
        if process.returncode is None:
            process.terminate()
        await process.wait()


def say(item: object) -> None:
    """Write one line to the owner."""
    sys.stdout.buffer.write(msgspec.json.encode(item) + b"\n")
    sys.stdout.buffer.flush()


def heard(kind: type[Item]) -> Item | None:
    """Read the owner's next line, blocking; None when the input has ended."""
    line = sys.stdin.buffer.readline()
    return msgspec.json.decode(line, type=kind) if line else None


async def input_ended() -> None:
    """Wait until the owner closes the input."""
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()
    loop.remove_reader(sys.stdin.fileno())


def _address(item: Callable[..., object]) -> str:
    """Address to import a function or class from, also one of the program itself."""
    module = item.__module__
    spec = sys.modules["__main__"].__spec__
    if module == "__main__" and spec is not None:
        module = spec.name
    return f"{module}:{item.__qualname__}"


def main() -> None:
    """Run one function."""
    function, kind = (
        getattr(importlib.import_module(module), name)
        for module, _, name in (address.partition(":") for address in sys.argv[1:])
    )
    uvloop.run(function(heard(kind)))


if __name__ == "__main__":
    main()
