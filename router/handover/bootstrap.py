"""Where a prefill worker's bootstrap server is, and other labels that hand-over needs.

SGLang's and Mooncake's prefill engines listen on a port of their own for decode engines. It is on the host
of the worker's URL unless ``bootstrap_host`` says otherwise, and 8998 unless ``bootstrap_port`` does: the
default of both (``srt/server_args.py`` of SGLang, ``VLLM_MOONCAKE_BOOTSTRAP_PORT`` in vLLM's ``envs.py``).
"""

from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

if TYPE_CHECKING:
    from router.fleet import LocalWorker

HOST_LABEL = "bootstrap_host"
PORT_LABEL = "bootstrap_port"
RANKS_LABEL = "dp_size"

DEFAULT_PORT = 8998


def bootstrap_fields(worker: "LocalWorker") -> bytes:
    """The address in the words of SGLang: ``"bootstrap_host":...,"bootstrap_port":...``."""
    labels = worker.worker.labels
    return _fields(worker.worker.url, labels.get(HOST_LABEL, ""), labels.get(PORT_LABEL, ""))


def bootstrap_address(url: str, host: str, port: str) -> tuple[str, int]:
    """Host, an IPv6 one in brackets, and port.

    Args:
        url: The worker's.
        host: Its label, or empty.
        port: Its label, or empty; what is no port counts as empty.
    """
    if not host:
        host = urlsplit(url).hostname or ""
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return host, int(port) if port.isdecimal() and 0 < int(port) < 65536 else DEFAULT_PORT


def data_parallel_ranks(worker: "LocalWorker") -> int:
    """How many data-parallel ranks a worker has, >= 1."""
    label = worker.worker.labels.get(RANKS_LABEL, "")
    return max(1, int(label)) if label.isdecimal() else 1


@lru_cache(maxsize=4096)
def _fields(url: str, host: str, port: str) -> bytes:
    host, number = bootstrap_address(url, host, port)
    return b'"bootstrap_host":%b,"bootstrap_port":%d' % (msgspec.json.encode(host), number)
