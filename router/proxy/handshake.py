"""TLS handshakes of client connections, which count from the moment they are accepted.

    accepted ──room?──> handshake ──in time──> GatewayProtocol
        └──no──> closed     └──fails, is late, or its place is needed (`Spare`)──> closed

asyncio and uvloop report a TLS connection only after its handshake; without one it would hold a file for a
minute outside every bound. So plain connections are accepted, and handed over again with TLS.
"""

import asyncio
import os
import socket
import ssl
from typing import Any

from uvicorn.protocols.utils import get_remote_addr

from router.proxy.client_protocol import GatewayProtocol
from router.proxy.clients import Client

HANDSHAKE_S_MAX = 10.0
"""Longest handshake, in seconds; shorter if `ClientLimits.read_timeout_s` is."""


class Handshakes:
    """Factory of an HTTPS listener's protocols, in place of the class in ``uvicorn.Config``."""

    def __init__(self, protocol: type[GatewayProtocol], context: ssl.SSLContext) -> None:
        self._protocol = protocol
        self._context = context
        self._open: set[_Handshake] = set()

    def __call__(self, **arguments: Any) -> asyncio.Protocol:
        """Begin a connection."""
        return _Accepted(_Handshake(self._protocol(**arguments), self._context, self._open))

    def end(self) -> None:
        """Close the open handshakes."""
        for handshake in tuple(self._open):
            handshake.vacate()


class _Accepted(asyncio.Protocol):
    """An accepted connection; it ends at once, and its socket goes on with TLS."""

    def __init__(self, handshake: "_Handshake") -> None:
        self._handshake = handshake

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        peer = get_remote_addr(transport)
        try:
            copy = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        except OSError:
            transport.abort()
            return
        copy.settimeout(0)
        if self._handshake.enter(peer[0] if peer else ""):
            self._handshake.begin(copy)
        else:
            copy.close()
        transport.abort()


class _Handshake(asyncio.Protocol):
    def __init__(self, protocol: GatewayProtocol, context: ssl.SSLContext, others: "set[_Handshake]") -> None:
        self._protocol = protocol
        self._context = context
        self._open = others
        self._client: Client | None = None
        self._connection: socket.socket | None = None  # until the event loop has it
        self._task: asyncio.Task[None] | None = None

    def enter(self, peer: str) -> bool:
        protocol = self._protocol
        if protocol.clients is None:
            return True
        self._client = protocol.clients.enter(peer, protocol.spare.make_room)
        return self._client is not None

    def begin(self, connection: socket.socket) -> None:
        protocol = self._protocol
        protocol.spare.add(self)
        self._open.add(self)
        self._connection = connection
        self._task = protocol.loop.create_task(self._shake(connection), name="handshake")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        # No other connection can take its place meanwhile: nothing awaits in between.
        self._leave()
        transport.set_protocol(self._protocol)
        self._protocol.connection_made(transport)

    def vacate(self) -> bool:
        if self._task is None:
            return False
        self._task.cancel()
        self._leave()
        if self._connection is not None:
            self._connection.close()
        return True

    def _leave(self) -> None:
        protocol = self._protocol
        self._task = None
        self._open.discard(self)
        protocol.spare.discard(self)
        if self._client is not None and protocol.clients is not None:
            protocol.clients.leave(self._client)
            self._client = None

    async def _shake(self, connection: socket.socket) -> None:
        protocol = self._protocol
        self._connection = None
        try:
            await protocol.loop.connect_accepted_socket(
                lambda: self,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=min(HANDSHAKE_S_MAX, protocol.limits.read_timeout_s),
            )
        except OSError:  # it failed, and the connection is closed; `ssl.SSLError` is one, too
            self._leave()
