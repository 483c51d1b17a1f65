"""SGLang.

GET /get_server_info   KV capacity (``max_total_num_tokens`` of each of ``dp_size`` ranks), requests that each
                       runs at a time (``effective_max_running_requests_per_dp``), tokens prefilled per step
                       (``chunked_prefill_size``), bootstrap port (``disaggregation_bootstrap_port``), role
                       (``disaggregation_mode``), and (/server_info too) publishers: kv_events {endpoint_host,
                       endpoint_port_base, topic, dp_size}, kv_events_config {replay_endpoint}
POST /pd_role_switch   {"new_role": "decode"}: takes another role in place, without loading weights again, if
                       started with --enable-pd-role-switch; its cache is lost. It answers whether it did; a
                       switch to its present role changes nothing (managers/scheduler.py,
                       ``handle_pd_role_switch``; pull request 28403). Towards decode it captures CUDA
                       graphs, which takes minutes; newer releases want their sizes and memory in the
                       request, as a decoding engine reports them (``internal_states`` of /get_server_info).

Host memory (HiCache of 0.5.23, ``arg_groups/fields/memory.py``, ``mem_cache/pool_host/base.py``): the server
info has ``enable_hierarchical_cache``, ``hicache_ratio`` (host per device, 2 by default) or ``hicache_size``
(GB of each GPU), and ``hicache_write_policy``. With metrics, ``sglang:hicache_host_total_tokens`` of each
rank is exact: the default ratio shrinks where memory is short. The host has a copy of the device's blocks,
unless it is written back: then it has the rest. ``hicache_host_memory_mode`` ``buffer_only`` keeps nothing.

Salts: it puts ``cache_salt`` before ``extra_key`` (``entrypoints/openai/serving_base.py``); ``/generate``
takes ``extra_key``. ``/v1/messages`` (``entrypoints/anthropic/protocol.py``), embeddings, ranks and scores
(``EmbeddingReqInput`` in ``managers/io_struct.py``) have neither and would share the cache.

Ranks: ``dp_size`` of the server info. A request names one in the body, ``routed_dp_rank`` since 0.5.10 and
``data_parallel_rank`` since 0.5.7 (an alias later), and since 0.5.10 in the header ``X-Data-Parallel-Rank``,
which counts first (``entrypoints/openai/serving_base.py``, ``extract_routed_dp_rank_from_header``; chat,
completions, responses, and messages behind chat). Before 0.5.7 only ``/generate`` could. A rank out of range
is refused with 400 (0.5.23 ``managers/tokenizer_manager.py``).

Load: ``token_usage`` is the fuller of the pools of a hybrid model. The gauges are set with every prefill
batch and every 40th decode step, and while idle twice a minute. Hand-over: `router.handover.sglang`.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

import httpx
import msgspec

from policies import DECODE, PREFILL, Switched
from radix import COUNT_MAX, KEYS_MAX, RANKS_MAX, TOKENS_MAX, sane_real, sane_whole, whole
from router.engines import sources
from router.engines.dialect import Description, EngineDialect, LoadMetrics, Read, RoleSwitch
from router.engines.sources import Source, at_worker, decoded, shifted

SWITCH_S_MAX = 300.0
"""A slower switch is asked for again."""

INFO_S_MAX = 5.0

PEERS_ASKED_MAX = 3
"""Decoding engines that are asked for the sizes of their graphs."""

NOT_YET = ("not idle", "in progress")
"""In SGLang's message if a switch may succeed later."""

BROKEN = ("unhealthy", "restart")
"""In its message if it has neither the old nor the new role."""

MEMORY_GB_MAX = 1e6
"""More than any machine has."""

GRAPH_MEMORY, GRAPH_SIZES = "decode_cuda_graph_memory_gb", "decode_cuda_graph_bs"

_VERSION = re.compile(r"v?(\d{1,9})\.(\d{1,9})\.(\d{1,9})", re.ASCII)
_RANKS_SINCE = (0, 5, 7)
HICACHE_RATIO = 2.0
"""Host memory per device memory by default."""

_HOST_TOTAL = re.compile(r"^sglang:hicache_host_total_tokens(?:\{([^}]*)\})?[ \t]+(\S+)", re.MULTILINE)
_DP_RANK = re.compile(r'(?:^|,)dp_rank="([^"]*)"')

_ROLES = {"null": "plain", "prefill": PREFILL, "decode": DECODE}


def describe(answer: Any, metrics: str) -> Description:
    """Read its server info and metrics; a number beyond `radix.bounds` counts as missing."""
    if not isinstance(answer, dict):
        return Description()
    return Description(
        capacity_tokens=_capacity_tokens(answer),
        running_max=_running_max(answer),
        step_tokens=sane_whole(answer.get("chunked_prefill_size"), TOKENS_MAX),
        bootstrap_port=sane_whole(answer.get("disaggregation_bootstrap_port"), 65535),
        role=_role(answer),
        ranks=sane_whole(answer.get("dp_size"), RANKS_MAX) if _is_told_ranks(answer) else 0,
        host_tokens=_host_tokens(answer, metrics),
    )


