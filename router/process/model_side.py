"""The adapters of one process: their loader, and the gate at which requests wait for it."""

import httpx

from router.fleet import Core
from router.gateway import Gateway
from router.gateway.gateway import TokenizingPort
from router.models import AdapterGate, AdapterLoader, ModelReader
from router.settings import Settings


class ModelSide:
    """Puts the gate in front of the gateway's tokenizer while adapters are declared."""

    def __init__(
        self, gateway: Gateway, client: httpx.AsyncClient, tokenizing: TokenizingPort | None
    ) -> None:
        self._gateway, self._tokenizing = gateway, tokenizing
        self._core = Core(gateway.fleet, gateway.registry, gateway.log)
        self.loader = AdapterLoader(self._core, client, gateway.metrics)

    def use(self, settings: Settings) -> None:
        """Apply new settings to later requests; call it after the gateway's own `Gateway.use`."""
        gateway, reader = self._gateway, self._gateway.reader
        self.loader.per_worker_max = settings.models.adapters_per_worker_max
        adapters = reader.adapters if isinstance(reader, ModelReader) else None
        gateway.tokenizing = (
            self._tokenizing
            if adapters is None
            else AdapterGate(adapters, self.loader, self._core, self._tokenizing)
        )

    async def close(self) -> None:
        """End the loads that are under way."""
        await self.loader.close()
