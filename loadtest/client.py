"""A light streaming client: a user's measurements, at little CPU.

One asyncio protocol on httptools per connection; connections are kept alive and taken by one request at a
time. Events are decoded one by one, because the next turn of a session needs the text.

    send -> head -> first event with content (TTFT) -> events (gaps: ITL) -> usage -> [DONE]

Every failure is an `Outcome` with ``error``; `LoadClient.send` raises nothing but cancellation.
"""

import asyncio
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools
import msgspec

ERROR_BODY_BYTES_MAX = 4096
"""An error answer is kept for the report only up to this length."""

IDLE_S_MAX = 2.0
"""A connection idle for longer is not used again: servers close theirs, uvicorn after 5 s."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call that the model asked for; arguments as the JSON text that came."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one request.

    Attributes:
        ttft_s: From when it was due to its first content; None if none came.
        tpot_s: Mean gap between content events; None with fewer than two of them.
        itl_s_max: Longest gap; None like ``tpot_s``.
        total_s: From when it was due to the end of the answer.
        prompt_tokens: As the engine reports in ``usage``, like the next two; 0 if it did not.
        status: HTTP status; 0 if no head came.
        error: Why it does not count as completed; None if it does.
        worker: ``x-cacheway-worker`` of the answer; empty without a gateway.
        predicted_tokens: ``x-cacheway-cached-tokens`` of the answer; 0 without a gateway.
    """

    ttft_s: float | None
    tpot_s: float | None
    itl_s_max: float | None
    total_s: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    status: int
    error: str | None
    worker: str
    text: str
    tool_calls: tuple[ToolCall, ...]
    predicted_tokens: int = 0


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolDelta(msgspec.Struct):
    index: int = 0
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_ToolDelta] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: object = None


_decode_event = msgspec.json.Decoder(_Event).decode


class StreamedAnswer:
    """Collects one answer from the events of its stream, wherever the bytes come from."""

    def __init__(self) -> None:
        self.status = 0
        self.worker = ""
        self.predicted_tokens = 0
        self.error: str | None = None
        self.ended = False
        self.first_s: float | None = None
        self.last_s = 0.0
        self.gap_s_max = 0.0
        self.gaps = 0
        self.usage = _Usage()
        self._texts: list[str] = []
        self._tools: dict[int, list[str]] = {}
        self._rest = b""

    def feed(self, data: bytes, now_s: float) -> None:
        """Take body bytes: events of a stream, or the start of an error's body."""
        if self.status != 200:
            self._rest = (self._rest + data)[:ERROR_BODY_BYTES_MAX]
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now_s)

    def _event(self, payload: bytes, now_s: float) -> None:
        if payload == b"[DONE]":
            self.ended = True
            return
        try:
            event = _decode_event(payload)
        except msgspec.DecodeError as error:
            self.error = f"an event that is not of the API: {error}"
            return
        if event.error:
            self.error = f"error event: {event.error}"
        if event.usage is not None:
            self.usage = event.usage
        has_content = False
        for choice in event.choices:
            text = choice.text or (choice.delta.content if choice.delta else None)
            if text:
                has_content = True
                self._texts.append(text)
            for tool in (choice.delta.tool_calls if choice.delta else None) or ():
                has_content = True
                parts = self._tools.setdefault(tool.index, ["", "", ""])
                parts[0] += tool.id or ""
                if tool.function is not None:
                    parts[1] += tool.function.name or ""
                    parts[2] += tool.function.arguments or ""
        if has_content:
            self._content_at(now_s)

    def _content_at(self, now_s: float) -> None:
        if self.first_s is None:
            self.first_s = now_s
        else:
            self.gaps += 1
            self.gap_s_max = max(self.gap_s_max, now_s - self.last_s)
        self.last_s = now_s

    def outcome(self, due_s: float, now_s: float) -> Outcome:
        """Sum up, once the answer has ended one way or another."""
        error = self.error
        if error is None and self.status != 200:
            error = f"status {self.status}: {self._rest.decode(errors='replace')}"
        if error is None and not self.ended:
            error = "the stream ended without [DONE]"
        tpot_s = gap_s_max = None
        if self.first_s is not None and self.gaps:
            tpot_s, gap_s_max = (self.last_s - self.first_s) / self.gaps, self.gap_s_max
        details = self.usage.prompt_tokens_details
        return Outcome(
            ttft_s=None if self.first_s is None else self.first_s - due_s,
            tpot_s=tpot_s,
            itl_s_max=gap_s_max,
            total_s=now_s - due_s,
            prompt_tokens=self.usage.prompt_tokens,
            cached_tokens=(details.cached_tokens or 0) if details else 0,
            output_tokens=self.usage.completion_tokens,
            status=self.status,
            error=error,
            worker=self.worker,
            text="".join(self._texts),
            tool_calls=tuple(ToolCall(*parts) for _, parts in sorted(self._tools.items())),
            predicted_tokens=self.predicted_tokens,
        )


