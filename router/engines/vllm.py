"""vLLM.

GET /metrics            KV capacity: ``vllm:cache_config_info`` block size and count, of all ranks
                        ranks: the ``engine`` labels
                        (``kv_offloading_size`` of the offloading connector is in GiB; 0.33 does not say the
                        bytes of a token, so its host memory is told by a label: `policies.HOST_LABEL`)
GET /kv_event_sources   its publishers: {rank: {endpoint, replay_endpoint, topic, publisher}}

A request names its rank in the header ``X-data-parallel-rank`` (vLLM 0.33 ``entrypoints/generate/base/
serving.py``, ``_get_data_parallel_rank``; chat, completions, responses), from 0 to below the ranks that this
API server calls, which are those of its metrics; another one is refused with 400 (``v1/engine/
input_processor.py``).

It takes ``cache_salt`` at all endpoints that compute (``entrypoints/openai/*/protocol.py``,
``entrypoints/pooling/base/protocol.py``; ``/v1/messages`` since July 2026, its pull request 49498).
NixlConnector knows no roles, since each request names its own (docs/features/nixl_connector_usage.md,
``kv_role``): nothing is switched, and the cache stays. Hand-over: `router.handover.nixl`,
`router.handover.mooncake`.
"""

import re

import msgspec

from radix import TOKENS_MAX, parsed_whole, sane_whole
from router.engines import sources
from router.engines.dialect import EngineDialect, LoadMetrics
from router.engines.sources import Source, at_worker, decoded

_RANK = re.compile(r'^vllm:num_requests_running\{(?:[^}]*,)?engine="([^"]*)"', re.MULTILINE)
_CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{([^}]*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def capacity_tokens(metrics: str) -> int:
    """Return the KV capacity in tokens, of all data-parallel ranks, from vLLM's metrics; 0 if unknown.

    vLLM's own number of one rank counts first: of a model with windows or states, not all blocks are for
    matches (vLLM 0.32 ``v1/core/kv_cache_utils.py``, ``get_kv_cache_capacity``). An older version only has
    the blocks of all ranks, too many for such a model.
    """
    found = _CACHE_CONFIG.search(metrics)
    if found is None:
        return 0
    labels = dict(_LABEL.findall(found.group(1)))
    named = len(set(_RANK.findall(metrics))) or 1
    tokens = parsed_whole(labels.get("kv_cache_size_tokens", ""), TOKENS_MAX)
    if tokens is not None:
        return sane_whole(tokens * named, TOKENS_MAX)
    block_tokens = parsed_whole(labels.get("block_size", ""), TOKENS_MAX) or 0
    return sane_whole(
        block_tokens * (parsed_whole(labels.get("num_gpu_blocks", ""), TOKENS_MAX) or 0), TOKENS_MAX
    )


def ranks(metrics: str) -> int:
    """Return the data-parallel ranks that metrics name, 0, 1, 2, ...; 0 if they name others, or none."""
    named = set(_RANK.findall(metrics))
    return len(named) if named == {str(rank) for rank in range(len(named))} else 0


def event_sources(answer: bytes | None, url: str) -> tuple[Source, ...]:
    """Read vLLM's ``/kv_event_sources``; none if it names nothing that can be followed."""
    entries = decoded(answer, dict[str, _VllmSource])
    found = []
    for name, entry in sorted((entries or {}).items(), key=lambda each: each[0].rjust(5)):
        endpoint = at_worker(entry.endpoint, url)
        rank = parsed_whole(name, sources.RANKS_MAX - 1)
        if rank is None or entry.publisher != "zmq" or endpoint is None:
            continue
        found.append(Source(rank, endpoint, at_worker(entry.replay_endpoint, url), entry.topic))
    return tuple(found)


class _VllmSource(msgspec.Struct):
    endpoint: str
    replay_endpoint: str | None = None
    publisher: str = "zmq"
    topic: str = ""


VLLM = EngineDialect(
    name="vllm",
    metrics_prefix="vllm:",
    load=LoadMetrics(
        b"vllm:num_requests_running",
        b"vllm:num_requests_waiting",
        (b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc"),  # the second one of older versions
    ),
    handover="nixl",
    event_pages=("/kv_event_sources",),
    event_sources=event_sources,
    capacity_tokens=capacity_tokens,
    ranks=ranks,
    overlooks_salt=frozenset(("/v2/embed", "/cohere/v2/chat")),
)
