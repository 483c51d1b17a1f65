"""Made-up results of benchmarks."""

from dataclasses import replace

from loadtest.bench.peers.field import DIRECT, PEERS, WORKLOADS, Figure
from loadtest.bench.peers.machine import Machine
from loadtest.bench.peers.results import Repetition, Results, Run

RUN = Run(
    date="2026-01-02",
    machine=Machine(cpu="Some CPU", cpus=2, kernel="Linux 6.1", python="CPython 3.11.7"),
    versions={"cacheway": "0.1.0", "nginx": "1.22.1"},
    rounds=1,
    seconds=2.0,
)

ONE = Repetition(
    peer="cacheway",
    workload="W1",
    round_number=0,
    completed=1000,
    failed=0,
    cpu_us_per_request=50.0,
    cpu_us_per_chunk=None,
    per_s=20_000.0,
    p50_ms=3.0,
    p99_ms=9.0,
    chunk_p50_ms=None,
    chunk_p99_ms=None,
    rss_mib=100.0,
)


def measured(**cpu_us: float) -> Results:
    """Every peer in every workload once, where all cost the same but for W1 of those named."""
    repetitions = [replace(ONE, peer=DIRECT, workload="W6", p50_ms=2.5, p99_ms=5.0)]
    for peer in PEERS:
        for workload in WORKLOADS:
            chunk = 20.0 if workload.figure is Figure.CPU_PER_CHUNK else None
            mine = cpu_us.get(peer.key.replace("-", "_"), 50.0) if workload.key == "W1" else 50.0
            repetitions += [
                replace(ONE, peer=peer.key, workload=key, cpu_us_per_request=mine, cpu_us_per_chunk=chunk)
                for key in (workload.key, workload.fill)
                if key
            ]
    return Results(RUN, repetitions)
