"""Logs: one JSON object per line on standard error.

    logger.info("worker ejected", extra={"event": "worker.ejected", ...})  ─┐
    request_log()({"event": "request.finished", ...})  (the fast path)     ─┴─> bounded lines ─> thread ─> fd

    {"time":"2026-11-21T04:00:00.123Z","level":"info","event":"worker.ejected","message":"worker ejected",...}

Callers never wait: a thread writes the lines of a bounded buffer every ``GATHER_S``, in few system calls. A
line wakes it only after a pause without lines, since that costs a system call and a switch. If the output is
blocked, lines are dropped and counted, and serving goes on.

Never log prompt or generated text, or credentials: each caller chooses its fields one by one.
"""

import json
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import repeat
from multiprocessing.util import Finalize

import orjson

from policies import setting
from router.values import LogLevel

LINES_MAX = 20_000
"""Lines kept for the thread: two seconds at 10,000 requests per second, about 10 MB."""

QUEUE_BYTES_MAX = 32 << 20
"""Most bytes kept for the thread; lines beyond either bound are dropped."""

LINE_BYTES_MAX = 64 << 10
"""A longer log line is written with its texts cut: names come from clients and workers."""

TEXT_CHARS_MAX = 1000
"""Characters that are left of each text of such a line."""

GATHER_S = 0.1
"""Between two looks of the thread, each of which may hold up the event loop: it needs the interpreter."""

CLOSE_TIMEOUT_S = 2.0

_RECORD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}
_QUIET = ("httpx", "httpx2", "httpcore", "httpcore2", "uvicorn.access", "uvicorn.error")
"""Loggers that repeat other lines: those of each request, and of the server's start and end."""


@dataclass(frozen=True)
class LogRules:
    """Log lines that are written."""

    log_level: LogLevel = setting("info", "Least severe level that is logged.", live=True, common=True)
    request_logs: bool = setting(
        True,  # noqa: FBT003 - a default
        "Log each request with one line at its end, without prompt text.",
        live=True,
    )
    request_log_ratio: float = setting(
        1.0,
        "Share of the completed requests that are logged, 0 to 1: 0.01 is one in a hundred. Those that "
        "failed or were rejected, and those whose client left, are all logged.",
        live=True,
        ge=0,
        le=1,
    )


