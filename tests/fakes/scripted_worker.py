r"""A worker that does to each request, at a step given beforehand, the action that a test wants.

    accepted --body--> read --head--> headed --half the answer--> begun --the rest--> last --end--> done
        \\____________________________________________________________/
                          `Fault`, or hold until the test decides

Health checks are always answered well. An answer to a request that asks for a stream is a chunked
event stream, any other has a Content-Length, so `Step.LAST` lacks the last chunk or the last byte.

Run as a program it serves in a process of its own, which a test may kill:
``scripted_worker.py MODEL STEP`` prints its URL, and ``held`` whenever a request has reached the step.
"""

import asyncio
import contextlib
import json
import socket
import struct
import sys
from collections.abc import Callable
from enum import Enum, StrEnum
from typing import Self


class Step(StrEnum):
    """Progress of a worker with a request."""

    ACCEPTED = "accepted"
    READ = "read"
    HEADED = "headed"
    BEGUN = "begun"
    LAST = "last"


class Fault(Enum):
    """Action that takes the place of a request's next step; `GO` is that step."""

    GO = b""
    CLOSE = b"close"
    RESET = b"reset"
    STALL = b"stall"
    GARBAGE = b"\x00garbage\r\n\r\n"
    STATUS_500 = b"HTTP/1.1 500 Broken\r\ncontent-length: 2\r\n\r\n{}"
    STATUS_503 = b"HTTP/1.1 503 Busy\r\ncontent-length: 2\r\n\r\n{}"


Plan = Callable[[], tuple[Step, Fault | None] | None]
"""Asked once per request: the step of an action, and the action; None for the action if the test decides
then; None for both if nothing happens."""

PIECE = b"data: " + b"x" * 100 + b"\n\n"
WHOLE = b'{"text": "' + b"x" * 200 + b'"}'


def set_reset(sock: socket.socket) -> None:
    """Make closing a socket reset its connection."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class Held:
    """A request that waits for the test at its step."""

    def __init__(self, step: Step, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.step = step
        self.reader = reader
        self.writer = writer
        self.fault: asyncio.Future[Fault] = asyncio.get_running_loop().create_future()

    def then(self, fault: Fault) -> None:
        """Act now. A connection is closed or reset before this returns."""
        if fault in (Fault.CLOSE, Fault.RESET):
            _cut(self.writer, fault)
        self.fault.set_result(fault)

    async def dropped(self) -> None:
        """Wait until the gateway closes the connection; read and discard all further bytes."""
        async with asyncio.timeout(60):
            with contextlib.suppress(ConnectionError):
                while await self.reader.read(1 << 20):
                    pass


class ScriptedWorker:
    """A worker in this event loop; use it as an async context manager.

    Args:
        model: The model it serves.
        plan: See `Plan`.
    """

    def __init__(self, model: str, plan: Plan = lambda: None) -> None:
        self._model = model
        self._plan = plan
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self.worker_id = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.url = f"http://{self.worker_id}"
        self._accepting: asyncio.Task[None] | None = None
        self._serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._fillers: list[socket.socket] = []
        self.held: asyncio.Queue[Held] = asyncio.Queue()
        self.requests = 0

    async def __aenter__(self) -> Self:
        self._listener.listen(64)
        self._listener.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(), name=f"accept {self.worker_id}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.die()

    async def stop_accepting(self) -> None:
        """Leave new connections in their handshake, as a machine that is too busy does.

        A queue of length 0 has room for one connection (Linux); the kernel ignores the connections after it.
        A health check may have taken the room: then the kernel ignores the filler, which must not wait.
        """
        assert self._accepting is not None
        self._accepting.cancel()
        await asyncio.wait([self._accepting])
        self._listener.listen(0)
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(self._listener.getsockname())
        self._fillers.append(filler)

    async def die(self) -> None:
        """Close everything at once, as the kernel does for a process that is killed. Idempotent."""
        if self._accepting is not None:
            self._accepting.cancel()
        self._listener.close()
        for sock in self._fillers:
            sock.close()
        for task, writer in self._serving.items():
            writer.transport.abort()
            task.cancel()
        if self._serving:
            await asyncio.wait(list(self._serving))

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            sock, _ = await loop.sock_accept(self._listener)
            # Small buffers: a body of megabytes stays with the sender until it is read.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            reader, writer = await asyncio.open_connection(sock=sock)
            task = asyncio.create_task(self._serve(reader, writer), name=f"serve {self.worker_id}")
            self._serving[task] = writer
            task.add_done_callback(self._serving.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET"):
                    body = json.dumps({"data": [{"id": self._model}]}).encode()
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
                else:
                    await self._answer(head, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    async def _answer(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.requests += 1
        planned = self._plan()

        async def reached(step: Step) -> None:
            if planned is None or planned[0] is not step:
                return
            fault = planned[1]
            if fault is None:
                held = Held(step, reader, writer)
                self.held.put_nowait(held)
                fault = await held.fault
            if fault is Fault.GO:
                return
            if fault is Fault.STALL:
                await Held(step, reader, writer).dropped()
            elif fault in (Fault.CLOSE, Fault.RESET):
                _cut(writer, fault)
            else:
                writer.write(fault.value)
                writer.close()
            raise ConnectionAbortedError

        await reached(Step.ACCEPTED)
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        body = await reader.readexactly(length)
        await reached(Step.READ)
        streamed = b'"stream": true' in body[-200:]
        head = b"content-type: text/event-stream\r\ntransfer-encoding: chunked"
        if not streamed:
            head = b"content-type: application/json\r\ncontent-length: %d" % len(WHOLE)
        writer.write(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % head)
        await reached(Step.HEADED)
        chunk = b"%x\r\n%b\r\n" % (len(PIECE), PIECE)
        half = len(WHOLE) // 2
        writer.write(chunk if streamed else WHOLE[:half])
        await reached(Step.BEGUN)
        writer.write(chunk if streamed else WHOLE[half:-1])
        await reached(Step.LAST)
        writer.write(b"0\r\n\r\n" if streamed else WHOLE[-1:])
        await writer.drain()


def _cut(writer: asyncio.StreamWriter, fault: Fault) -> None:
    if writer.transport.is_closing():
        return
    if fault is Fault.RESET:
        set_reset(writer.get_extra_info("socket"))
        writer.transport.abort()
    else:
        writer.close()


class WorkerProcess:
    """The same in a process of its own, holding every request at a step; an async context manager."""

    def __init__(self, model: str, step: Step) -> None:
        self._arguments = (model, step.value)
        self._process: asyncio.subprocess.Process
        self._reading: asyncio.Task[None]
        self.url = ""
        self.worker_id = ""
        self.held: asyncio.Queue[None] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, __file__, *self._arguments, stdout=asyncio.subprocess.PIPE
        )
        assert self._process.stdout is not None
        self.url = (await self._process.stdout.readline()).decode().strip()
        self.worker_id = self.url.removeprefix("http://")
        self._reading = asyncio.create_task(self._read(self._process.stdout), name=f"read {self.url}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def kill(self) -> None:
        """End it with SIGKILL. Idempotent."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._reading

    async def _read(self, stdout: asyncio.StreamReader) -> None:
        while await stdout.readline():
            self.held.put_nowait(None)


async def _main(model: str, step: Step) -> None:
    async with ScriptedWorker(model, lambda: (step, None)) as worker:
        print(worker.url, flush=True)
        while True:
            await worker.held.get()
            print("held", flush=True)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], Step(sys.argv[2])))