def _is_told_ranks(info: dict[str, Any]) -> bool:
    """True for a version whose requests can name a rank; an unknown version is a new one."""
    found = _VERSION.match(str(info.get("version", ""))[:64])
    return found is None or tuple(map(int, found.groups())) >= _RANKS_SINCE


def _states(info: dict[str, Any]) -> list[dict[str, Any]]:
    states = info.get("internal_states")
    return [state for state in states if isinstance(state, dict)] if isinstance(states, list) else []


def _capacity_tokens(answer: dict[str, Any]) -> int:
    for source in (answer, *_states(answer)):
        value = sane_whole(source.get("max_total_num_tokens"), TOKENS_MAX)
        if value:
            return sane_whole(value * _ranks(answer), TOKENS_MAX)
    return 0


def _host_tokens(answer: dict[str, Any], metrics: str) -> int:
    """Return the tokens that host memory of all ranks offers for reuse; 0 for none, or if unknown."""
    in_cache_mode = answer.get("hicache_host_memory_mode") in (None, "cache")
    device_tokens = _capacity_tokens(answer)
    if answer.get("enable_hierarchical_cache") is not True or not in_cache_mode or not device_tokens:
        return 0
    tokens = _counted_host_tokens(metrics) or _configured_host_tokens(answer, device_tokens)
    if answer.get("hicache_write_policy") == "write_back":
        tokens += device_tokens
    return whole(tokens, TOKENS_MAX)


def _counted_host_tokens(metrics: str) -> float:
    """Return the size of the host pools by the metrics, of all ranks; 0 without such lines."""
    ranks: dict[str, float] = {}
    for labels, number in _HOST_TOTAL.findall(metrics):
        found = _DP_RANK.search(labels)
        try:
            tokens = sane_real(float(number), TOKENS_MAX)
        except ValueError:
            continue
        rank = found.group(1) if found is not None else ""
        ranks[rank] = max(ranks.get(rank, 0.0), tokens)
        if len(ranks) == RANKS_MAX:
            break
    return sum(ranks.values())


def _configured_host_tokens(answer: dict[str, Any], device_tokens: int) -> float:
    """Return the same by the arguments it was started with; 0 if they do not tell."""
    size_gb = _amount(answer.get("hicache_size"), MEMORY_GB_MAX)
    if not size_gb:
        ratio = answer.get("hicache_ratio")
        return device_tokens * (HICACHE_RATIO if ratio is None else _amount(ratio, COUNT_MAX))
    for state in _states(answer):
        usage = state.get("memory_usage")
        if isinstance(usage, dict):
            device_gib = _amount(usage.get("kvcache"), MEMORY_GB_MAX)
            rank_tokens = sane_whole(usage.get("token_capacity"), TOKENS_MAX)
            if device_gib and rank_tokens:
                return size_gb * 1e9 / (device_gib * (1 << 30)) * rank_tokens * _ranks(answer)
    return 0.0


def _amount(value: object, most: float) -> float:
    """Return a number of its answer within 0 to ``most``; 0 for everything else."""
    return max(sane_real(value, most), 0.0) if isinstance(value, int | float) else 0.0


def _ranks(info: dict[str, Any]) -> int:
    return sane_whole(info.get("dp_size"), RANKS_MAX) or 1


def _running_max(answer: dict[str, Any]) -> int:
    """Return the requests that all data-parallel ranks run at a time; 0 if unknown.

    The scheduler's own limit counts first: its pools may be too small for the configured one (SGLang
    managers/scheduler.py ``get_internal_state``).
    """
    for state in _states(answer):
        value = sane_whole(state.get("effective_max_running_requests_per_dp"), COUNT_MAX)
        if value:
            return sane_whole(value * _ranks(answer), COUNT_MAX)
    return sane_whole(answer.get("max_running_requests"), COUNT_MAX)


def _role(answer: dict[str, Any]) -> str:
    """Return the role, or empty: the scheduler's, or the start's if the engine never switched."""
    for source in (*_states(answer), answer):
        mode = source.get("disaggregation_mode")
        if mode is not None:
            return _ROLES.get(mode, "") if isinstance(mode, str) else ""
    return ""


