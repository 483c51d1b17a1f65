"""Tenants of a process: the files of keys and tokens, and the leases of limits."""

import asyncio

from router.metrics import Metrics
from router.process.loops import Loop
from router.settings import Settings
from router.shared import Keys, Leases, LogPort
from router.tenants import Door, Keyring, KeysWatch, Limiter, TokensWatch


class TenantSide:
    """The tenants of one process, and their door. Make it inside a running event loop.

    ``keys`` and ``limiter`` are None without a keys file, ``tokens`` without a file of admin tokens.
    """

    def __init__(
        self, settings: Settings, keyring: Keyring, log: LogPort, redis_url: str, metrics: Metrics
    ) -> None:
        keys_file, tokens_file = settings.tenancy.keys_file, settings.admin.tokens_file
        self.keys = KeysWatch(keys_file, keyring, classes=settings.queue.classes) if keys_file else None
        self.tokens = TokensWatch(tokens_file) if tokens_file else None
        key = settings.server.api_key
        self.door = Door(
            admin_key=key.get_secret_value().encode() if key is not None else None,
            tenant_header=settings.tenancy.tenant_header.encode(),
            keys=keyring if keys_file else None,
        )
        self.leases = Leases(
            redis_url,
            Keys(settings.shared.namespace),
            log.replica,
            now_us=log.now_us,
            replicas=log.replicas,
            ttl_s=settings.shared.heartbeat_ttl_s,
            loop=asyncio.get_running_loop(),
        )
        self.limiter = None if self.keys is None else Limiter(self.leases, metrics.limit_rejected)
        for watch in (self.keys, self.tokens):
            if watch is not None:
                watch.load()

    def loops(self) -> list[Loop]:
        """Return the tasks to run while the process serves."""
        loops: list[Loop] = []
        if self.keys is not None:
            loops += [("keys", self.keys.run), ("limits", self.leases.run)]
        if self.tokens is not None:
            loops.append(("tokens", self.tokens.run))
        return loops
