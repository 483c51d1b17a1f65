"""Addresses of host names: a name whose lookup hangs holds up no other name.

    a name ──lookup under way?──> wait for that one
              └─no──> a place among the prompt names, or among the others ──> a thread ──> addresses

The system's resolver blocks its thread, for half a minute if a server does not answer, and event loops have
four to eight such threads. So each lookup has a thread of its own. Names whose last lookup was prompt have
places of their own; all other names share the rest. A lookup goes on when its caller gives up, and the next
caller waits for the same one.
"""

import asyncio
import contextlib
import socket
import threading
from collections import OrderedDict

PROMPT_S = 1.0
"""Longest prompt lookup, in seconds."""

PROMPT_AT_ONCE = 32
"""Lookups of prompt names at a time; each takes a few milliseconds."""

OTHERS_AT_ONCE = 512
"""Lookups of other names at a time: a thread of some 50 KB each, which may hang for half a minute."""

NAMES_MAX = 16_384
"""Prompt names that are remembered."""


class Lookups:
    """Lookups under way, and which names are prompt. Use it in one event loop."""

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Task[list[str]]] = {}
        self._prompt: OrderedDict[str, None] = OrderedDict()
        self._places = {
            True: asyncio.Semaphore(PROMPT_AT_ONCE),
            False: asyncio.Semaphore(OTHERS_AT_ONCE),
        }

    async def find(self, host: str, port: int) -> list[str]:
        """Return a name's addresses, in order, each once; raise OSError or UnicodeError if it has none."""
        running = self._running.get(host)
        if running is None:
            running = asyncio.get_running_loop().create_task(self._find(host, port), name=f"look up {host}")
            self._running[host] = running
            running.add_done_callback(lambda task: self._ended(host, task))
        return list(await asyncio.shield(running))

    def _ended(self, host: str, task: asyncio.Task[list[str]]) -> None:
        self._running.pop(host, None)
        if not task.cancelled():
            task.exception()  # all waiting callers may have left

    async def _find(self, host: str, port: int) -> list[str]:
        loop = asyncio.get_running_loop()
        prompt = host in self._prompt
        async with self._places[prompt]:
            began_s = loop.time()
            try:
                return await _in_a_thread(loop, host, port)
            finally:
                self._prompt.pop(host, None)
                if loop.time() - began_s <= PROMPT_S:
                    self._prompt[host] = None
                    if len(self._prompt) > NAMES_MAX:
                        self._prompt.popitem(last=False)


async def _in_a_thread(loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[str]:
    found: asyncio.Future[list[str]] = loop.create_future()

    def tell(addresses: list[str], error: Exception | None) -> None:
        if found.done():
            return
        if error is None:
            found.set_result(addresses)
        else:
            found.set_exception(error)

    def look() -> None:
        addresses: list[str] = []
        problem: Exception | None = None
        try:
            entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
        except (OSError, UnicodeError) as error:
            problem = error
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(tell, addresses, problem)

    # A thread that hangs in the resolver does not keep the process from ending.
    threading.Thread(target=look, name=f"look up {host}", daemon=True).start()
    return await found
