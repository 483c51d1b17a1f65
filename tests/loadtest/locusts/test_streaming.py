"""Reports to locust on requests that end in different ways."""

import asyncio
import csv
import sys
from pathlib import Path

LOCUSTFILE = Path(__file__).parents[3] / "loadtest" / "locustfile.py"

EVENT = b'data: {"choices":[{"delta":{"content":"word"}}]}\n\n'
COMPLETE = EVENT * 2 + b"data: [DONE]\n\n"
ENDS = ("complete", "busy", "cut", "error", "complete")


def answer(end: str) -> bytes:
    """The bytes of one answer; the connection closes after it."""
    if end in ("busy", "error"):
        status = b"429 Too Many Requests\r\nretry-after: 1" if end == "busy" else b"500 Internal Server Error"
        return b"HTTP/1.1 %b\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}" % status
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    sent = EVENT if end == "cut" else COMPLETE
    return head + b"%x\r\n%b\r\n" % (len(sent), sent) + (b"" if end == "cut" else b"0\r\n\r\n")


async def test_who_is_sent_away_has_not_failed_and_who_is_cut_has(tmp_path: Path) -> None:
    """Five requests of one user, each with another end; then none is answered any more."""
    left = list(ENDS)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"POST") and left:
            size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(size)
            writer.write(answer(left.pop(0)))
        elif head.startswith(b"POST"):
            await reader.read()  # until its user is gone
        else:
            models = b'{"data":[{"id":"m"}]}'
            writer.write(
                b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(models) + models
            )
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        locust = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--host", f"http://127.0.0.1:{port}"),
            *("ChatUser", "--headless", "-u", "1", "-t", "12s", "--csv", str(tmp_path / "run")),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await locust.communicate()

    with (tmp_path / "run_stats.csv").open() as file:
        rows = {row["Type"]: row for row in csv.DictReader(file)}
    counts = {
        kind: (int(row["Request Count"]), int(row["Failure Count"])) for kind, row in rows.items() if kind
    }
    assert counts["POST"] == (5, 2), output.decode()
    assert counts["completed"] == (4, 2)
    assert counts["TTFT"] == (3, 0)
    assert counts["ITL max"] == counts["TPOT"] == (2, 0)
    assert b"Traceback" not in output
