"""What fails on purpose, and how replicas are watched meanwhile.

For the tests in ``tests/chaos`` and for ``python -m loadtest.bench.faults``. Real processes and real
sockets on 127.0.0.1; nothing outlives its owner.
"""

from loadtest.chaos.faults import FAULTS, Fault, Stage, staged
from loadtest.chaos.load import Served, SteadyLoad
from loadtest.chaos.replica import Decision, Replica, disagreements, settled
from loadtest.chaos.tcp_proxy import TcpProxy
from loadtest.chaos.valkey import ClusterGroup, SentinelGroup, ValkeyServer

__all__ = [
    "FAULTS",
    "ClusterGroup",
    "Decision",
    "Fault",
    "Replica",
    "SentinelGroup",
    "Served",
    "Stage",
    "SteadyLoad",
    "TcpProxy",
    "ValkeyServer",
    "disagreements",
    "settled",
    "staged",
]
