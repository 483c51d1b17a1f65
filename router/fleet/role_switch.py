"""Makes the engine behind a worker take another role, once nothing is in flight there.

    SGLang   POST /pd_role_switch {"new_role": "decode"}: in place, without loading weights again, if it was
             started with --enable-pd-role-switch. What it had cached is gone then. It answers whether it did,
             and a switch to the role that it has is none (managers/scheduler.py, ``handle_pd_role_switch``;
             pull request 28403). Towards decode it captures CUDA graphs, which takes minutes; newer ones
             want to be told their sizes and memory, as an engine that decodes already says them
             (``internal_states`` of /get_server_info).
    vLLM     nothing: NixlConnector knows no roles, each request says what it is to do
             (docs/features/nixl_connector_usage.md, ``kv_role``). What it had cached stays.

Any other engine is taken for one that does either: who labels it ``convertible=true`` says so.
"""

import json
import logging
from collections.abc import Iterable
from typing import Any

import httpx

from policies import DECODE, PREFILL, Switched
from radix import COUNT_MAX, KEYS_MAX, sane_whole
from router.fleet.engine_info import sglang_role
from router.fleet.pages import page

logger = logging.getLogger(__name__)

SWITCH_S_MAX = 300.0
"""A switch that takes longer is asked for again."""

INFO_S_MAX = 5.0

PEERS_ASKED_MAX = 3
"""Engines that decode which are asked for the sizes of their graphs."""

NOT_YET = ("not idle", "in progress")
"""What SGLang says of a switch that may succeed later."""

BROKEN = ("unhealthy", "restart")
"""What it says when it is neither what it was nor what it should be."""

GRAPH_MEMORY_GB_MAX = 1e6
"""More than any machine has."""

GRAPH_MEMORY, GRAPH_SIZES = "decode_cuda_graph_memory_gb", "decode_cuda_graph_bs"


async def switch_role(
    client: httpx.AsyncClient, url: str, engine: str, role: str, peers: Iterable[str] = ()
) -> Switched:
    """Make an engine take a role; asking again does no harm.

    Args:
        client: Asks it.
        url: Base URL of its worker.
        engine: ``sglang``, ``vllm`` or empty.
        role: ``prefill`` or ``decode``.
        peers: Base URLs of workers whose engines have that role.
    """
    if engine != "sglang":
        return Switched.DONE
    outcome, message = await _asked(client, url, {"new_role": role})
    if outcome is Switched.REFUSED and GRAPH_MEMORY in message:
        graphs = await _graphs(client, peers)
        if graphs:
            outcome, message = await _asked(client, url, {"new_role": role, **graphs})
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


async def role_of(client: httpx.AsyncClient, url: str) -> str:
    """Which role an SGLang engine has now: ``prefill``, ``decode``, or empty if it does not say."""
    role = sglang_role(await _info(client, url))
    return role if role in (PREFILL, DECODE) else ""


async def _asked(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> tuple[Switched, str]:
    """Ask an engine to switch: what became of it, and what it said."""
    try:
        answer = await client.post(f"{url}/pd_role_switch", json=body, timeout=SWITCH_S_MAX)
    except httpx.HTTPError as error:
        return Switched.LATER, type(error).__name__
    try:
        told = answer.json()
    except (ValueError, RecursionError):
        told = None
    told = told if isinstance(told, dict) else {}
    message = str(told.get("message") or f"HTTP {answer.status_code}")
    if told.get("success") is True and answer.is_success:
        return Switched.EMPTIED, message
    if any(words in message for words in NOT_YET):
        return Switched.LATER, message
    if told.get("safe_to_restore") is False or any(words in message for words in BROKEN):
        return Switched.BROKEN, message
    # It does not know the way, was not started for it, or is not itself for the moment.
    return Switched.LATER if answer.is_server_error else Switched.REFUSED, message


async def _graphs(client: httpx.AsyncClient, peers: Iterable[str]) -> dict[str, Any]:
    """Sizes and memory of CUDA graphs for decode, as one of some engines has them; empty if none says."""
    for url in list(peers)[:PEERS_ASKED_MAX]:
        states = _states(await _info(client, url))
        memory_gb = [state.get(GRAPH_MEMORY) for state in states]
        known = [one for one in memory_gb if isinstance(one, int | float) and 0 < one <= GRAPH_MEMORY_GB_MAX]
        if known:
            sizes = states[0].get(GRAPH_SIZES)
            return {GRAPH_MEMORY: max(known), **({GRAPH_SIZES: sizes} if _are_sizes(sizes) else {})}
    return {}


def _are_sizes(sizes: object) -> bool:
    """Whether an engine says sizes of batches, which are passed on to another one."""
    return (
        isinstance(sizes, list)
        and 0 < len(sizes) <= KEYS_MAX
        and all(sane_whole(size, COUNT_MAX) > 0 for size in sizes)
    )


async def _info(client: httpx.AsyncClient, url: str) -> dict[str, Any]:
    """What an SGLang server says of itself; empty if it does not."""
    try:
        info = json.loads(await page(client, f"{url}/get_server_info", INFO_S_MAX) or b"")
    except (ValueError, RecursionError):
        return {}
    return info if isinstance(info, dict) else {}


def _states(info: dict[str, Any]) -> list[dict[str, Any]]:
    """What its schedulers say, one for each data-parallel rank."""
    states = info.get("internal_states")
    return [state for state in states if isinstance(state, dict)] if isinstance(states, list) else []
