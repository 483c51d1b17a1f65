"""What fails on purpose, and how replicas are watched meanwhile.

For the tests in ``tests/chaos``, and for ``python -m loadtest.bench.faults``, ``loadtest.bench.overload`` and
``loadtest.bench.prefill_decode``; ``python -m loadtest.chaos`` lets all of it happen by chance. Real sockets
and processes on addresses of this machine; nothing outlives its owner.
"""

from loadtest.chaos.crowd import Crowd
from loadtest.chaos.faults import FAULTS, Fault, Stage, staged
from loadtest.chaos.load import Served, SteadyLoad
from loadtest.chaos.overload import OverloadPlan, OverloadRun, run_overload
from loadtest.chaos.pair_promises import judge_pairs
from loadtest.chaos.prefill_decode import PrefillDecodePlan, PrefillDecodeRun, run_prefill_decode
from loadtest.chaos.promises import Promise, judge
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
    "OverloadPlan",
    "OverloadRun",
    "PrefillDecodePlan",
    "PrefillDecodeRun",
    "Promise",
    "Replica",
    "SentinelGroup",
    "Served",
    "Stage",
    "SteadyLoad",
    "TcpProxy",
    "ValkeyServer",
    "Visit",
    "disagreements",
    "judge",
    "judge_pairs",
    "run_overload",
    "run_prefill_decode",
    "settled",
    "staged",
    "visit",
]
