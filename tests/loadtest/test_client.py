"""The streaming client against a tiny scripted server: real sockets, no engine."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from loadtest.client import LoadClient, Outcome, ToolCall

Respond = Callable[["Received", asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Received:
    """One request as the server saw it."""

    connection: int
    path: str
    body: Any


@dataclass
class ScriptedServer:
    """Requests that the server received, and its address."""

    url: str = ""
    received: list[Received] = field(default_factory=list)
    connections: int = 0


def event(payload: object) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def content(text: str) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}}]})


def usage(prompt: int, cached: int, output: int) -> bytes:
    details = {"cached_tokens": cached}
    return event(
        {
            "choices": [],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": output,
                "prompt_tokens_details": details,
            },
        }
    )


DONE = b"data: [DONE]\n\n"

ROLE = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})


async def stream(writer: asyncio.StreamWriter, *chunks: bytes, end: bool = True) -> None:
    """Send chunks as an event stream, one at a time."""
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nX-Cacheway-Worker: engine-1\r\n"
        b"transfer-encoding: chunked\r\n\r\n"
    )
    for chunk in chunks:
        writer.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
        await writer.drain()
    if end:
        writer.write(b"0\r\n\r\n")
    await writer.drain()


@asynccontextmanager
async def scripted_server(respond: Respond) -> AsyncIterator[ScriptedServer]:
    """Serve on a free port; every request is answered by ``respond``."""
    state = ScriptedServer()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        number = state.connections
        state.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.decode().split("\r\n")
                lengths = [int(line.split(":")[1]) for line in lines if line.startswith("content-length")]
                body = json.loads(await reader.readexactly(lengths[0])) if lengths else None
                received = Received(number, lines[0].split()[1], body)
                state.received.append(received)
                await respond(received, writer)
                if writer.is_closing():
                    return
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=2**22)
    port = server.sockets[0].getsockname()[1]
    state.url = f"http://127.0.0.1:{port}"
    try:
        yield state
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def send(respond: Respond, *, timeout_s: float = 30.0) -> Outcome:
    async with scripted_server(respond) as server, LoadClient(timeout_s) as client:
        return await client.send(server.url, "/v1/chat/completions", b"{}")


async def test_a_stream_is_collected_with_its_usage_and_worker() -> None:
    async def respond(_: Received, writer: asyncio.StreamWriter) -> None:
        await stream(writer, ROLE, content("ab"), content("cd"), content("ef"), usage(70, 64, 3), DONE)

    outcome = await send(respond)

    assert outcome.error is None
    assert (outcome.status, outcome.worker, outcome.text) == (200, "engine-1", "abcdef")
    assert (outcome.prompt_tokens, outcome.cached_tokens, outcome.output_tokens) == (70, 64, 3)
    assert outcome.ttft_s is not None
    assert outcome.tpot_s is not None
    assert outcome.itl_s_max is not None
    assert 0 < outcome.ttft_s <= outcome.total_s
    assert outcome.tpot_s <= outcome.itl_s_max


async def test_events_cut_anywhere_read_the_same() -> None:
    whole = ROLE + content("ab") + content("cd") + usage(7, 0, 2) + DONE

    async def respond(_: Received, writer: asyncio.StreamWriter) -> None:
        await stream(writer, *(whole[i : i + 3] for i in range(0, len(whole), 3)))

    outcome = await send(respond)

    assert (outcome.error, outcome.text, outcome.prompt_tokens) == (None, "abcd", 7)


async def test_the_first_token_is_the_first_content_and_not_the_role() -> None:
    """The server sends the role, waits until the client's clock has moved, and only then the content."""
    moved_s = 0.0

    async def respond(_: Received, writer: asyncio.StreamWriter) -> None:
        nonlocal moved_s
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        await stream(writer, ROLE, end=False)
        await asyncio.sleep(0.02)
        moved_s = loop.time() - started_s
        chunk = content("x") + DONE
        writer.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n0\r\n\r\n")

    outcome = await send(respond)

    assert outcome.ttft_s is not None
    assert outcome.ttft_s >= moved_s
    assert outcome.tpot_s is None, "one content event has no gap"


async def test_time_counts_from_when_the_request_was_due() -> None:
    async def respond(_: Received, writer: asyncio.StreamWriter) -> None:
        await stream(writer, content("x"), DONE)

    async with scripted_server(respond) as server, LoadClient() as client:
        due_s = asyncio.get_running_loop().time() - 5.0
        outcome = await client.send(server.url, "/v1/chat/completions", b"{}", due_s)

    assert outcome.ttft_s is not None
    assert outcome.ttft_s >= 5.0


