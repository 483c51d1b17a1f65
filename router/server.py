"""Server of one process, which ends without a failed request if it is given the time.

    serving --SIGTERM--> leaving --shutdown_delay_s--> finishing --all answered--> ended, status 0
       |                    |                             |  `-- shutdown_grace_s --> cut --^
       `------ SIGINT: no delay, a person waits ----------^
       a second signal, or SIGQUIT, at any time -----------> cut --> ended, status 128 + signal

*Leaving*: readiness answers 503 and every answer tells its client to close (`router.proxy.Ending`), so that
load balancers turn away before a connection is refused; new requests are still served. *Finishing*: new
connections are refused, requests in flight go on. *Cut*: streams end with an error event, other requests with
an error or a closed connection. The lifespan leaves the shared log last, in bounded time.

128 + signal is the status of a process that a signal killed, as shells and container runtimes report it.

A process of ``--workers`` has an owner (`router.supervisor`). A terminal or systemd may signal both, so a
repeated SIGTERM or SIGINT means nothing here; the owner counts them, and cuts with SIGQUIT. If the owner
dies, the process ends as after SIGTERM, so that none stays on the port unwatched.
"""

import asyncio
import contextlib
import logging
import multiprocessing
import signal
import socket
import sys
from collections.abc import Callable, Generator, Iterator
from types import FrameType
from typing import TYPE_CHECKING

from router.patient_server import PatientServer
from router.proxy import GatewayProtocol

if TYPE_CHECKING:
    from router.serving import GatewayConfig

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)

POLL_S = 0.05
"""Time between two checks for open connections, in seconds."""


class EarlyEnd:
    """Handler of SIGTERM while a process starts: it ends the process and closes what is open.

    Python drops an exception that a handler raises inside a finalizer or a callback of its own, and the
    process goes on. So the handler remembers (``told``), and `signals_to` ends the process later.
    """

    def __init__(self) -> None:
        self.told = False

    def __call__(self, _signal: int, _frame: FrameType | None) -> None:
        """Remember the signal, and try to end now."""
        self.told = True
        sys.exit(0)


@contextlib.contextmanager
def signals_to(handle: Callable[[int], None]) -> Iterator[None]:
    """Handle `SIGNALS` in the running event loop, in the main thread; afterwards as before.

    A SIGTERM that an `EarlyEnd` remembers is handled now.
    """
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        loop.add_signal_handler(number, handle, number)
    early = before[signal.SIGTERM]
    if isinstance(early, EarlyEnd) and early.told:
        handle(signal.SIGTERM)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


class GatewayServer(PatientServer):
    """uvicorn's server, which leaves before it closes. Serve with it once, in a running event loop.

    ``status`` is the exit status after serving. If ``supervised``, an owner counts the signals.
    """

    config: "GatewayConfig"

    def __init__(self, config: "GatewayConfig") -> None:
        super().__init__(config)
        self.status = 0
        self.supervised = False
        self._told = False
        self._cut = False

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Hear signals, and of the owner's end."""
        with signals_to(self.handle_exit):
            owner = multiprocessing.parent_process()
            if owner is None:
                yield
                return
            self.supervised = True
            # It was started with its signals blocked (`router.supervisor`).
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            loop = asyncio.get_running_loop()
            loop.add_reader(owner.sentinel, self._orphaned, owner.sentinel)
            try:
                yield
            finally:
                loop.remove_reader(owner.sentinel)

    def handle_exit(self, sig: int, frame: FrameType | None = None) -> None:
        """A signal came."""
        if sig == signal.SIGQUIT or (self._told and not self.supervised):
            self.status = 128 + sig
            self.end_now()
        elif not self._told:
            self.end(signal.Signals(sig).name, at_once=sig == signal.SIGINT)

    def end(self, reason: str, *, at_once: bool = False) -> None:
        """Begin to end: serve on, but ask every client to leave.

        New connections are refused now if ``at_once``, as after Ctrl-C; else after ``shutdown_delay_s``.
        """
        self._told = True
        if not self.started:
            self.should_exit = True  # no client was told that this replica is ready
            return
        process = self.config.process
        server = process.settings.server
        delay_s = 0.0 if at_once else server.shutdown_delay_s
        logger.info(
            "shutting down: not ready any more",
            extra={
                "event": "gateway.stopping",
                "reason": reason,
                "replica": process.replica,
                "delay_s": delay_s,
                "grace_s": server.shutdown_grace_s,
                "inflight": process.gateway.sending.inflight,
                "connections": len(self.server_state.connections),
            },
        )
        process.ending.begin(delay_s)
        for connection in tuple(self.server_state.connections):
            connection.shutdown()
        asyncio.get_running_loop().call_later(delay_s, self._close)

    def end_now(self) -> None:
        """Cut all requests in flight, whether or not the end had begun."""
        self._told = self._cut = self.should_exit = True
        self._cut_connections()

    def _close(self) -> None:
        self.should_exit = True  # `shutdown` follows

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the listener, wait for the requests in flight, then end the application."""
        self.config.process.ending.begin()
        grace_s = 0.0 if self._cut else self.config.process.settings.server.shutdown_grace_s
        timer = asyncio.get_running_loop().call_later(grace_s, self._cut_connections)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()
            if self.config.handshakes is not None:
                self.config.handshakes.end()

    async def _wait_tasks_to_complete(self) -> None:
        """Wait until all requests are served; `_cut_connections` bounds it.

        uvicorn would also wait for its listeners, and they for clients that do not finish their TLS
        handshake.
        """
        while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110 - uvicorn's sets
            await asyncio.sleep(POLL_S)

    def _cut_connections(self) -> None:
        picker = self.config.process.picker
        if picker is not None:
            picker.cut()
        connections = tuple(self.server_state.connections)
        if not connections:
            return
        process = self.config.process
        logger.warning(
            "connections are cut",
            extra={
                "event": "gateway.cut",
                "replica": process.replica,
                "inflight": process.gateway.sending.inflight,
                "connections": len(connections),
            },
        )
        for connection in connections:
            assert isinstance(connection, GatewayProtocol)
            connection.cut()
        for task in self.server_state.tasks:
            task.cancel()

    def _orphaned(self, sentinel: int) -> None:
        """End after the owner died."""
        asyncio.get_running_loop().remove_reader(sentinel)
        self.supervised = False
        logger.warning("the supervisor died", extra={"event": "supervisor.lost"})
        if not self._told:
            self.end("supervisor lost")