def encoded(fields: Mapping[str, object]) -> bytes:
    """Return one JSON object; values that JSON cannot hold become text, so that no line is lost."""
    try:
        return orjson.dumps(fields)
    except TypeError:
        pass
    try:
        return orjson.dumps(fields, default=str, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # a lone surrogate, an integer of more than 64 bits
        return json.dumps(fields, default=str).encode("ascii")


def bounded(fields: Mapping[str, object]) -> bytes:
    """Return one JSON object of at most about `LINE_BYTES_MAX`; longer texts and nested values are cut."""
    try:
        line = orjson.dumps(fields)
    except TypeError:
        line = encoded(fields)
    if len(line) <= LINE_BYTES_MAX:
        return line
    cut = {
        name[:TEXT_CHARS_MAX]: value if value is None or isinstance(value, int | float) else _cut(value)
        for name, value in fields.items()
    }
    line = encoded(cut)
    return line if len(line) <= LINE_BYTES_MAX else encoded({"event": "log.cut", "size_bytes": len(line)})


def _cut(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    left_out = len(text) - TEXT_CHARS_MAX
    return text if left_out <= 0 else f"{text[:TEXT_CHARS_MAX]}... ({left_out} more characters)"


_MILLISECONDS = tuple(f".{millisecond:03d}Z" for millisecond in range(1000))
_FRACTION_CHARS = len(_MILLISECONDS[0])

_MIDDLES = tuple(
    f'{fraction}","level":"info","message":"request finished",'.encode() for fraction in _MILLISECONDS
)
"""Text of a request line between its second and its own fields, by millisecond."""


class TimeText:
    """Formats wall-clock times as RFC 3339 in UTC with milliseconds. Not for several threads at a time."""

    __slots__ = ("_second", "_text")

    def __init__(self) -> None:
        self._second = -1
        self._text = ""

    def __call__(self, unix_s: float) -> str:
        """Format a time."""
        second = int(unix_s)
        if second != self._second:
            self._text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            self._second = second
        return self._text + _MILLISECONDS[int((unix_s - second) * 1000)]


class LineWriter:
    """Writes lines to a file descriptor from a daemon thread; drops and counts those beyond its bounds."""

    def __init__(
        self,
        fd: int,
        lines_max: int = LINES_MAX,
        thread_name: str = "log-writer",
        *,
        queue_bytes_max: int = QUEUE_BYTES_MAX,
    ) -> None:
        self._fd = fd
        self._lines_max = lines_max
        self._queue_bytes_max = queue_bytes_max
        # Each counted by one thread alone: lines taken, and lines written or lost.
        self._taken_bytes = self._free_bytes = 0
        self._drained_bytes = 0
        self._lines: deque[bytes] = deque()
        self._filled = threading.Event()
        self._looks = False
        """True while the thread looks for lines by itself, so that none has to wake it."""
        self._closing = False
        self._dropped = 0
        self._lost = 0
        self._thread = threading.Thread(target=self._run, name=thread_name, daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Lines dropped so far."""
        return self._dropped + self._lost

    def write(self, line: bytes) -> None:
        """Take a line that ends with a newline, or drop it if the buffer is full."""
        taken_bytes = self._taken_bytes + len(line)
        if taken_bytes > self._free_bytes and not self._has_room(taken_bytes):
            self._dropped += 1
            return
        self._taken_bytes = taken_bytes
        self._lines.append(line)
        if not self._looks:
            self._looks = True
            self._filled.set()

    def _has_room(self, taken_bytes: int) -> bool:
        """Return True if a line fits that makes the bytes taken ``taken_bytes``; note how many always fit."""
        lines_left, most_bytes = (
            self._lines_max - len(self._lines),
            self._drained_bytes + self._queue_bytes_max,
        )
        if lines_left <= 0 or taken_bytes > most_bytes:
            return False
        self._free_bytes = min(taken_bytes + lines_left - 1, most_bytes)  # a line has a byte at least
        return True

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Write the remaining lines, for at most ``timeout_s`` seconds; the descriptor stays open."""
        self._closing = True
        self._filled.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        """Write until closed. Only the descriptor can fail, and that is counted."""
        while not self._closing:
            self._filled.wait()
            if not self._closing:
                time.sleep(GATHER_S)
            if not self._lines:
                # In this order: a line that comes later sets it again, and one that came just now is drained.
                self._filled.clear()
                self._looks = False
            self._drain()
        self._drain()

    def _drain(self) -> None:
        lines = self._lines
        while lines:
            batch = list(map(deque.popleft, repeat(lines, min(len(lines), 200))))
            data = b"".join(batch)
            if not self.written(data):
                self._lost += len(batch)
            self._drained_bytes += len(data)

    def written(self, data: bytes) -> bool:
        """Write whole lines, in the thread; False if the system refused."""
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._fd, view) :]
            except BlockingIOError:  # another process made the descriptor non-blocking
                select.select([], [self._fd], [])
            except OSError:
                return False
        return True


class Logs:
    """The logs of one process: a handler for `logging`, and the fast path for request lines."""

    def __init__(self, level: str, fd: int = 2, lines_max: int = LINES_MAX) -> None:
        self._writer = LineWriter(fd, lines_max)
        self._time_text = TimeText()
        self._second = -1
        self._begin = b""
        """Begin of the request lines of this second of wall-clock time."""
        self.use(level)
        self.handler = JsonHandler(self._writer, on_terminal=os.isatty(fd))

    def use(self, level: str) -> None:
        """Take request lines if this level does."""
        self._requests = getattr(logging, level.upper()) <= logging.INFO

    @property
    def dropped(self) -> int:
        """Lines dropped so far, because the output was blocked or failed."""
        return self._writer.dropped

    def request_log(self, fields: Mapping[str, object]) -> None:
        """Log the end of a request at level INFO, from the event loop's thread; ``fields`` hold ``event``."""
        if not self._requests:
            return
        try:
            body = orjson.dumps(fields, None, orjson.OPT_APPEND_NEWLINE)
        except TypeError:
            body = encoded(fields) + b"\n"
        if len(body) > LINE_BYTES_MAX:
            body = bounded(fields) + b"\n"
        unix_ms = time.time_ns() // 1_000_000
        second = unix_ms // 1000
        if second != self._second:
            self._second = second
            self._begin = b'{"time":"%b' % self._time_text(second)[:-_FRACTION_CHARS].encode()
        self._writer.write(self._begin + _MIDDLES[unix_ms % 1000] + body[1:])

    def close(self) -> None:
        """Detach from `logging` and write the remaining lines."""
        logging.getLogger().removeHandler(self.handler)
        self._writer.close()


class JsonHandler(logging.Handler):
    """Turns records of `logging` into lines.

    A record's ``plain`` sentence takes the place of its JSON if ``on_terminal``; otherwise it is left out.
    """

    def __init__(self, writer: LineWriter, *, on_terminal: bool = False) -> None:
        super().__init__()
        self._on_terminal = on_terminal
        self._writer = writer
        self._time_text = TimeText()
        self._exceptions = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; one that cannot be formatted is reported the way `logging` does."""
        try:
            fields = self._fields(record)
            plain = fields.pop("plain", None)
            line = str(plain).encode() if plain and self._on_terminal else bounded(fields)
            self._writer.write(line + b"\n")
        except Exception:  # noqa: BLE001 - the top of a logging call: it must not fail its caller
            self.handleError(record)

    def _fields(self, record: logging.LogRecord) -> dict[str, object]:
        extra = {key: value for key, value in vars(record).items() if key not in _RECORD_FIELDS}
        fields: dict[str, object] = {
            "time": self._time_text(record.created),
            "level": record.levelname.lower(),
            "event": extra.pop("event", "library.logged"),
            "message": record.getMessage(),
            "logger": record.name,
            **extra,
        }
        if record.exc_info:
            fields["exception"] = self._exceptions.formatException(record.exc_info)
        return fields


_logs: Logs | None = None
"""Those of this process. `logging` is one per process too, and this is where its lines go."""


def configure_logs(level: str, fd: int = 2) -> Logs:
    """Write all logs of this process from a level on to one file descriptor, in place of the one before.

    Start uvicorn with ``log_config=None``; its access log is off, since the request line says more.
    """
    global _logs
    if _logs is not None:
        _logs.close()
    _logs = Logs(level, fd)
    # Runs at the end of the main process and, unlike `atexit`, of the children of `multiprocessing`.
    Finalize(_logs, _logs.close, exitpriority=0)
    root = logging.getLogger()
    root.handlers[:] = [_logs.handler]
    log_from(level)
    for name in ("uvicorn", *_QUIET):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.WARNING if name in _QUIET else logging.NOTSET)
    return _logs


def log_from(level: str) -> None:
    """Log from this level on (see `configure_logs`); before that nothing is ours to change."""
    if _logs is not None:
        _logs.use(level)
        logging.getLogger().setLevel(level.upper())


def request_log() -> Callable[[Mapping[str, object]], None]:
    """Return `Logs.request_log`; before `configure_logs` what logs the way `logging` is set up."""
    if _logs is not None:
        return _logs.request_log
    return lambda fields: logging.getLogger(__name__).info("request finished", extra=dict(fields))


def lines_dropped() -> int:
    """Lines of this process dropped so far (`Logs.dropped`)."""
    return 0 if _logs is None else _logs.dropped
