"""uvicorn's server, which waits for its end in place of looking ten times a second."""

import asyncio

import uvicorn


class PatientServer(uvicorn.Server):
    """Serves until ``should_exit`` is true; set it on the event loop.

    uvicorn's own loop also writes the default headers, which `router.proxy.GatewayProtocol` does not send,
    and counts requests up to a limit, which no gateway has.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        self._over = asyncio.Event()
        super().__init__(config)

    @property
    def should_exit(self) -> bool:
        """True once the server is to stop."""
        return self._over.is_set()

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        if value:
            self._over.set()
        else:
            self._over.clear()

    async def main_loop(self) -> None:
        """Wait for the end."""
        await self._over.wait()
