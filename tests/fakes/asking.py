"""Asks workers whose answers the test writes, as `router.fleet.asking.Asker` does."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx

from router.fleet.asking import (
    ANSWER_BYTES_MAX,
    Answer,
    BadAnswer,
    Lines,
    NotConnected,
    TooLate,
    TooLong,
)


def _ignored(*_: object) -> None:
    return None


class ScriptedAsker:
    """An asker whose workers are a function from an httpx request to its response, perhaps a coroutine."""

    def __init__(self, handle: Callable[[httpx.Request], Any]) -> None:
        self.handle = handle
        self.rebuilt = 0

    def rebuild(self) -> None:
        self.rebuilt += 1

    async def ask(
        self,
        method: str,
        url: str,
        *,
        timeout_s: float,
        lines: Lines = (),
        body: bytes = b"",
        bytes_max: int = ANSWER_BYTES_MAX,
        head_only: bool = False,
        begun: Callable[[], None] = _ignored,
        connected: Callable[[float], None] = _ignored,
    ) -> Answer:
        begun()
        try:
            async with asyncio.timeout(timeout_s):
                answer = self.handle(httpx.Request(method, url, headers=list(lines), content=body))
                response: httpx.Response = await answer if asyncio.iscoroutine(answer) else answer
                connected(0.001)
                content = bytearray()
                if not head_only:
                    async for piece in response.aiter_bytes():
                        content += piece
                        if len(content) > bytes_max:
                            raise TooLong("the answer is longer than is read")
        except (TimeoutError, httpx.ReadTimeout):
            raise TooLate(connected=True) from None
        except httpx.ConnectTimeout:
            raise TooLate(connected=False) from None
        except httpx.ConnectError as error:
            raise NotConnected(str(error)) from error
        except httpx.HTTPError as error:
            raise BadAnswer(str(error)) from error
        headers = [(name.lower(), value) for name, value in response.headers.raw]
        return Answer(response.status_code, headers, bytes(content))