def event_sources(answer: bytes | None, url: str) -> tuple[Source, ...]:
    """Read SGLang's ``/server_info``; none if it names nothing that can be followed."""
    info = decoded(answer, _Info)
    if info is None or info.kv_events is None or info.kv_events.publisher != "zmq":
        return ()
    events, text = info.kv_events, info.kv_events_config
    config = decoded(text.encode(), _Config) if isinstance(text, str) else None
    replay = None if config is None else at_worker(config.replay_endpoint, url)
    host = events.endpoint_host
    endpoint = at_worker(
        f"tcp://{f'[{host}]' if ':' in host.strip('[]') else host}:{events.endpoint_port_base}", url
    )
    if endpoint is None or not 0 < events.dp_size <= sources.RANKS_MAX:
        return ()
    return tuple(
        Source(rank, shifted(endpoint, rank), shifted(replay or "", rank) or None, events.topic)
        for rank in range(events.dp_size)
    )


class _Events(msgspec.Struct):
    endpoint_host: str
    endpoint_port_base: int
    publisher: str = "zmq"
    topic: str = ""
    dp_size: int = 1


class _Info(msgspec.Struct):
    kv_events: _Events | None = None
    kv_events_config: Any = None


class _Config(msgspec.Struct):
    replay_endpoint: str | None = None


async def switch(
    client: httpx.AsyncClient, read: Read, url: str, role: str, peers: Iterable[str]
) -> tuple[Switched, str]:
    """Make it take a role; asking again does no harm."""
    outcome, message = await _ask_switch(client, url, {"new_role": role})
    if outcome is Switched.REFUSED and GRAPH_MEMORY in message:
        graphs = await _graphs(read, peers)
        if graphs:
            return await _ask_switch(client, url, {"new_role": role, **graphs})
    return outcome, message


async def role_now(read: Read, url: str) -> str:
    """Return its present role: ``prefill``, ``decode``, or empty if unknown."""
    role = _role(await _info(read, url))
    return role if role in (PREFILL, DECODE) else ""


async def _ask_switch(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> tuple[Switched, str]:
    try:
        answer = await client.post(f"{url}/pd_role_switch", json=body, timeout=SWITCH_S_MAX)
    except httpx.HTTPError as error:
        return Switched.LATER, type(error).__name__
    try:
        reply = answer.json()
    except (ValueError, RecursionError):
        reply = None
    reply = reply if isinstance(reply, dict) else {}
    message = str(reply.get("message") or f"HTTP {answer.status_code}")
    if reply.get("success") is True and answer.is_success:
        return Switched.EMPTIED, message
    if any(words in message for words in NOT_YET):
        return Switched.LATER, message
    if reply.get("safe_to_restore") is False or any(words in message for words in BROKEN):
        return Switched.BROKEN, message
    # It does not know the route, was not started for it, or is failing for the moment.
    return Switched.LATER if answer.is_server_error else Switched.REFUSED, message


async def _graphs(read: Read, peers: Iterable[str]) -> dict[str, Any]:
    for url in list(peers)[:PEERS_ASKED_MAX]:
        states = _states(await _info(read, url))
        memory_gb = [state.get(GRAPH_MEMORY) for state in states]
        sane_gb = [one for one in memory_gb if isinstance(one, int | float) and 0 < one <= MEMORY_GB_MAX]
        if sane_gb:
            sizes = states[0].get(GRAPH_SIZES)
            return {GRAPH_MEMORY: max(sane_gb), **({GRAPH_SIZES: sizes} if _are_sizes(sizes) else {})}
    return {}


def _are_sizes(sizes: object) -> bool:
    return (
        isinstance(sizes, list)
        and 0 < len(sizes) <= KEYS_MAX
        and all(sane_whole(size, COUNT_MAX) > 0 for size in sizes)
    )


async def _info(read: Read, url: str) -> dict[str, Any]:
    try:
        info = json.loads(await read(f"{url}/get_server_info", INFO_S_MAX) or b"")
    except (ValueError, RecursionError):
        return {}
    return info if isinstance(info, dict) else {}


SGLANG = EngineDialect(
    name="sglang",
    metrics_prefix="sglang:",
    load=LoadMetrics(
        b"sglang:num_running_reqs",
        b"sglang:num_queue_reqs",
        (b"sglang:token_usage",),
        (b"sglang:num_used_tokens", b"sglang:max_total_num_tokens"),
    ),
    handover="sglang",
    event_pages=("/server_info", "/get_server_info"),
    event_sources=event_sources,
    info_page="/get_server_info",
    describe=describe,
    overlooks_salt=frozenset(
        (
            *("/v1/messages", "/v1/embeddings", "/v1/rerank", "/rerank", "/v1/score", "/score"),
            *("/v2/rerank", "/v2/embed", "/classify", "/v1/classify", "/pooling", "/generative_scoring"),
            *("/v1/chat/completions/batch", "/cohere/v2/chat", "/inference/v1/generate", "/vertex_generate"),
        )
    ),
    role_switch=RoleSwitch(switch, role_now),
    rank_fields=("routed_dp_rank", "data_parallel_rank"),
)
