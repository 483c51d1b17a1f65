"""HTTP/1.1 streaming between client and worker."""

from router.proxy.answer import Answer, error_answer, retry_after
from router.proxy.client_protocol import Ending, GatewayProtocol, RouteOf, make_protocol
from router.proxy.clients import ClientQuota, Clients, Refusal
from router.proxy.connection import PooledRequest, Upload
from router.proxy.handshake import Handshakes
from router.proxy.headers import CONNECTION_HEADERS, lines_of, may_pass
from router.proxy.held_bytes import HeldBytes
from router.proxy.limits import ClientLimits
from router.proxy.ports import (
    BodySink,
    BodySource,
    ClientConnection,
    ClientRequest,
    Exchange,
    Header,
    JudgeHead,
    RequestHead,
    Route,
    SendRequest,
    SilentSink,
    StartExchange,
    StreamingConnection,
    UpstreamRequest,
    UpstreamSink,
    UpstreamUpload,
    WholeSink,
)
from router.proxy.upstream import UpstreamRules, WorkerPool

__all__ = [
    "CONNECTION_HEADERS",
    "Answer",
    "BodySink",
    "BodySource",
    "ClientConnection",
    "ClientLimits",
    "ClientQuota",
    "ClientRequest",
    "Clients",
    "Ending",
    "Exchange",
    "GatewayProtocol",
    "Handshakes",
    "Header",
    "HeldBytes",
    "JudgeHead",
    "PooledRequest",
    "Refusal",
    "RequestHead",
    "Route",
    "RouteOf",
    "SendRequest",
    "SilentSink",
    "StartExchange",
    "StreamingConnection",
    "Upload",
    "UpstreamRequest",
    "UpstreamRules",
    "UpstreamSink",
    "UpstreamUpload",
    "WholeSink",
    "WorkerPool",
    "error_answer",
    "lines_of",
    "make_protocol",
    "may_pass",
    "retry_after",
]
