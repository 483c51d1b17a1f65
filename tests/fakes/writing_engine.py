"""An engine that writes one text, greedily, by the end of the prompt alone. Real sockets.

It streams chats and completions as vLLM or SGLang do, with counts in each chunk where they are asked for,
continues a message that it is given, and dies on the way as a test wants it to.
"""

import asyncio
import fcntl
import json
import socket
import struct
import termios
from collections.abc import Callable
from enum import Enum
from typing import Any

from fakes.socket_worker import SocketWorker

PIECES = [
    "Zwei",
    " Störche",
    " flogen",
    "\n\n",
    "über",
    " 北京",
    "市",
    " 🦩",
    "🦩",
    " und",
    " weiter",
    " nach",
    " Süden.",
]
TEXT = "".join(PIECES)
PROMPT_TOKENS = 7


class Death(Enum):
    """Action after some pieces."""

    NONE = 0
    RESET = 1
    CLOSE = 2
    STALL = 3
    ERROR_EVENT = 4
    END_WITHOUT_DONE = 5
    """The answer ends well formed, without its last events."""
    BEFORE_DONE = 6
    """All pieces, and a reset before the counts and ``[DONE]``."""
    HOLD = 7
    """Wait until the test lets it die by a reset."""


class WritingEngine(SocketWorker):
    """Use it as an async context manager.

    Attributes:
        deaths: One for each request to come: its number of pieces and its kind. Without one, it writes all.
        got: Bodies of requests, the oldest first.
        status: Status of answers to continuations; 200 to continue.
        sglang: Role and counts as SGLang has them.
        counts: True if it reports counts in each chunk.
        edits: Changes each chunk before it is sent.
    """

    def __init__(self, *, sglang: bool = False, counts: bool = True, model: str = "m") -> None:
        self.sglang, self.counts, self.model = sglang, counts, model
        self.deaths: list[tuple[int, Death]] = []
        self.got: list[dict[str, Any]] = []
        self.status = 200
        self.held = asyncio.Event()
        self.let_die = asyncio.Event()
        self.left = asyncio.Event()
        self.edits: Callable[[dict[str, Any]], None] = lambda _: None
        self.piece_bytes = 0
        """Bytes per write; 0 to write whole events."""
        super().__init__()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        path = head[0].split(" ")[1]
        fields = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(fields.get("content-length", "0")))
        if path == "/v1/models":
            _answer(writer, 200, {"object": "list", "data": [{"id": self.model, "object": "model"}]})
            return True
        if not path.startswith("/v1/"):
            _answer(writer, 200 if path == "/health" else 404, {})
            return True
        asked = json.loads(body)
        self.got.append(asked)
        if "continue_final_message" in asked and self.status != 200:
            _answer(writer, self.status, {"error": {"message": "no such template", "code": self.status}})
            return True
        return await self._stream(reader, writer, asked, chat=path.endswith("/chat/completions"))

    async def _stream(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: dict[str, Any], *, chat: bool
    ) -> bool:
        said = _said(asked, chat=chat)
        assert TEXT.startswith(said), said
        at = _pieces_of(said)
        limit = asked.get("max_tokens") or asked.get("max_completion_tokens") or 1000
        pieces = PIECES[at : at + limit]
        after, death = self.deaths.pop(0) if self.deaths else (0, Death.NONE)
        options = asked.get("stream_options") or {}
        always = self.counts and options.get("continuous_usage_stats")
        number = f"chatcmpl-{self.worker_id}-{len(self.got)}"
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )

        def event(choices: list[dict[str, Any]], tokens: int, *, counts: bool) -> bytes:
            kind = "chat.completion.chunk" if chat else "text_completion"
            chunk = {"id": number, "object": kind, "created": 1700000000 + len(self.got), "model": self.model}
            chunk["choices"] = choices
            if counts:
                prompt = PROMPT_TOKENS + at
                usage = {
                    "prompt_tokens": prompt,
                    "total_tokens": prompt + tokens,
                    "completion_tokens": tokens,
                }
                if not choices:
                    usage["prompt_tokens_details"] = {"cached_tokens": prompt - 1}  # type: ignore[assignment]
                chunk["usage"] = usage
            self.edits(chunk)
            return b"data: " + json.dumps(chunk, ensure_ascii=self.sglang).encode() + b"\n\n"

        if chat:
            await self._write(writer, event([_delta({"role": "assistant", "content": ""})], 0, counts=always))
        for number_, piece in enumerate(pieces):
            if number_ == after and death not in (Death.NONE, Death.BEFORE_DONE):
                return await self._die(reader, writer, death)
            last = number_ == len(pieces) - 1
            reason = None if not last else "length" if len(pieces) == limit else "stop"
            choice = (
                _delta({"content": piece}, reason)
                if chat
                else {"index": 0, "text": piece, "logprobs": None, "finish_reason": reason}
            )
            await self._write(writer, event([choice], number_ + 1, counts=always))
        if death is Death.BEFORE_DONE:
            return await self._die(reader, writer, Death.RESET)
        if options.get("include_usage"):
            await self._write(writer, event([], len(pieces), counts=True))
        await self._write(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        return True

    async def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        step = self.piece_bytes or len(data)
        for start in range(0, len(data), step):
            part = data[start : start + step]
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            await writer.drain()
            await asyncio.sleep(0)

    async def _die(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, death: Death) -> bool:
        if death is Death.STALL:
            await self.let_die.wait()
        elif death is Death.HOLD:
            self.held.set()
            closed = asyncio.create_task(reader.read())
            waited = asyncio.create_task(self.let_die.wait())
            await asyncio.wait((closed, waited), return_when=asyncio.FIRST_COMPLETED)
            if closed.done():
                self.left.set()
            for task in (closed, waited):
                task.cancel()
        elif death is Death.ERROR_EVENT:
            error = {"error": {"message": "EngineCore encountered an issue.", "type": "x", "code": 500}}
            await self._write(writer, b"data: " + json.dumps(error).encode() + b"\n\ndata: [DONE]\n\n")
            writer.write(b"0\r\n\r\n")
            return True
        elif death is Death.END_WITHOUT_DONE:
            writer.write(b"0\r\n\r\n")
            return True
        if death in (Death.RESET, Death.HOLD):
            # The written bytes must have arrived: a reset discards them otherwise.
            await _settled(writer)
            sock: socket.socket = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False


async def _settled(writer: asyncio.StreamWriter) -> None:
    """Wait until the peer's kernel has all that was written."""
    sock = writer.get_extra_info("socket")
    while (  # noqa: ASYNC110 - the kernel's state, without a signal
        writer.transport.get_write_buffer_size()
        or struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0\0\0\0"))[0]
    ):
        await asyncio.sleep(0.001)


def _said(asked: dict[str, Any], *, chat: bool) -> str:
    """The part of the text that the request has, as a template that trims messages shows it."""
    if not chat:
        prompt: str = asked["prompt"]
        return prompt.partition("|")[2]
    if not asked.get("continue_final_message"):
        return ""
    assert asked["add_generation_prompt"] is False
    last = asked["messages"][-1]
    assert last["role"] == "assistant"
    text: str = last["content"]
    return text.strip()


def _pieces_of(said: str) -> int:
    """Number of pieces that a text is; it ends with a whole one."""
    for number in range(len(PIECES) + 1):
        if "".join(PIECES[:number]) == said:
            return number
    raise AssertionError(said)


def _delta(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}


def _answer(writer: asyncio.StreamWriter, status: int, content: dict[str, Any]) -> None:
    body = json.dumps(content).encode()
    writer.write(
        b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
        % (status, len(body), body)
    )
