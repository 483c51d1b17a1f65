"""Gateway processes that are built but not connected, or that serve without sockets."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from router.app import GatewayProcess
from router.settings import Settings

NOWHERE = "redis://127.0.0.1:1"


def settings(**sections: dict[str, Any]) -> Settings:
    return Settings.model_validate(sections)


async def built(**sections: dict[str, Any]) -> GatewayProcess:
    """A process that is not connected to anything."""
    return GatewayProcess(settings(**sections), redis_url=NOWHERE)


@contextlib.asynccontextmanager
async def running(process: GatewayProcess) -> AsyncIterator[httpx.AsyncClient]:
    """The process serves; a client of its admin API."""
    transport = httpx.ASGITransport(process.api)
    async with (
        process.api.router.lifespan_context(process.api),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        yield client


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [getattr(record, "event", "") for record in caplog.records]
