"""The router benchmark kit: installation, and one visit to one peer.

The kit is a read-only folder beside the repository; it builds into ``BENCH_HOME``. It pins a router to one
CPU and the rest to another, runs workloads, and writes one JSON line for each repetition:

    visit ──> bench.py ──> mock, lg        on one CPU
                 │   └───> a router        on another, with all its children
                 └─ a JSON line for each repetition ──> `Repetition`

On SIGTERM bench.py ends all that it started; `ChildProcess` sends it even if we are killed.
"""

import asyncio
import contextlib
import os
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loadtest.bench.peers.descendants import descendants_ended
from loadtest.bench.peers.field import CACHEWAY, PEERS, Peer
from loadtest.bench.peers.machine import cacheway_version, nginx_version, package_version
from loadtest.bench.peers.results import Repetition
from router.child_process import ChildProcess

ENGINE_PORTS = (9001, 9002, 9003, 9004)
ROUTER_PORT = 9100
METRICS_PORT = 9190  # of the Rust routers
PORTS = (*ENGINE_PORTS, ROUTER_PORT, METRICS_PORT)
TOOLS = ("mock", "lg")
# bench.py gives a router 4 s before it kills it, and has its engines to end as well.
END_TIMEOUT_S = 20.0
POLL_S = 0.2
LOG_LINES = 5


class KitFailed(Exception):
    """Nothing can be measured; the message says what to do about it."""


@dataclass(frozen=True, slots=True)
class _Latencies:
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class _Line:
    """One line of bench.py; only ``error`` beside the first ones if the load generator failed."""

    wl: str
    cpu_ms_per_req: float
    rss_mb: float
    cpu_us_per_chunk: float | None = None
    completed: int = 0
    errors: int = 0
    non200: int = 0
    bad_streams: int = 0
    rps: float = 0.0
    lat_ms: _Latencies | None = None
    transit_ms: _Latencies | None = None


