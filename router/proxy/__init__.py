"""HTTP/1.1 streaming between client and worker."""

from router.proxy.answer import error_answer, retry_after
from router.proxy.client_protocol import Ending, GatewayProtocol, IsProxied, make_protocol
from router.proxy.clients import ClientQuota, Clients, Refusal
from router.proxy.handshake import Handshakes
from router.proxy.headers import lines_of, may_pass
from router.proxy.held_bytes import HeldBytes
from router.proxy.limits import ClientLimits
from router.proxy.ports import (
    ClientConnection,
    ClientRequest,
    Exchange,
    Header,
    JudgeHead,
    SendRequest,
    SilentSink,
    StartExchange,
    UpstreamRequest,
    UpstreamSink,
)
from router.proxy.upstream import UpstreamRules, WorkerPool

__all__ = [
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
    "IsProxied",
    "JudgeHead",
    "Refusal",
    "SendRequest",
    "SilentSink",
    "StartExchange",
    "UpstreamRequest",
    "UpstreamRules",
    "UpstreamSink",
    "WorkerPool",
    "error_answer",
    "lines_of",
    "make_protocol",
    "may_pass",
    "retry_after",
]
