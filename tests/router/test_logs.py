"""Logs: one JSON object per line, and no caller waits for the output."""

import logging
import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest

from router.logs import (
    GATHER_S,
    LineWriter,
    Logs,
    TimeText,
    bounded,
    configure_logs,
    encoded,
    log_from,
    request_log,
)

ROOT = Path(__file__).parents[2]


class Pipe:
    """A pipe whose reading end need not be read."""

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe()

    def lines(self) -> list[bytes]:
        """Return all that was written, after the writing end was closed."""
        os.close(self.write_fd)
        with open(self.read_fd, "rb") as file:  # noqa: PTH123 - a descriptor
            return file.read().splitlines()


@pytest.fixture
def pipe() -> Pipe:
    return Pipe()


@pytest.fixture
def untouched_logging() -> Iterator[None]:
    """Restore the process-wide state of `logging`."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def entries(pipe: Pipe) -> list[dict[str, object]]:
    return [orjson.loads(line) for line in pipe.lines()]


@pytest.mark.usefixtures("untouched_logging")
def test_a_record_is_one_line_with_its_event_and_typed_fields(pipe: Pipe) -> None:
    logs = configure_logs("info", pipe.write_fd)
    logging.getLogger("router.fleet").warning(
        "worker %s", "ejected", extra={"event": "worker.ejected", "worker_id": "a:1", "failures": 3}
    )
    logs.close()
    (entry,) = entries(pipe)
    written = datetime.fromisoformat(str(entry.pop("time")))
    assert abs((datetime.now(UTC) - written).total_seconds()) < 60
    assert entry == {
        "level": "warning",
        "event": "worker.ejected",
        "message": "worker ejected",
        "logger": "router.fleet",
        "worker_id": "a:1",
        "failures": 3,
    }


@pytest.mark.usefixtures("untouched_logging")
def test_an_exception_stays_on_the_same_line(pipe: Pipe) -> None:
    logs = configure_logs("info", pipe.write_fd)
    try:
        int("broken\nhere")
    except ValueError:
        logging.getLogger("somebody").exception("it failed")
    logs.close()
    (entry,) = entries(pipe)
    assert entry["event"] == "library.logged"
    assert str(entry["exception"]).endswith(
        r"ValueError: invalid literal for int() with base 10: 'broken\nhere'"
    )


@pytest.mark.usefixtures("untouched_logging")
def test_less_severe_levels_are_not_written(pipe: Pipe) -> None:
    logs = configure_logs("warning", pipe.write_fd)
    logging.getLogger("router").info("quiet")
    logs.request_log({"event": "request.finished"})
    logging.getLogger("router").warning("loud")
    logs.close()
    assert [entry["message"] for entry in entries(pipe)] == ["loud"]


@pytest.mark.usefixtures("untouched_logging")
def test_the_level_may_change_while_lines_are_written(pipe: Pipe) -> None:
    logs = configure_logs("info", pipe.write_fd)
    for level in ("warning", "debug"):
        log_from(level)
        logging.getLogger("router").debug("quiet at first")
        request_log()({"event": "request.finished"})
    logs.close()
    assert [entry["message"] for entry in entries(pipe)] == ["quiet at first", "request finished"]


@pytest.mark.usefixtures("untouched_logging")
def test_of_the_servers_own_lines_only_warnings_come(pipe: Pipe) -> None:
    logs = configure_logs("info", pipe.write_fd)
    logging.getLogger("uvicorn.error").info("Started server process")
    logging.getLogger("uvicorn.error").warning("trouble")
    logging.getLogger("uvicorn.access").info("GET /")
    logging.getLogger("httpx").info("HTTP Request: GET")
    logging.getLogger("httpx2").info("HTTP Request: GET")
    logs.close()
    assert [entry["message"] for entry in entries(pipe)] == ["trouble"]


@pytest.mark.usefixtures("untouched_logging")
def test_a_plain_sentence_takes_the_place_of_json_on_a_terminal_only(pipe: Pipe) -> None:
    ours, theirs = pty.openpty()
    for fd in (theirs, pipe.write_fd):
        logs = configure_logs("info", fd)
        logging.getLogger("router").info("serving", extra={"event": "e", "plain": "It serves."})
        logs.close()
    seen = os.read(ours, 1000)
    os.close(ours)
    os.close(theirs)

    assert seen == b"It serves.\r\n"
    (entry,) = entries(pipe)
    assert (entry["message"], entry["event"], "plain" in entry) == ("serving", "e", False)


def test_a_request_line_holds_its_fields(pipe: Pipe) -> None:
    logs = Logs("info", pipe.write_fd)
    logs.request_log(
        {"event": "request.finished", "request_id": "r1", "status": 200, "ttft_s": 0.25, "model": None}
    )
    logs.close()
    (entry,) = entries(pipe)
    assert entry.pop("time")
    assert entry == {
        "level": "info",
        "message": "request finished",
        "event": "request.finished",
        "request_id": "r1",
        "status": 200,
        "ttft_s": 0.25,
        "model": None,
    }


def test_lines_keep_their_order_and_none_is_lost(pipe: Pipe) -> None:
    logs = Logs("info", pipe.write_fd)
    for number in range(500):
        logs.request_log({"event": "e", "number": number})
    logs.close()
    assert [entry["number"] for entry in entries(pipe)] == list(range(500))
    assert logs.dropped == 0


def test_a_line_after_a_pause_is_written(pipe: Pipe) -> None:
    """The thread has stopped looking by then: the line wakes it."""
    writer = LineWriter(pipe.write_fd)
    for line in (b"one\n", b"two\n"):
        writer.write(line)
        assert os.read(pipe.read_fd, 100) == line
        time.sleep(3 * GATHER_S)
        assert not writer._looks
    writer.close()


def test_a_blocked_output_drops_lines_and_blocks_nobody(pipe: Pipe) -> None:
    """The pipe is not read: only lines in the kernel, the thread and the buffer of 10 lines are kept."""
    writer = LineWriter(pipe.write_fd, lines_max=10)
    line = b"x" * 1023 + b"\n"
    for _ in range(5000):
        writer.write(line)
    assert writer.dropped > 4000
    kept = 5000 - writer.dropped

    received: list[list[bytes]] = []
    reader = threading.Thread(target=lambda: received.append(_read_lines(pipe.read_fd, kept)))
    reader.start()
    writer.close(timeout_s=60)
    reader.join(timeout=60)
    assert received == [[line[:-1]] * kept]
    os.close(pipe.write_fd)


def _read_lines(fd: int, count: int) -> list[bytes]:
    with open(fd, "rb") as file:
        return [file.readline().rstrip() for _ in range(count)]


def test_a_closed_output_is_counted_not_raised(pipe: Pipe) -> None:
    os.close(pipe.read_fd)
    writer = LineWriter(pipe.write_fd)
    writer.write(b"lost\n")
    writer.close()
    assert writer.dropped == 1
    os.close(pipe.write_fd)


def test_a_non_blocking_output_is_waited_for(pipe: Pipe) -> None:
    """200 lines of 1 KiB do not fit into the pipe at once."""
    os.set_blocking(pipe.write_fd, False)
    writer = LineWriter(pipe.write_fd)
    for _ in range(200):
        writer.write(b"x" * 1023 + b"\n")
    received: list[list[bytes]] = []
    reader = threading.Thread(target=lambda: received.append(_read_lines(pipe.read_fd, 200)))
    reader.start()
    writer.close(timeout_s=60)
    reader.join(timeout=60)
    assert len(received[0]) == 200
    os.close(pipe.write_fd)


@pytest.mark.parametrize("value", ["\ud800", 2**70, {1, 2}, {2: "x"}, b"bytes", object()])
def test_no_value_makes_a_line_impossible(value: object) -> None:
    line = encoded({"event": "e", "value": value})
    assert line.startswith(b'{"event":')
    assert b"\n" not in line


def test_times_are_rfc_3339_with_milliseconds() -> None:
    text = TimeText()
    assert text(0.0) == "1970-01-01T00:00:00.000Z"
    assert text(1.9996) == "1970-01-01T00:00:01.999Z"
    assert text(1.25) == "1970-01-01T00:00:01.250Z"


PROGRAM = """
import logging, multiprocessing, sys
from router.logs import configure_logs, lines_dropped, request_log

