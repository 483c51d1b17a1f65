"""Child processes that come up, report when they are ready, and end with their owner.

    start -> ready (a line on stdout, or an HTTP path that answers 200) -> SIGTERM -> SIGKILL after a while

The output of a child goes to a file of its own, whose end is part of the message when it does not come up.
Ctrl-C reaches only the owner, and if that is killed its children end, too (`router.child_process`).
"""

import asyncio
import contextlib
import os
import random
import signal
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from router.child_process import ChildProcess

READY_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 5.0
POLL_S = 0.05
LOG_LINES = 15

PORTS = (10_000, 32_000)
"""Ports of servers that are started here; Linux gives 32,768 and above to outgoing connections."""

PORT_TRIES = 100

CLAIMS_MAX = 64
"""Claimed ports of this process; the oldest claim ends first, long after a child listens there."""

_claims: deque[int] = deque()
"""File descriptors of the claims, oldest first."""


class ChildFailed(Exception):
    """A child process did not come up; the message has the end of its log."""


class Child:
    """One ``cacheway`` command as a child process; an async context manager that ends it.

    A gateway has its admin API on the data port, unless its arguments say otherwise: several share a machine.

    Args:
        name: For messages, and of its log file in ``directory``.
        module: Runs instead of ``cacheway``. Files of the current folder do not hide its imports (``-P``).
        within: A command that runs the one behind it, like ``nsenter``, and keeps the process id.
        program: Runs in place of Python and the module.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        directory: Path,
        module: str = "cacheway",
        within: Sequence[str] = (),
        program: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self._command = (*within, *(program or (sys.executable, "-P", "-m", module)), *arguments)
        self._process: ChildProcess | None = None

    @property
    def pid(self) -> int:
        """Process id, once it was started."""
        assert self._process is not None
        return self._process.pid

    async def __aenter__(self) -> Self:
        # The user's own CACHEWAY_* settings are for the user's own gateway.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("CACHEWAY_")}
        environment["CACHEWAY_ADMIN_PORT"] = "0"
        with self.log.open("wb") as log:
            self._process = await ChildProcess.start(*self._command, log=log, environment=environment)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.end()

    async def kill(self) -> None:
        """Kill it (SIGKILL), as an operator or a lack of memory does."""
        assert self._process is not None
        await self._process.end(STOP_TIMEOUT_S, signal.SIGKILL)

    async def end(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End it as an operator does (SIGTERM), and kill it if that takes longer."""
        assert self._process is not None
        await self._process.end(timeout_s)

    async def wait_for_line(self, start: str) -> str:
        """Return the first complete line of its log with this start.

        `ChildFailed` if it ends before, or is late.
        """
        async for _ in self._polls(f"the line {start!r}"):
            for line in self.log.read_text(errors="replace").splitlines(keepends=True):
                if line.startswith(start) and line.endswith("\n"):
                    return line.rstrip()
        raise AssertionError("polls end by raising")

    async def wait_for_answer(self, url: str) -> None:
        """Wait until a URL answers 200; `ChildFailed` if the child ends before, or the URL is late."""
        async with httpx.AsyncClient(trust_env=False, timeout=2.0) as client:
            async for _ in self._polls(url):
                with contextlib.suppress(httpx.TransportError):
                    if (await client.get(url)).status_code == 200:
                        return

    async def _polls(self, awaited: str) -> AsyncIterator[None]:
        """Yield at every poll, until the child ends or the time is over."""
        assert self._process is not None
        loop = asyncio.get_running_loop()
        until_s = loop.time() + READY_TIMEOUT_S
        while True:
            ended = self._process.returncode
            yield
            if ended is not None:
                raise ChildFailed(f"{self.name} ended with status {ended}:\n{self._log_end()}")
            if loop.time() > until_s:
                raise ChildFailed(
                    f"{self.name}: no sign of {awaited} within {READY_TIMEOUT_S:g} s:\n{self._log_end()}"
                )
            await asyncio.sleep(POLL_S)

    def _log_end(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_LINES:])


class GatewayChild(Child):
    """``cacheway serve``, or another module with its flags, on a port of 127.0.0.1."""

    def __init__(
        self,
        name: str,
        flags: Sequence[str],
        directory: Path,
        module: str = "cacheway",
        preferred_port: int = 0,
    ) -> None:
        self.port = free_port(preferred_port)
        self.url = f"http://127.0.0.1:{self.port}"
        listen = ("serve", "--host", "127.0.0.1", "--port", str(self.port))
        super().__init__(name, (*listen, *flags), directory, module)

    async def wait_until_ready(self) -> None:
        """Wait until it serves; `ChildFailed` as `wait_for_answer`."""
        await self.wait_for_answer(f"{self.url}/readiness")


def free_port(preferred: int = 0, *, row: int = 1) -> int:
    """Return a free TCP port of the loopback interface, the preferred one if possible.

    Others are random and below those of outgoing connections, which would take one before a child listens
    there. It is the first of a ``row`` of free ones. They stay claimed (`_claim`): a child takes seconds to
    listen, and two that were given one port would take each other's requests.
    """
    if preferred and all(map(_is_free, range(preferred, preferred + row))):
        return preferred
    chance = random.SystemRandom()
    for _ in range(PORT_TRIES):
        port = chance.randrange(*PORTS)
        if _claim(range(port, port + row)):
            return port
    raise ChildFailed("no free TCP port on 127.0.0.1")


def _is_free(port: int) -> bool:
    """True if a server could listen there now; a connection that ended there is no hindrance."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _claim(ports: Sequence[int]) -> bool:
    """Claim ports against every other process that claims; false if one of them is in use.

    A claim is a bound socket that never listens. It was bound without SO_REUSEADDR, which fails beside any
    other socket, and has the option since, so that a server, which sets it, can listen beside the claim.
    """
    claims: list[socket.socket] = []
    for port in ports:
        claim = socket.socket()
        try:
            claim.bind(("127.0.0.1", port))
        except OSError:
            for each in (claim, *claims):
                each.close()
            return False
        claim.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        claims.append(claim)
    _claims.extend(each.detach() for each in claims)
    while len(_claims) > CLAIMS_MAX:
        os.close(_claims.popleft())
    return True
