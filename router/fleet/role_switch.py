"""Makes the engine behind a worker take another role, once nothing is in flight there.

    SGLang   POST /pd_role_switch {"new_role": "decode"}: in place, without loading weights again, if it was
             started with --enable-pd-role-switch. What it had cached is gone then. It answers whether it did,
             and a switch to the role that it has is none (managers/scheduler.py, ``handle_pd_role_switch``;
             pull request 28403). Towards decode it may capture CUDA graphs first, which takes minutes.
    vLLM     nothing: NixlConnector knows no roles, each request says what it is to do
             (docs/features/nixl_connector_usage.md, ``kv_role``). What it had cached stays.

Any other engine is taken for one that does either: who labels it ``convertible=true`` says so.
"""

import logging
from typing import Any

import httpx

from policies import Switched

logger = logging.getLogger(__name__)

SWITCH_S_MAX = 300.0
"""A switch that takes longer is asked for again."""

NOT_YET = ("not idle", "in progress")
"""What SGLang says of a switch that may succeed later."""

BROKEN = ("unhealthy", "restart")
"""What it says when it is neither what it was nor what it should be."""


async def switch_role(client: httpx.AsyncClient, url: str, engine: str, role: str) -> Switched:
    """Make an engine take a role; asking again does no harm.

    Args:
        client: Asks it.
        url: Base URL of its worker.
        engine: ``sglang``, ``vllm`` or empty.
        role: ``prefill`` or ``decode``.
    """
    if engine != "sglang":
        return Switched.DONE
    try:
        answer = await client.post(f"{url}/pd_role_switch", json={"new_role": role}, timeout=SWITCH_S_MAX)
        told: Any = answer.json() if answer.content else None
    except httpx.HTTPError as error:
        logger.warning(
            "an engine did not answer when it was to switch its role",
            extra={"event": "role.unanswered", "url": url, "role": role, "detail": type(error).__name__},
        )
        return Switched.LATER
    except ValueError:
        told = None
    outcome = _outcome(answer.status_code, told)
    if outcome is not Switched.EMPTIED:
        logger.warning(
            "an engine did not switch its role",
            extra={
                "event": "role.refused",
                "url": url,
                "role": role,
                "outcome": outcome.value,
                "status": answer.status_code,
                "detail": _message(told)[:200],
            },
        )
    return outcome


def _outcome(status: int, told: Any) -> Switched:
    """What an answer means."""
    if isinstance(told, dict) and told.get("success") is True and status < 300:
        return Switched.EMPTIED
    message = _message(told)
    if any(words in message for words in NOT_YET):
        return Switched.LATER
    if any(words in message for words in BROKEN):
        return Switched.BROKEN
    if isinstance(told, dict) and told.get("safe_to_restore") is False:
        return Switched.BROKEN
    # It does not know the way, was not started for it, or is busy with something else.
    return Switched.LATER if status >= 500 else Switched.REFUSED


def _message(told: Any) -> str:
    message = told.get("message") if isinstance(told, dict) else None
    return message if isinstance(message, str) else ""
