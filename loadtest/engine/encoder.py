"""An emulated encoder of SGLang's EPD disaggregation: its API and its cache, without a vision model.

    POST /encode                       {req_id, mm_items, embedding_port, ...}: takes ``encode_s`` for each
                                       medium that is not cached, one after the other
    POST /scheduler_receive_url        a rank of the language worker gives the address for embeddings
    POST /scheduler_receive_meta_data  answered when the part is encoded
    POST /send                         after /encode; 500 for an unknown name
    GET  /health

A part without ``embedding_port`` waits for the addresses of all ranks, and fails with 504 after ``wait_s``
(``disaggregation/encoder/http_server.py`` and ``runtime.py`` of autumn 2026). Embeddings are left out.
"""

import asyncio
from collections import OrderedDict
from typing import Any, Self

import orjson

from loadtest.engine.handover.side_port import SidePort
from loadtest.engine.server import Answer, Request

_BODY_BYTES_MAX = 256 << 20


class EmulatedEncoder:
    """One encoder; an async context manager that listens on ``port``, or a free one.

    Args:
        cached_max: Media whose embeddings are kept, the latest used.
        wait_s: Longest wait of a part for its addresses.

    Attributes:
        encode_s: Seconds per medium that is not cached.
        hits: Media whose embeddings were cached.
        calls: Paths of all calls, with the part of each.
    """

    def __init__(
        self, port: int = 0, *, encode_s: float = 0.0, cached_max: int = 1000, wait_s: float = 5.0
    ) -> None:
        self.encoded = self.hits = 0
        self.calls: list[tuple[str, str]] = []
        self._side = SidePort(port, self._serve)
        self._side.body_bytes_max = _BODY_BYTES_MAX
        self.encode_s = encode_s
        self._cached_max = cached_max
        self._wait_s = wait_s
        self._cache: OrderedDict[str, None] = OrderedDict()
        self._ranks: dict[str, int] = {}
        self._registered = asyncio.Condition()
        self._done: dict[str, asyncio.Event] = {}
        self._free = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://{self._side.host}:{self._side.port}"

    @property
    def busy(self) -> int:
        """Calls that have not been answered."""
        return len(self._tasks)

    async def __aenter__(self) -> Self:
        await self._side.open("127.0.0.1")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop; calls under way are reset."""
        self.close()

    def close(self) -> None:
        """Die: the port is closed, and calls under way are reset."""
        for task in self._tasks:
            task.cancel()
        self._side.close()

    def _serve(self, request: Request, answer: Answer) -> None:
        if request.path == "/health":
            answer.send(200, b"")
            return
        work = {
            "/encode": self._encode,
            "/send": self._send,
            "/scheduler_receive_url": self._register,
            "/scheduler_receive_meta_data": self._meta_data,
        }.get(request.path)
        if work is None or request.method != "POST":
            answer.send(404, b'{"detail":"Not Found"}')
            return
        fields = orjson.loads(request.body)
        self.calls.append((request.path, fields["req_id"]))
        task = asyncio.get_running_loop().create_task(_answered(work(fields), answer), name=request.path)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _encode(self, fields: dict[str, Any]) -> tuple[int, Any]:
        part = fields["req_id"]
        done = self._done.setdefault(part, asyncio.Event())
        for item in fields["mm_items"]:
            medium = item if isinstance(item, str) else item["url"]
            async with self._free:
                if medium in self._cache:
                    self.hits += 1
                else:
                    self.encoded += 1
                    await asyncio.sleep(self.encode_s)
                self._cache[medium] = None
                self._cache.move_to_end(medium)
                if len(self._cache) > self._cached_max:
                    self._cache.popitem(last=False)
        if fields.get("embedding_port") is None:
            try:
                async with asyncio.timeout(self._wait_s), self._registered:
                    await self._registered.wait_for(lambda: part in self._ranks)
            except TimeoutError:
                return 504, {"status": "error", "message": "no receiver was named", "req_id": part}
        done.set()
        return 200, {"req_id": part, "embedding_len": 256 * len(fields["mm_items"]), "embedding_dim": 8}

    async def _register(self, fields: dict[str, Any]) -> tuple[int, Any]:
        async with self._registered:
            self._ranks[fields["req_id"]] = self._ranks.get(fields["req_id"], 0) + 1
            self._registered.notify_all()
        return 200, None

    async def _meta_data(self, fields: dict[str, Any]) -> tuple[int, Any]:
        part = fields["req_id"]
        await self._done.setdefault(part, asyncio.Event()).wait()
        return 200, {"req_id": part, "embedding_len": 256}

    async def _send(self, fields: dict[str, Any]) -> tuple[int, Any]:
        part = fields["req_id"]
        if part not in self._done or not self._done[part].is_set():
            return 500, {"status": "error", "message": f"no staged embedding for req_id={part}"}
        return 200, None


async def _answered(work: Any, answer: Answer) -> None:
    status, content = await work
    answer.send(status, orjson.dumps(content))