class _Connection(asyncio.Protocol):
    """One connection and, while it is taken, the answer that arrives on it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._answer = StreamedAnswer()
        self._done: asyncio.Future[None] | None = None
        self.reusable = True
        self.idle_since_s = 0.0

    def request(self, head: bytes, body: bytes, answer: StreamedAnswer) -> asyncio.Future[None]:
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._answer = answer
        self._done = self._loop.create_future()
        self.reusable = False
        self._transport.writelines((head, body))
        return self._done

    def close(self) -> None:
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            self.close()  # bytes that no request asked for
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(f"not HTTP: {error}")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.reusable = False
        self._end(f"connection lost: {exc or 'closed'}")

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-cacheway-worker":
            self._answer.worker = value.decode("latin-1")
        elif name.lower() == b"x-cacheway-cached-tokens":
            self._answer.predicted_tokens = int(value)

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self._answer.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self._answer.feed(data, self._loop.time())

    def on_message_complete(self) -> None:
        assert self._parser is not None
        self.reusable = self._parser.should_keep_alive()
        self._parser = None
        self._end(None)

    def _end(self, error: str | None) -> None:
        if self._done is not None and not self._done.done():
            self._answer.error = self._answer.error or error
            self._done.set_result(None)


class LoadClient:
    """Sends streaming requests to one or more base URLs; an async context manager.

    A request that takes longer than ``timeout_s`` fails, so that every run ends by itself.
    """

    def __init__(self, timeout_s: float = 60.0) -> None:
        self._timeout_s = timeout_s
        self._idle: dict[tuple[str, int], list[_Connection]] = {}

    async def __aenter__(self) -> "LoadClient":
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    async def send(self, base_url: str, path: str, body: bytes, due_s: float | None = None) -> Outcome:
        """POST one JSON body, which should ask for ``stream`` and usage, and read its events to the end.

        TTFT counts from ``due_s`` in event loop time, by default now, so a client that falls behind shows it.
        """
        loop = asyncio.get_running_loop()
        due_s = loop.time() if due_s is None else due_s
        url = urlsplit(base_url)
        address = (url.hostname or "127.0.0.1", url.port or 80)
        head = (
            f"POST {path} HTTP/1.1\r\nhost: {address[0]}:{address[1]}\r\ncontent-type: application/json\r\n"
            f"accept: text/event-stream\r\ncontent-length: {len(body)}\r\n\r\n"
        ).encode()
        answer = StreamedAnswer()
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await self._take(loop, address)
                await connection.request(head, body, answer)
        except TimeoutError:
            answer.error = f"no complete answer within {self._timeout_s:g} s"
        except OSError as error:
            answer.error = f"cannot connect: {error}"
        finally:
            if connection is not None:
                self._give_back(address, connection, loop.time())
        return answer.outcome(due_s, loop.time())

    async def _take(self, loop: asyncio.AbstractEventLoop, address: tuple[str, int]) -> _Connection:
        idle = self._idle.setdefault(address, [])
        while idle:
            connection = idle.pop()
            if connection.reusable and loop.time() - connection.idle_since_s < IDLE_S_MAX:
                return connection
            connection.close()
        _, connection = await loop.create_connection(lambda: _Connection(loop), *address)
        return connection

    def _give_back(self, address: tuple[str, int], connection: _Connection, now_s: float) -> None:
        if connection.reusable:
            connection.idle_since_s = now_s
            self._idle[address].append(connection)
        else:
            connection.close()
