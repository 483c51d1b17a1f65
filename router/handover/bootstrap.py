"""Where a prefill worker's bootstrap server is, and other labels that hand-over needs.

SGLang's and Mooncake's prefill engines listen on a port of their own for decode engines. It is on the host
of the worker's URL unless ``bootstrap_host`` says otherwise. The port is what ``bootstrap_port`` says, else
what the engine does (`router.fleet.engine_info`), else 8998: the default of both (``srt/server_args.py`` of
SGLang, ``VLLM_MOONCAKE_BOOTSTRAP_PORT`` in vLLM's ``envs.py``).
"""

from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from policies import BOOTSTRAP_HOST_LABEL, BOOTSTRAP_PORT_LABEL, DP_SIZE_LABEL
from radix import RANKS_MAX, parsed_whole

if TYPE_CHECKING:
    from router.fleet import LocalWorker

DEFAULT_PORT = 8998


class Bootstrap(msgspec.Struct, frozen=True, gc=False):
    """The address of a bootstrap server.

    Attributes:
        host: Name or address; IPv6 in brackets.
        port: Port.
        host_json: The host as JSON.
    """

    host: str
    port: int
    host_json: bytes


def bootstrap_of(worker: "LocalWorker") -> Bootstrap:
    """Where a prefill worker's bootstrap server is."""
    labels = worker.worker.labels
    port = labels.get(BOOTSTRAP_PORT_LABEL) or str(worker.advertised_port or "")
    return _bootstrap(worker.worker.url, labels.get(BOOTSTRAP_HOST_LABEL, ""), port)


def data_parallel_ranks(worker: "LocalWorker") -> int:
    """How many data-parallel ranks a worker has, >= 1."""
    return parsed_whole(worker.worker.labels.get(DP_SIZE_LABEL, ""), RANKS_MAX) or 1


@lru_cache(maxsize=4096)
def _bootstrap(url: str, host: str, port: str) -> Bootstrap:
    """Of a worker with these labels; a port that is none counts as absent."""
    if not host:
        host = urlsplit(url).hostname or ""
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    number = parsed_whole(port, 65535) or DEFAULT_PORT
    return Bootstrap(host, number, msgspec.json.encode(host))
