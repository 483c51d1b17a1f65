"""What fails on purpose: Valkey servers, and the network in front of them.

For the tests in ``tests/chaos`` and for ``python -m loadtest.bench.faults``. Real processes and real
sockets on 127.0.0.1; nothing outlives its owner.
"""

from loadtest.chaos.tcp_proxy import TcpProxy
from loadtest.chaos.valkey import ClusterGroup, SentinelGroup, ValkeyServer

__all__ = ["ClusterGroup", "SentinelGroup", "TcpProxy", "ValkeyServer"]