async def test_tool_calls_are_joined_from_their_pieces() -> None:
    def delta(**call: object) -> bytes:
        return event({"choices": [{"delta": {"tool_calls": [{"index": 0, **call}]}}]})

    async def respond(_: Received, writer: asyncio.StreamWriter) -> None:
        await stream(
            writer,
            delta(id="call_1", type="function", function={"name": "read", "arguments": ""}),
            delta(function={"arguments": '{"a"'}),
            delta(function={"arguments": ":1}"}),
            DONE,
        )

    outcome = await send(respond)

    assert outcome.tool_calls == (ToolCall("call_1", "read", '{"a":1}'),)
    assert outcome.ttft_s is not None


async def test_completion_text_counts_as_content() -> None:
    async def respond(_: Received, writer: asyncio.StreamWriter) -> None:
        await stream(writer, event({"choices": [{"index": 0, "text": "hello"}]}), DONE)

    assert (await send(respond)).text == "hello"


async def test_a_connection_is_used_again_for_the_next_request() -> None:
    async def respond(_: Received, writer: asyncio.StreamWriter) -> None:
        await stream(writer, content("x"), DONE)

    async with scripted_server(respond) as server, LoadClient() as client:
        for number in range(3):
            body = json.dumps({"n": number}).encode()
            assert (await client.send(server.url, f"/p{number}", body)).error is None

    assert server.connections == 1
    assert [(one.path, one.body["n"]) for one in server.received] == [("/p0", 0), ("/p1", 1), ("/p2", 2)]


async def test_a_connection_the_server_closed_is_not_used_again() -> None:
    async def respond(_: Received, writer: asyncio.StreamWriter) -> None:
        await stream(writer, content("x"), DONE)
        writer.close()

    async with scripted_server(respond) as server, LoadClient() as client:
        for _ in range(2):
            assert (await client.send(server.url, "/p", b"{}")).error is None
            while any(one.reusable for idle in client._idle.values() for one in idle):  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    assert server.connections == 2


async def test_an_error_answer_is_a_failure_with_its_status_and_text() -> None:
    async def respond(_: Received, writer: asyncio.StreamWriter) -> None:
        body = b'{"error":{"message":"no worker"}}'
        writer.write(b"HTTP/1.1 503 Unavailable\r\ncontent-length: %d\r\n\r\n" % len(body) + body)

    outcome = await send(respond)

    assert outcome.status == 503
    assert outcome.error is not None
    assert "no worker" in outcome.error
    assert outcome.ttft_s is None


@pytest.mark.parametrize(
    ("chunks", "complaint"),
    [
        ((content("x"),), "without [DONE]"),
        ((content("x"), event({"error": {"message": "worker died"}}), DONE), "worker died"),
        ((b"data: {nonsense\n\n", DONE), "not of the API"),
    ],
)
async def test_a_stream_that_does_not_end_well_is_a_failure(
    chunks: tuple[bytes, ...], complaint: str
) -> None:
    async def respond(_: Received, writer: asyncio.StreamWriter) -> None:
        await stream(writer, *chunks)

    outcome = await send(respond)

    assert outcome.error is not None
    assert complaint in outcome.error


async def test_a_connection_lost_in_mid_stream_is_a_failure() -> None:
    async def respond(_: Received, writer: asyncio.StreamWriter) -> None:
        await stream(writer, content("x"), end=False)
        writer.transport.abort()

    outcome = await send(respond)

    assert outcome.error is not None
    assert "connection lost" in outcome.error
    assert outcome.text == "x"


async def test_what_is_not_http_is_a_failure() -> None:
    async def respond(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(b"nonsense\r\n\r\n")

    outcome = await send(respond)

    assert outcome.error is not None
    assert "not HTTP" in outcome.error


async def test_a_server_that_never_answers_ends_in_a_timeout() -> None:
    async def respond(_: Received, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    outcome = await send(respond, timeout_s=0.05)

    assert outcome.error is not None
    assert "0.05 s" in outcome.error
    assert outcome.status == 0


async def test_a_refused_connection_is_a_failure_and_not_an_exception() -> None:
    async with scripted_server(lambda *_: asyncio.sleep(0)) as server:
        url = server.url

    async with LoadClient() as client:
        outcome = await client.send(url, "/p", b"{}")

    assert outcome.error is not None
    assert "cannot connect" in outcome.error


async def test_a_cancelled_request_closes_its_connection() -> None:
    started = asyncio.Event()

    async def respond(_: Received, writer: asyncio.StreamWriter) -> None:
        await stream(writer, content("x"), end=False)
        started.set()
        await writer.wait_closed()

    async with scripted_server(respond) as server, LoadClient() as client:
        task = asyncio.create_task(client.send(server.url, "/p", b"{}"))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not any(client._idle.values())