def serve(name):
    configure_logs("info")
    logging.getLogger("router").info(name)
    request_log()({"event": "request.finished", "by": name})
    assert lines_dropped() == 0

if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=serve, args=("child",))
    child.start()
    child.join()
    serve("replaced")
    serve("parent")
"""


def test_the_last_lines_of_a_process_are_written_also_in_a_child_and_after_a_second_call(
    tmp_path: Path,
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    result = subprocess.run([sys.executable, program], capture_output=True, timeout=60, check=True, cwd=ROOT)
    written = [orjson.loads(line) for line in result.stderr.splitlines()]
    assert [entry.get("by", entry["message"]) for entry in written] == [
        name for name in ("child", "replaced", "parent") for _ in range(2)
    ]


def test_before_the_logs_are_configured_a_request_line_goes_the_way_of_logging() -> None:
    """In a separate process, since another test may have configured the logs of this one."""
    code = (
        "import logging; logging.basicConfig(level='INFO', format='%(message)s %(request_id)s');"
        "from router.logs import lines_dropped, request_log;"
        "request_log()({'event': 'request.finished', 'request_id': 'r1'}); assert lines_dropped() == 0"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=60, check=True, text=True
    )
    assert result.stderr == "request finished r1\n"


def test_lines_that_nobody_reads_are_bounded_in_bytes() -> None:
    """A pipe holds 64 KB; of 100 lines of 10,000 bytes behind it ten fit into the buffer."""
    pipe = Pipe()
    writer = LineWriter(pipe.write_fd, queue_bytes_max=100_000)
    os.write(pipe.write_fd, b"x" * 65_536)
    for _ in range(100):
        writer.write(b"y" * 9_999 + b"\n")
    assert writer.dropped == 90
    os.read(pipe.read_fd, 65_536)
    drain = threading.Thread(target=lambda: [os.read(pipe.read_fd, 65_536) for _ in range(2)])
    drain.start()
    writer.close()
    drain.join()
    writer.write(b"z" * 90_000 + b"\n")
    assert writer.dropped == 90


def test_a_long_line_is_written_with_its_texts_cut() -> None:
    line = bounded(
        {"event": "request.finished", "model": "m" * 3_000_000, "status": 404, "ids": ["i" * 9] * 99}
    )
    assert len(line) < 4096
    fields = orjson.loads(line)
    assert (fields["event"], fields["status"]) == ("request.finished", 404)
    assert fields["model"] == "m" * 1000 + "... (2999000 more characters)"
    many = bounded({f"field {number}": "x" * 2000 for number in range(1000)})
    assert orjson.loads(many)["event"] == "log.cut"
