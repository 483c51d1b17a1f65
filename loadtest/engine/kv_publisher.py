"""Batches of KV events on ZeroMQ, as both engines send them (vLLM's distributed/kv_events.py).

    PUB      [topic] [sequence: 8 bytes, big-endian, from 0] [batch]
    ROUTER   asked with [] [sequence to begin with], answers one message per batch that it still has
             SGLang  [] [sequence] [batch]            vLLM  [] [topic] [sequence] [batch]
             and one with sequence -1 and no batch behind the last

Sending never waits: a slow subscriber loses batches, sees the gap and asks again. The replay buffer is
bounded in batches, as in the engines, and in bytes: a batch of a long prompt holds a megabyte of token ids.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import replace

import zmq
import zmq.asyncio

from loadtest.engine.kv_settings import KvEventsSettings

logger = logging.getLogger(__name__)

_END = (-1).to_bytes(8, "big", signed=True)
_REPLAY_BYTES_MAX = 256 << 20
_BOUND = ("ipc://", "inproc://")


class KvPublisher:
    """The sockets of one data-parallel rank, opened on the event loop that uses it.

    Args:
        replay_topic: Name the topic in replies to a replay, as vLLM does.

    Attributes:
        settings: The same with the endpoints that were bound, which differ for port 0.

    Raises:
        OSError: An endpoint is taken.
    """

    def __init__(self, settings: KvEventsSettings, *, replay_topic: bool) -> None:
        self._topic = settings.topic.encode()
        self._replay_head = (b"", self._topic) if replay_topic else (b"",)
        self._sequence = 0
        self._sent: deque[tuple[int, bytes]] = deque()
        self._sent_max = settings.buffer_steps
        self._sent_bytes = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router: zmq.asyncio.Socket | None = None
        self._replays: asyncio.Task[None] | None = None
        try:
            self._open(settings)
        except zmq.ZMQError as error:
            self.close()
            raise OSError(f"KV events on {settings.endpoint}: {error}") from error

    def _open(self, settings: KvEventsSettings) -> None:
        self._pub = self._context.socket(zmq.PUB)
        self._pub.set_hwm(settings.hwm)
        endpoint = settings.endpoint
        if "*" in endpoint or "::" in endpoint or endpoint.startswith(_BOUND):
            endpoint = _bind(self._pub, endpoint)
        else:
            self._pub.connect(endpoint)
        replay_endpoint = settings.replay_endpoint
        if replay_endpoint is not None:
            shadow = zmq.asyncio.Context.shadow(self._context.underlying)
            router = self._router = shadow.socket(zmq.ROUTER)
            # A whole replay fits, so that none is cut short without a word.
            router.set_hwm(settings.buffer_steps + 1)
            replay_endpoint = _bind(router, replay_endpoint)
            self._replays = asyncio.get_running_loop().create_task(self._replay(router), name="kv.replay")
        self.settings = replace(settings, endpoint=endpoint, replay_endpoint=replay_endpoint)

    def publish(self, batch: bytes) -> None:
        """Send a batch to the subscribers, and keep it for those that missed it."""
        number = self._sequence
        self._sequence += 1
        self._pub.send_multipart((self._topic, number.to_bytes(8, "big"), batch), zmq.NOBLOCK)
        self._sent.append((number, batch))
        self._sent_bytes += len(batch)
        while self._sent and (len(self._sent) > self._sent_max or self._sent_bytes > _REPLAY_BYTES_MAX):
            self._sent_bytes -= len(self._sent.popleft()[1])

    def close(self) -> None:
        """Close the sockets; batches on their way may be lost, as when a process ends."""
        if self._replays is not None:
            self._replays.cancel()
        if self._router is not None:
            self._router.close(linger=0)
        self._context.destroy(linger=0)

    async def _replay(self, router: zmq.asyncio.Socket) -> None:
        while True:
            request = await router.recv_multipart()
            if len(request) != 3 or len(request[2]) != 8:
                logger.warning("invalid replay request", extra={"event": "kv_replay.invalid"})
                continue
            start = int.from_bytes(request[2], "big")
            for number, batch in self._since(start):
                head = (request[0], *self._replay_head, number.to_bytes(8, "big"))
                await router.send_multipart((*head, batch))
            await router.send_multipart((request[0], *self._replay_head, _END, b""))

    def _since(self, start: int) -> Iterable[tuple[int, bytes]]:
        return [sent for sent in self._sent if sent[0] >= start]


def _bind(socket: zmq.Socket[bytes] | zmq.asyncio.Socket, endpoint: str) -> str:
    """Bind, and tell where: the endpoint as given, with the port that the system chose if it was 0."""
    if "[" in endpoint:
        socket.setsockopt(zmq.IPV6, 1)
    socket.bind(endpoint)
    base, _, port = endpoint.rpartition(":")
    if not endpoint.startswith("tcp://") or port != "0":
        return endpoint
    return f"{base}:{socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(':')[2]}"
