"""Faults on purpose, and observation of replicas meanwhile, with real sockets and processes.

``python -m loadtest.chaos`` draws faults or plays a script (`loadtest.chaos.play`); tests in ``tests/chaos``
take single faults. Nothing outlives its owner.
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
