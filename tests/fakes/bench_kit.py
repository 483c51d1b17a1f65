"""A router benchmark kit that measures nothing, as programs of their own."""

from pathlib import Path

from loadtest.bench.peers.kit import Kit

# Takes the options that the real one takes, and says the same lines.
_BENCH = """
import argparse, json, os, pathlib, signal, sys, time
options = argparse.ArgumentParser()
for name in ("peers", "workloads", "reps", "dur", "out", "load-cpu", "peer-cpu", "cmd"):
    options.add_argument(f"--{name}", required=True)
options = options.parse_args()
home = pathlib.Path(os.environ["BENCH_HOME"])

def measured(workload, **more):
    line = {"peer": options.peers, "wl": workload, "cpu_ms_per_req": 0.05, "rss_mb": 100.0, **more}
    with open(options.out, "a") as out:
        out.write(json.dumps(line) + "\\n")

SOUND = {
    "completed": 1000, "errors": 0, "non200": 0, "bad_streams": 0, "rps": 500.0, "cpu_us_per_chunk": None,
    "lat_ms": {"p50": 3.0, "p90": 4.0, "p99": 9.0}, "transit_ms": None,
}
"""

SOUND = "for workload in options.workloads.split(','): measured(workload, **SOUND)\n"
"""Measures all it is asked for."""


def bench_kit(directory: Path, body: str = SOUND) -> Kit:
    """Make a kit whose bench.py runs ``body``, with routers of version 9.9."""
    folder, home = directory / "kit", directory / "home"
    folder.mkdir()
    (folder / "bench.py").write_text(_BENCH + body)
    _program(folder / "install_peers.sh", 'echo "$@" > "$BENCH_HOME/installed"')
    (home / "run").mkdir(parents=True)
    for tool in ("mock", "lg"):
        _program(home / tool, "")
    for venv, router in (("v-sglang", "sglang-router"), ("v-smg", "smg")):
        (home / venv / "bin").mkdir(parents=True)
        _program(home / venv / "bin" / router, "")
        _program(home / venv / "bin" / "python", "echo 9.9")
    return Kit(folder, home, ports=())


def _program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