@dataclass(frozen=True, slots=True)
class Kit:
    """The kit in ``folder``, its installation in ``home``, and the ports that it and the routers use."""

    folder: Path
    home: Path
    ports: tuple[int, ...] = PORTS

    @property
    def present(self) -> bool:
        """True if there is a kit."""
        return (self.folder / "bench.py").is_file()

    @property
    def log(self) -> Path:
        """Output of bench.py at the last visit."""
        return self.home / "run" / "bench.log"

    def missing(self, peers: Sequence[str]) -> list[str]:
        """Parts of the installation that these peers need and that are not there."""
        parts = [] if all((self.home / tool).is_file() for tool in TOOLS) else ["tools"]
        for peer in PEERS:
            wanted = peer.key in peers and peer.part and peer.part not in parts
            if wanted and not (self.home / peer.binary).is_file():
                parts.append(peer.part)
        return parts

    def install(self, parts: Sequence[str]) -> None:
        """Install parts, with output on the terminal; `KitFailed` if that fails."""
        command = [str(self.folder / "install_peers.sh"), *parts]
        done = subprocess.run(command, env=self._environment(), check=False)  # noqa: S603 - the kit's own
        if done.returncode:
            raise KitFailed(f"installing {', '.join(parts)} failed; what it says above is the reason")

    def versions(self, peers: Sequence[str]) -> dict[str, str]:
        """Return the versions of these peers, by package; `KitFailed` if one is not installed properly."""
        found = {}
        for peer in PEERS:
            if peer.key in peers and peer.package not in found:
                try:
                    found[peer.package] = self._version(peer)
                except (OSError, subprocess.CalledProcessError) as error:
                    raise KitFailed(f"{peer.package} does not tell its version: {error}") from error
        return found

    def _version(self, peer: Peer) -> str:
        binary = self.home / peer.binary
        match peer.part:
            case "":
                return cacheway_version(Path(__file__).parent)
            case "nginx":
                return nginx_version(binary)
            case _:
                return package_version(binary.with_name("python"), peer.package)

    async def visit(
        self,
        peer: str,
        workloads: Sequence[str],
        *,
        round_number: int,
        seconds: float,
        keep: Callable[[Repetition], None],
    ) -> None:
        """Start a peer, run each workload once, end the peer.

        ``seconds`` holds for workloads without a length of their own. ``keep`` gets every repetition as it
        comes, and None for a peer that does not come up: `log` says why. `KitFailed` if there are not two
        CPUs, the ports are in use, or the kit itself failed.
        """
        cpus = sorted(os.sched_getaffinity(0))
        if len(cpus) < 2:
            raise KitFailed("two CPUs are needed: one for the router, one for the load")
        _refuse_taken(self.ports)
        with tempfile.TemporaryDirectory(prefix="cacheway-bench-") as directory:
            lines = Path(directory) / "lines.jsonl"
            lines.touch()
            command = [sys.executable, str(self.folder / "bench.py"), "--peers", peer, "--reps", "1"]
            command += ["--workloads", ",".join(workloads), "--dur", str(seconds), "--out", str(lines)]
            command += ["--load-cpu", str(cpus[0]), "--peer-cpu", str(cpus[1])]
            command += ["--cmd", f"{CACHEWAY}={shlex.join(cacheway_command())}"]
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("wb") as log, lines.open("rb") as written:
                process = await ChildProcess.start(*command, log=log, environment=self._environment())
                try:
                    ended = False
                    while not ended:
                        # Asked before reading, so that what was written last is read as well.
                        ended = process.returncode is not None
                        for line in written:
                            keep(_repetition(peer, line, round_number))
                        if not ended:
                            await asyncio.sleep(POLL_S)
                finally:
                    with contextlib.ExitStack() as stack:
                        if process.returncode is None:
                            # It forgets a router that it still waits for.
                            stack.enter_context(descendants_ended(process.pid))
                        await process.end(END_TIMEOUT_S)
        if process.returncode:
            raise KitFailed(f"bench.py ended with status {process.returncode}: {self.last_words()}")

    def last_words(self) -> str:
        """The end of `log`."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_LINES:])

    def _environment(self) -> dict[str, str]:
        # The user's own CACHEWAY_* settings are for the user's own gateway.
        ours = {key: value for key, value in os.environ.items() if not key.startswith("CACHEWAY_")}
        return {**ours, "BENCH_HOME": str(self.home)}


def cacheway_command() -> list[str]:
    """Return the command of a gateway with its defaults, but for the delay at its end."""
    engines = [f"http://127.0.0.1:{port}" for port in ENGINE_PORTS]
    command = [sys.executable, "-m", "router", "serve", "--host", "127.0.0.1", "--port", str(ROUTER_PORT)]
    return [*command, "--worker-urls", *engines, "--shutdown-delay-secs", "0"]


def _refuse_taken(ports: Sequence[int]) -> None:
    """Refuse ports in use: the other listener would be measured in the router's place."""
    for port in ports:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
            raise KitFailed(f"port {port} of 127.0.0.1 is taken; end what listens there")


def _repetition(peer: str, line: bytes, round_number: int) -> Repetition:
    seen = msgspec.json.decode(line, type=_Line)
    whole, chunk = seen.lat_ms, seen.transit_ms
    answered = seen.completed - seen.non200 - seen.bad_streams
    # An idle load generator is a failure too, and the reason is in its own words in bench.py's log.
    failed = seen.errors + seen.non200 + seen.bad_streams or int(not answered)
    return Repetition(
        peer=peer,
        workload=seen.wl,
        round_number=round_number,
        completed=answered,
        failed=failed,
        cpu_us_per_request=1e3 * seen.cpu_ms_per_req,
        cpu_us_per_chunk=seen.cpu_us_per_chunk,
        per_s=seen.rps,
        p50_ms=whole.p50 if whole else None,
        p99_ms=whole.p99 if whole else None,
        chunk_p50_ms=chunk.p50 if chunk else None,
        chunk_p99_ms=chunk.p99 if chunk else None,
        rss_mib=seen.rss_mb,
    )
