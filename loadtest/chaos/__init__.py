"""What fails on purpose, and how replicas are watched meanwhile.

``python -m loadtest.chaos`` lets all of it happen by chance, or plays what is written down
(`loadtest.chaos.play`); tests in ``tests/chaos`` take single faults. Real sockets and processes on addresses
of this machine; nothing outlives its owner.
"""

from loadtest.chaos.crowd import Crowd, sessions
from loadtest.chaos.faults import FAULTS, Fault, Stage, staged
from loadtest.chaos.replica import Decision, Replica, disagreements, settled
from loadtest.chaos.tcp_proxy import TcpProxy
from loadtest.chaos.valkey import ClusterGroup, SentinelGroup, ValkeyServer
from loadtest.chaos.visitor import End, Visit, visit

__all__ = [
    "FAULTS",
    "ClusterGroup",
    "Crowd",
    "Decision",
    "End",
    "Fault",
    "Replica",
    "SentinelGroup",
    "Stage",
    "TcpProxy",
    "ValkeyServer",
    "Visit",
    "disagreements",
    "sessions",
    "settled",
    "staged",
    "visit",
]
