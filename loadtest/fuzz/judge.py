"""Rules that must hold, judged by observations. Pure.

    every answer      well formed; no 5xx but those that are documented, in the OpenAI shape
    every log line    JSON, bounded, and no error
    the event loop    never held for `HELD_S_MAX` CPU seconds
    afterwards        nothing in flight, reserved or waiting; no degradation; replicas see the same

`loadtest.fuzz.campaign` collects the observations.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

HELD_S_MAX = 0.25
"""CPU seconds that one turn of the loop may take: the worst case took 0.12 when this was written."""

BEGUN_MAX = 500
"""Requests that one read of one connection may begin."""

LINE_BYTES_MAX = 100_000
"""Longest log line; `router.logs` cuts them at 64 KiB."""

DOCUMENTED: dict[int, frozenset[str]] = {
    501: frozenset({"not_implemented", "method_not_served"}),
    502: frozenset({"upstream_error", "upstream_unreachable", "upstream_stream_broken", "handover_failed"}),
    503: frozenset({"no_worker_available", "overloaded", "shutting_down", "upstream_error"}),
    504: frozenset({"upstream_timeout", "request_timeout", "kv_transfer_failed"}),
    505: frozenset({"http_version_not_supported"}),
    508: frozenset({"loop_detected"}),
}
"""By status the codes of errors above 499 that a gateway may answer by itself."""

_STATUS_LINE = re.compile(rb"HTTP/1\.[01] (\d{3}) [^\r\n]*\r\n")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked\r\n", re.IGNORECASE)
_FRAME = re.compile(r'File "[^"]*/((?:router|policies|radix)/[^"]*", line \d+)')
_RAISED = re.compile(r"[ |]*[A-Za-z_.]+(?:Error|Refused|Exception|Group|Interrupt|Exit)\b.*")
_BODILESS = (204, 304)


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer; ``head`` is status line and headers."""

    status: int
    head: bytes
    body: bytes

    @property
    def by_worker(self) -> bool:
        """True if a worker gave it."""
        return b"\r\nx-cacheway-worker:" in self.head.lower()


def answers_in(data: bytes) -> tuple[list[Answer], str]:
    """Take the answers of one connection apart, of which the last may be incomplete.

    Return also the error in the bytes behind them; empty for none.
    """
    answers: list[Answer] = []
    at = 0
    while at < len(data):
        found = _STATUS_LINE.match(data, at)
        if found is None:
            whole = b"\n" in data[at : at + 200] or not b"HTTP/1.1 000 ".startswith(data[at : at + 9])
            return answers, f"no answer: {data[at : at + 60]!r}" if whole else ""
        status, ends = int(found[1]), data.find(b"\r\n\r\n", at)
        if ends < 0:
            return answers, ""
        head, begin = data[at : ends + 4], ends + 4
        if 100 <= status < 200:
            at = begin
            continue
        length = _LENGTH.search(head)
        if status in _BODILESS:
            at = begin
        elif length is not None:
            at = begin + int(length[1])
        elif _CHUNKED.search(head):
            at = _after_chunks(data, begin)
        else:
            at = len(data)
        answers.append(Answer(status, head, data[begin:at]))
    return answers, ""


def _after_chunks(data: bytes, at: int) -> int:
    """End of a chunked body; the end of all if it does not end."""
    while (line_end := data.find(b"\r\n", at)) >= 0:
        try:
            size = int(data[at:line_end].partition(b";")[0], 16)
        except ValueError:
            return len(data)
        at = line_end + 2 + size + 2
        if size == 0:
            return at
    return len(data)


def judge_answer(answer: Answer) -> str:
    """Return the error of an answer; empty if there is none."""
    if b"internal_error" in answer.body:
        return f"{answer.status}: {answer.body[:300]!r}"
    if answer.status < 500 or answer.by_worker:
        return ""
    codes = DOCUMENTED.get(answer.status)
    if codes is None:
        return f"{answer.status} is not documented: {answer.body[:300]!r}"
    try:
        error = json.loads(answer.body)
        code = error["error"]["code"] if "error" in error else error["status"]
    except (ValueError, TypeError, KeyError):
        return f"{answer.status} has no error in the OpenAI shape: {answer.body[:300]!r}"
    if code not in codes and code not in ("no_healthy_worker", "ready"):
        return f"{answer.status} with the code {code!r}, which is not documented"
    return ""


def judge_line(line: bytes) -> str:
    """Return the error of a log line; empty if there is none."""
    if len(line) > LINE_BYTES_MAX:
        return f"a log line of {len(line)} bytes: {line[:200]!r}"
    try:
        fields: Mapping[str, Any] = json.loads(line)
    except ValueError:
        return f"a log line that is not JSON: {line[:500]!r}" if line.strip() else ""
    if fields.get("event") == "fuzz.held":
        held_s = fields["held_s"]
        return f"the event loop was held for {held_s} CPU seconds" if held_s > HELD_S_MAX else ""
    if fields.get("event") == "fuzz.burst":
        begun = fields["begun"]
        return f"one read of a connection began {begun} requests" if begun > BEGUN_MAX else ""
    if fields.get("level") in ("error", "critical"):
        where = failure_in(str(fields.get("exception", "")))
        summary = " ".join(str(fields.get(name, "")) for name in ("event", "message", "task", "reason"))
        return f"an error in the log: {summary[:300]} {where}".rstrip()
    return ""


def failure_in(trace: str) -> str:
    """Return a traceback's last exception, and its place in our code."""
    frames = _FRAME.findall(trace)
    raised = [line for line in trace.splitlines() if _RAISED.match(line)]
    if not raised:
        return ""
    return f"({raised[-1].strip(' |')[:300]}; {', '.join(reversed(frames[-3:]))})"


def differences(views: list[Mapping[str, Any]]) -> list[str]:
    """Say in what two replicas differ."""
    one, other = views
    found = []
    for name in one.keys() | other.keys():
        first, second = one.get(name), other.get(name)
        if first != second:
            found.append(f"{name}: {str(first)[:300]} beside {str(second)[:300]}")
    return sorted(found)
