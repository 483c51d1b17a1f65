"""Makes the engine behind a worker take another role, once nothing is in flight there.

An engine whose dialect has nothing to do for it (`router.engines`), or which is not known, has switched at
once: who labels it ``convertible=true`` says so.
"""

import logging
from collections.abc import Iterable
from functools import partial

import httpx

from policies import Switched
from router.engines import DIALECTS
from router.fleet.pages import page

logger = logging.getLogger(__name__)


async def switch_role(
    client: httpx.AsyncClient, url: str, engine: str, role: str, peers: Iterable[str] = ()
) -> Switched:
    """Make an engine take a role; asking again does no harm.

    Args:
        client: Asks it.
        url: Base URL of its worker.
        engine: Name of its dialect, or empty.
        role: ``prefill`` or ``decode``.
        peers: Base URLs of workers whose engines have that role.
    """
    dialect = DIALECTS.get(engine)
    if dialect is None or dialect.role_switch is None:
        return Switched.DONE
    outcome, message = await dialect.role_switch.switch(client, partial(page, client), url, role, peers)
    if outcome is not Switched.EMPTIED:
        logger.warning(
            "an engine did not switch its role",
            extra={
                "event": "role.refused",
                "url": url,
                "role": role,
                "outcome": outcome.value,
                "detail": message[:200],
            },
        )
    return outcome


async def role_of(client: httpx.AsyncClient, url: str, engine: str) -> str:
    """Which role an engine has now: ``prefill``, ``decode``, or empty if it does not say."""
    dialect = DIALECTS.get(engine)
    if dialect is None or dialect.role_switch is None:
        return ""
    return await dialect.role_switch.role(partial(page, client), url)
