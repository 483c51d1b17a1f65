"""Request trace: a file with one JSON line per request, from which `cacheway simulate` replays the traffic.

    exchange ── TraceLine ──> bounded lines ── thread ──> FILE ── full ──> FILE.1, in place of the one before

A line never holds text of a prompt, only its chained block hashes (`radix.blocks`), which carry namespace and
tenant. The name of a session is hashed, too.

The trace is off by default. Its lines go the way of log lines (`router.logs`): those that the disk does not
take in time are dropped and counted. Several processes may write one file: each appends whole lines; the
process that finds it full takes a lock and renames it, and the others notice that the name belongs to another
file. So ``logrotate`` may move it away as well.
"""

import fcntl
import os
import stat
from dataclasses import dataclass
from pathlib import Path

import msgspec

from policies import setting
from router.errors import SettingsError
from router.logs import CLOSE_TIMEOUT_S, LineWriter

LINES_MAX = 2_000
"""Lines kept for the thread, which writes every 20 ms; 1.6 KB each at 30,000 tokens, 43 KB at a million."""


@dataclass(frozen=True)
class RequestTraceRules:
    """File of the request trace, and its size."""

    request_trace: str = setting(
        "",
        "File that gets one JSON line per request, for `cacheway simulate`: its time, lengths, hashes of "
        "blocks and outcome, never prompt text. Several processes may share it. Empty: none.",
    )
    request_trace_bytes_max: int = setting(
        1 << 30,
        "Size at which that file is renamed to FILE.1, which replaces the one before, in bytes: no more than "
        "twice as much is kept. The default is about 600,000 requests of 30,000 tokens.",
        ge=1_000_000,
    )


class TraceLine(msgspec.Struct, frozen=True, gc=False):
    """One ended request.

    Attributes:
        arrived_unix_s: Arrival of its last byte, by the wall clock that all replicas share.
        duration_s: From then to the last byte of the answer.
        ttft_s: From then to the first byte of the answer; None without an answer.
        status: HTTP status of the answer; 499 if the client left.
        outcome: `router.gateway.record.outcome_of`, ``client_left`` or the code of the error.
        model: As the client wrote it.
        session: Hash of the client's session hint; empty without one.
        estimated: True if ``prompt_tokens`` is our estimate, since the engine reported none.
        output_tokens: As reported; of a stream else the number of its pieces; else None.
        cached_tokens: As reported by the engine; None if not reported.
        predicted_tokens: Cached tokens that placement expected.
        worker_id: Worker of the last attempt; empty without one.
        block_tokens: Nominal tokens per block; text has as many as ``prompt_tokens / prompt_blocks`` says.
        prompt_blocks: Length of the prompt in blocks, with the fraction of the last one.
        blocks: Packed hashes of its full blocks, base64; of a batch those of the first prompt.
    """

    arrived_unix_s: float
    duration_s: float
    ttft_s: float | None
    status: int
    outcome: str
    endpoint: str
    model: str
    stream: bool
    session: str
    prompt_tokens: int
    estimated: bool
    output_tokens: int | None
    cached_tokens: int | None
    predicted_tokens: int
    worker_id: str
    attempts: int
    block_tokens: int
    prompt_blocks: float
    blocks: bytes


class RequestTrace(LineWriter):
    """Writer of the trace of one process; it appends to the file, and renames it at ``bytes_max``.

    At most ``lines_max`` lines wait. Raise OSError if the file cannot be opened.
    """

    def __init__(self, path: str, bytes_max: int, lines_max: int = LINES_MAX) -> None:
        self._path = Path(path)
        self._bytes_max = bytes_max
        self._torn = False
        self._encode = msgspec.json.Encoder().encode
        super().__init__(_opened(path), lines_max, thread_name="request-trace")

    def record(self, line: TraceLine) -> None:
        """Take a line, or drop it if too many wait to be written."""
        self.write(self._encode(line) + b"\n")

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Write the remaining lines, for at most ``timeout_s`` seconds, and close the file."""
        super().close(timeout_s)
        if not self._thread.is_alive():
            os.close(self._fd)

    def written(self, data: bytes) -> bool:
        """Write whole lines to the file that has the name now, in the thread; False if they are lost."""
        try:
            if self._moved():
                self._reopen()
            elif self._full():
                fcntl.flock(self._fd, fcntl.LOCK_EX)  # ends when the file is closed
                if not self._moved():
                    self._path.replace(f"{self._path}.1")
                self._reopen()
        except OSError:
            return False
        # A line that a full disk cut off must not spoil the next line.
        written = super().written(b"\n" + data if self._torn else data)
        self._torn = not written
        return written

    def _moved(self) -> bool:
        """Return True if the file's name belongs to another file, or to none."""
        try:
            return not os.path.samestat(self._path.stat(), os.fstat(self._fd))
        except FileNotFoundError:
            return True

    def _full(self) -> bool:
        opened = os.fstat(self._fd)
        return stat.S_ISREG(opened.st_mode) and opened.st_size >= self._bytes_max

    def _reopen(self) -> None:
        old = self._fd
        self._fd = _opened(self._path)
        os.close(old)


def check_request_trace(rules: RequestTraceRules) -> None:
    """Check that the trace can be written, before anything starts; raise SettingsError if it cannot."""
    if not rules.request_trace:
        return
    try:
        os.close(_opened(rules.request_trace))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise SettingsError(
            [f"observability.request_trace: cannot write {rules.request_trace}: {reason}"]
        ) from error


def _opened(path: str | Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
