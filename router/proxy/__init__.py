"""HTTP/1.1 streaming between client and worker."""

from router.proxy.client_protocol import ClientLimits, GatewayProtocol, make_protocol
from router.proxy.ports import (
    ClientConnection,
    ClientRequest,
    Exchange,
    Header,
    StartExchange,
    UpstreamRequest,
    UpstreamSink,
)
from router.proxy.upstream import UpstreamTimeouts, WorkerPool

__all__ = [
    "ClientConnection",
    "ClientLimits",
    "ClientRequest",
    "Exchange",
    "GatewayProtocol",
    "Header",
    "StartExchange",
    "UpstreamRequest",
    "UpstreamSink",
    "UpstreamTimeouts",
    "WorkerPool",
    "make_protocol",
]
