"""The adapters of one process, the gate at which requests wait for them, and copies of requests."""

import httpx

from router.fleet import Core
from router.gateway import Gateway
from router.gateway.gateway import TokenizingPort
from router.model_rules import ModelRules
from router.models import AdapterGate, AdapterLoader, Mirror, ModelReader
from router.settings import Settings
from router.shared import AdapterUses


class ModelSide:
    """Puts gate and mirror in front of the gateway's tokenizer while they have something to do."""

    def __init__(
        self,
        gateway: Gateway,
        client: httpx.AsyncClient,
        tokenizing: TokenizingPort | None,
        uses: AdapterUses | None = None,
    ) -> None:
        self._gateway, self._tokenizing = gateway, tokenizing
        self._core = Core(gateway.fleet, gateway.registry, gateway.log)
        self.loader = AdapterLoader(self._core, client, gateway.metrics, uses)
        self.mirror = Mirror(ModelRules(), gateway.metrics)

    def use(self, settings: Settings) -> None:
        """Apply new settings to later requests; call it after the gateway's own `Gateway.use`."""
        gateway, reader = self._gateway, self._gateway.reader
        self.loader.per_worker_max = settings.models.adapters_per_worker_max
        adapters = reader.adapters if isinstance(reader, ModelReader) else None
        following = self._tokenizing
        self.loader.uses.keep(() if adapters is None else adapters.rules)
        if adapters is not None:
            following = AdapterGate(adapters, self.loader, self._core, following)
        self.mirror.rules, self.mirror.tokenizing = settings.models, following
        gateway.tokenizing = self.mirror if self.mirror.is_on else following

    async def close(self) -> None:
        """End all work under way."""
        await self.loader.close()
        await self.mirror.close()
