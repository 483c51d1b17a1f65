"""The request trace: whole lines in a file that is renamed when it is full, and no request waits for it."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from router.errors import SettingsError
from router.request_trace import RequestTrace, TraceLine, check_request_trace
from router.settings import Settings

LINE = TraceLine(
    arrived_unix_s=1.0,
    duration_s=2.0,
    ttft_s=None,
    status=200,
    outcome="completed",
    endpoint="/v1/completions",
    model="m",
    stream=True,
    session="",
    prompt_tokens=512,
    estimated=False,
    output_tokens=3,
    cached_tokens=None,
    predicted_tokens=0,
    worker_id="w:1",
    attempts=1,
    block_tokens=256,
    prompt_blocks=2.0,
    blocks=bytes(range(16)),
)


def line(**changes: Any) -> TraceLine:
    return msgspec.structs.replace(LINE, **changes)


def lines_of(path: Path) -> list[TraceLine]:
    return [msgspec.json.decode(text, type=TraceLine) for text in path.read_bytes().splitlines() if text]


def test_a_line_comes_back_as_it_was_and_behind_those_that_were_there(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    for prompt_tokens in (1, 2):
        trace = RequestTrace(str(path), 10**6)
        trace.record(line(prompt_tokens=prompt_tokens))
        trace.close()

    assert lines_of(path) == [line(prompt_tokens=1), line(prompt_tokens=2)]


def test_a_full_file_is_renamed_and_replaces_the_one_before(tmp_path: Path) -> None:
    """With room for two lines, of five lines that are written one by one the last three are kept."""
    path = tmp_path / "trace"
    room = 2 * len(msgspec.json.encode(LINE))
    trace = RequestTrace(str(path), room)
    for number in range(5):
        assert trace.written(msgspec.json.encode(line(duration_s=float(number))) + b"\n")
    trace.close()

    assert [one.duration_s for one in lines_of(path)] == [4.0]
    assert [one.duration_s for one in lines_of(tmp_path / "trace.1")] == [2.0, 3.0]
    assert trace.dropped == 0


def test_processes_share_a_file_and_no_line_is_lost_when_one_of_them_renames_it(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    room = 3 * len(msgspec.json.encode(LINE))
    one, other = (RequestTrace(str(path), room) for _ in range(2))
    for number in range(3):
        assert one.written(msgspec.json.encode(line(attempts=number)) + b"\n")
    for trace, number in ((one, 3), (other, 4), (one, 5)):
        assert trace.written(msgspec.json.encode(line(attempts=number)) + b"\n")
    one.close()
    other.close()

    assert [kept.attempts for kept in lines_of(tmp_path / "trace.1")] == [0, 1, 2]
    assert [kept.attempts for kept in lines_of(path)] == [3, 4, 5]


def test_who_finds_the_file_renamed_when_its_turn_comes_renames_nothing(tmp_path: Path) -> None:
    """Another process was faster, between the look at the size and the lock."""
    path = tmp_path / "trace"

    class Overtaken(RequestTrace):
        def _full(self) -> bool:
            full = super()._full()
            if full:
                path.rename(tmp_path / "trace.1")
                path.write_bytes(msgspec.json.encode(line(attempts=2)) + b"\n")
            return full

    trace = Overtaken(str(path), 1)
    for attempts in (1, 3):
        assert trace.written(msgspec.json.encode(line(attempts=attempts)) + b"\n")
    trace.close()

    assert [kept.attempts for kept in lines_of(tmp_path / "trace.1")] == [1]
    assert [kept.attempts for kept in lines_of(path)] == [2, 3]


@pytest.mark.parametrize("moved", [True, False])
def test_a_file_that_somebody_moved_or_deleted_is_made_anew(tmp_path: Path, moved: bool) -> None:
    path = tmp_path / "trace"
    trace = RequestTrace(str(path), 10**6)
    path.rename(tmp_path / "old") if moved else path.unlink()
    trace.record(LINE)
    trace.close()

    assert lines_of(path) == [LINE]


def test_what_is_not_a_file_is_never_renamed() -> None:
    trace = RequestTrace("/dev/null", 1)
    trace.record(LINE)
    trace.record(LINE)
    trace.close()

    assert trace.dropped == 0
    assert not Path("/dev/null.1").exists()


def test_lines_that_cannot_be_written_are_counted(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    trace = RequestTrace(str(folder / "trace"), 10**6)
    (folder / "trace").unlink()
    folder.rmdir()
    trace.record(LINE)
    trace.close()

    assert trace.dropped == 1


def test_lines_beyond_the_bound_are_counted(tmp_path: Path) -> None:
    """The thread writes every 20 ms; at any time, lines that are not dropped are kept."""
    path = tmp_path / "trace"
    trace = RequestTrace(str(path), 10**9, lines_max=2)
    for _ in range(1000):
        trace.record(LINE)
    trace.close()

    assert trace.dropped > 900
    assert len(lines_of(path)) == 1000 - trace.dropped


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file of this process may grow beyond a number of bytes, as on a full disk.

    Only for a moment: the limit holds for the file that pytest writes its own output to, too.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_line_that_a_full_disk_cut_off_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    trace = RequestTrace(str(path), 10**6)
    whole = msgspec.json.encode(LINE) + b"\n"
    with files_of_at_most(len(whole) + 50):
        first_fitted = trace.written(whole)
        second_fitted = trace.written(whole)
    assert (first_fitted, second_fitted) == (True, False)
    assert path.stat().st_size == len(whole) + 50
    assert trace.written(whole)
    trace.close()

    first, torn, last = path.read_bytes().splitlines()
    assert first == last == whole.strip()
    assert torn == whole[: len(torn)]


def test_nobody_else_may_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    RequestTrace(str(path), 10**6).close()

    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_written_stops_the_start_with_a_sentence(tmp_path: Path) -> None:
    settings = Settings.model_validate({"observability": {"request_trace": str(tmp_path / "no" / "trace")}})

    with pytest.raises(SettingsError) as caught:
        check_request_trace(settings.observability)

    assert str(caught.value).startswith("observability.request_trace: cannot write ")
    assert "no such file or directory" in str(caught.value)


def test_without_a_file_nothing_is_checked_or_made(tmp_path: Path) -> None:
    check_request_trace(Settings.model_validate({"observability": {"request_trace": ""}}).observability)
    assert list(tmp_path.iterdir()) == []
