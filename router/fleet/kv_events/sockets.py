"""The sockets of KV events: a subscription, and questions for old batches.

    SUB      [topic] [number: 8 bytes, big-endian] [batch]
    DEALER   asks [] [number to begin with], and is answered by one message per batch
             vLLM  [] [topic] [number] [batch]      SGLang  [] [number] [batch]      (both are read)
             and one with number -1 behind the last

Sockets are read without waiting: some 2 µs per message, where `zmq.asyncio` takes 30. A drained socket is
*armed*: its file descriptor, which signals only changes since then, wakes the loop. A monitor socket
(``zmq_socket_monitor``) reports connections: a publisher that was away may be another process.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

import zmq
from zmq.utils.monitor import parse_monitor_message

from router.engines.sources import Source
from router.fleet.kv_events.sequence import HELD_MAX

MESSAGE_BYTES_MAX = 64 << 20
"""Longest batch; a longer one closes its connection."""

RECONNECT_MS, RECONNECT_MS_MAX = 100, 2_000
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 10_000, 30_000
"""Heartbeats: time within which a host that vanished silently is noticed."""

SILENCE_S = 3.0
"""Seconds of silence that end an answer. vLLM's publisher looks ten times a second."""

REPLIES_AT_ONCE = 32
"""Batches of an answer that are handed on together."""

Batch = tuple[int, bytes]

_END = -1
_GOOD = zmq.Event.HANDSHAKE_SUCCEEDED
_GONE = zmq.Event.DISCONNECTED


class Subscription:
    """One SUB socket; may raise `OSError`. `wake` is called when it is armed and may have input.

    `connections` counts how often the publisher connected, `invalid` the messages that are no batches.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], source: Source, endpoint: str, wake: Callable[[], None]
    ) -> None:
        self.connected = False
        self.connections = 0
        self.invalid = 0
        self._wake = wake
        self._armed = False
        self._loop = asyncio.get_running_loop()
        self._socket = context.socket(zmq.SUB)
        self._monitor: zmq.Socket[bytes] | None = None
        try:
            _prepare(self._socket, endpoint)
            self._socket.set(zmq.RCVHWM, HELD_MAX)
            self._socket.set(zmq.SUBSCRIBE, source.topic.encode())
            self._monitor = self._socket.get_monitor_socket(_GOOD | _GONE)
            if source.listens:
                self._socket.bind(endpoint)
            else:
                self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise OSError(f"{endpoint}: {error}") from error

    def check(self) -> None:
        """Read connections and disconnections."""
        monitor = self._monitor
        while monitor is not None and _whole(monitor, zmq.EVENTS) & zmq.POLLIN:
            event = parse_monitor_message(monitor.recv_multipart(zmq.NOBLOCK))["event"]
            self.connected = event == _GOOD
            self.connections += event == _GOOD

    def read(self, count_max: int) -> list[Batch]:
        """Return the next batches; fewer than ``count_max`` if there are no more now."""
        receive, batches = self._socket.recv, []
        try:
            for _ in range(count_max):
                receive(zmq.NOBLOCK)
                number = payload = b""
                if self._socket.get(zmq.RCVMORE):
                    number = receive(zmq.NOBLOCK)
                    payload = receive(zmq.NOBLOCK)
                if self._socket.get(zmq.RCVMORE) or len(number) != 8:
                    self.invalid += 1
                    while self._socket.get(zmq.RCVMORE):
                        receive(zmq.NOBLOCK)
                    continue
                batches.append((int.from_bytes(number, "big"), payload))
        except zmq.Again:
            pass
        return batches

    def arm(self) -> None:
        """Call `wake` when there may be input; the socket has been drained."""
        if not self._armed:
            self._armed = True
            for socket in (self._socket, self._monitor):
                if socket is not None:
                    self._loop.add_reader(_whole(socket, zmq.FD), self._ready)

    def disarm(self) -> None:
        """Stop calling `wake`."""
        if self._armed:
            self._armed = False
            for socket in (self._socket, self._monitor):
                if socket is not None:
                    self._loop.remove_reader(_whole(socket, zmq.FD))

    def close(self) -> None:
        """Unsubscribe."""
        self.disarm()
        if self._monitor is not None:
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
        self._socket.close(linger=0)

    def _ready(self) -> None:
        self.disarm()
        self._wake()


async def replay(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: str, start: int, silence_s: float = SILENCE_S
) -> AsyncIterator[list[Batch]]:
    """Ask for the batches from number `start` on, and yield them in order.

    Raises `TimeoutError` if the answer breaks off for `silence_s`, `OSError` for an unusable endpoint.
    """
    socket = context.socket(zmq.DEALER)
    try:
        _prepare(socket, endpoint)
        # Publishers drop messages that do not fit into the connection (ROUTER), so all are taken at once.
        socket.set(zmq.RCVHWM, 2 * HELD_MAX)
        try:
            socket.connect(endpoint)
            socket.send_multipart((b"", start.to_bytes(8, "big")), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            raise OSError(f"{endpoint}: {error}") from error
        over = False
        while not over:
            batches: list[Batch] = []
            while not over and len(batches) < REPLIES_AT_ONCE:
                try:
                    frames = socket.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                if len(frames) < 3 or len(frames[-2]) != 8:
                    continue
                number = int.from_bytes(frames[-2], "big", signed=True)
                over = number == _END
                if number >= 0:
                    batches.append((number, frames[-1]))
            if batches:
                yield batches
            elif not over:
                async with asyncio.timeout(silence_s):
                    await _readable(socket)
    finally:
        socket.close(linger=0)


async def _readable(socket: zmq.Socket[bytes]) -> None:
    """Wait until a drained socket may have input."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    descriptor = _whole(socket, zmq.FD)
    loop.add_reader(descriptor, lambda: None if ready.done() else ready.set_result(None))
    try:
        if not _whole(socket, zmq.EVENTS) & zmq.POLLIN:
            await ready
    finally:
        loop.remove_reader(descriptor)


def _whole(socket: zmq.Socket[bytes], option: int) -> int:
    value = socket.get(option)
    assert isinstance(value, int)
    return value


def _prepare(socket: zmq.Socket[bytes], endpoint: str) -> None:
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
    socket.set(zmq.RECONNECT_IVL, RECONNECT_MS)
    socket.set(zmq.RECONNECT_IVL_MAX, RECONNECT_MS_MAX)
    socket.set(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.set(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
    if "[" in endpoint:
        socket.set(zmq.IPV6, 1)
