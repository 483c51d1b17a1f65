"""HTTP/1.1 streaming between client and worker."""

from router.proxy.client_protocol import GatewayProtocol, IsProxied, make_protocol
from router.proxy.ending import Ending
from router.proxy.headers import lines_of
from router.proxy.limits import ClientLimits
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
    "Ending",
    "Exchange",
    "GatewayProtocol",
    "Header",
    "IsProxied",
    "StartExchange",
    "UpstreamRequest",
    "UpstreamSink",
    "UpstreamTimeouts",
    "WorkerPool",
    "lines_of",
    "make_protocol",
]
