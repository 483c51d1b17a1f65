"""An event loop in virtual time, and the Redis of one shared log in its memory, which counts commands."""

import asyncio
import selectors
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

EPOCH_S = 1_800_000_000


class _Jump(selectors.SelectSelector):
    """Never waits: where nothing is ready, time passes until the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.waits = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "nothing will ever happen again"
        if timeout > 0:
            self.now_s += timeout
            self.waits += 1
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Counts in ``waits`` how often it waited for a timer."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now_s

    def time_ns(self) -> int:
        return round(self._jump.now_s * 1e9)

    @property
    def waits(self) -> int:
        return self._jump.waits


def run_virtually(main: Callable[[VirtualLoop], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        runner.run(main(loop))


class MemoryRedis:
    """As much of Redis as a shared log without snapshots needs; an answer takes a millisecond."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._stream: list[tuple[int, list[bytes]]] = []
        self._appended = asyncio.Event()
        self._strings: dict[str, bytes] = {}
        self._hashes: dict[str, dict[str, bytes]] = {}
        self._sorted: dict[str, dict[str, float]] = {}
        self.commands: Counter[str] = Counter()

    def link(self, *_: object, **__: object) -> "MemoryLink":
        return MemoryLink(self)

    @property
    def now_s(self) -> float:
        return EPOCH_S + self._loop.time()

    async def answer(self, command: tuple[Any, ...]) -> Any:
        name, arguments = command[0].lower(), command[1:]
        self.commands[name] += 1
        answer = getattr(self, f"_{name}")(*arguments)
        return await answer if asyncio.iscoroutine(answer) else answer

    def _time(self) -> list[bytes]:
        return [b"%d" % self.now_s, b"%d" % (self.now_s % 1 * 1e6)]

    def _info(self, _: str) -> bytes:
        return b"run_id:memory"

    def _get(self, key: str) -> bytes | None:
        return self._strings.get(key)

    def _set(self, key: str, value: bytes | str, *_: object) -> None:
        self._strings[key] = value if isinstance(value, bytes) else value.encode()

    def _exists(self, key: str) -> int:
        return int(key in self._strings)

    def _del(self, key: str) -> None:
        self._strings.pop(key, None)

    def _hset(self, key: str, field: str, value: bytes) -> None:
        self._hashes.setdefault(key, {})[field] = value

    def _hmget(self, key: str, *fields: str) -> list[bytes | None]:
        return [self._hashes.get(key, {}).get(field) for field in fields]

    def _hdel(self, key: str, *fields: str) -> None:
        for field in fields:
            self._hashes.get(key, {}).pop(field, None)

    def _zadd(self, key: str, score: float, member: str) -> None:
        self._sorted.setdefault(key, {})[member] = score

    def _zscore(self, key: str, member: str) -> float | None:
        return self._sorted.get(key, {}).get(member)

    def _zrem(self, key: str, *members: str) -> None:
        for member in members:
            self._sorted.get(key, {}).pop(member, None)

    def _zrevrange(self, key: str, *_: object) -> list[bytes]:
        scores = sorted(self._sorted.get(key, {}).items(), key=lambda each: -each[1])
        return [part for member, score in scores for part in (member.encode(), b"%d" % score)]

    def _xadd(self, _: str, *words: object) -> bytes | None:
        if words[0] == "NOMKSTREAM":
            return None
        fields = [word if isinstance(word, bytes) else str(word).encode() for word in words[4:]]
        self._stream.append((round(self.now_s * 1000) * 1000 + len(self._stream) % 1000, fields))
        self._appended.set()
        self._appended = asyncio.Event()
        return _id(self._stream[-1][0])

    def _entries(self, after: int = -1) -> list[tuple[bytes, list[bytes]]]:
        return [(_id(at), fields) for at, fields in self._stream if at > after]

    def _xrange(self, _: str, first: str, *__: object) -> list[tuple[bytes, list[bytes]]]:
        return self._entries(-1 if first == "-" else _at(first) - 1)[:1]

    def _xrevrange(self, *_: object) -> list[tuple[bytes, list[bytes]]]:
        return self._entries()[-1:]

    async def _xread(self, *words: Any) -> list[Any] | None:
        after = _at(words[-1])
        if not self._entries(after):
            try:
                async with asyncio.timeout(words[3] / 1000):
                    await self._appended.wait()
            except TimeoutError:
                return None
        return [[words[-2], self._entries(after)]]


def _id(at: int) -> bytes:
    return b"%d-%d" % divmod(at, 1000)


def _at(text: str) -> int:
    milliseconds, _, sequence = text.partition("-")
    return int(milliseconds) * 1000 + int(sequence)


class MemoryLink:
    """`router.shared.server.RedisLink`, to a `MemoryRedis`."""

    endpoint = None
    silence_s = 0.0

    def __init__(self, redis: MemoryRedis) -> None:
        self._redis = redis

    async def call(self, *command: Any) -> Any:
        await asyncio.sleep(0.001)
        return await self._redis.answer(command)

    async def calls(self, *commands: tuple[Any, ...]) -> list[Any]:
        await asyncio.sleep(0.001)
        return [await self._redis.answer(command) for command in commands]

    async def replaced(self) -> bool:
        return False

    async def aclose(self) -> None:
        pass
