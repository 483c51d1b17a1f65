"""Where a prefill worker's bootstrap server is, and other labels that hand-over needs.

SGLang's and Mooncake's prefill engines listen on a port of their own for decode engines
(`router.fleet.LocalWorker.bootstrap`).
"""

from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from router.fleet import LocalWorker

RANKS_LABEL = "dp_size"


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
    return _bootstrap(*worker.bootstrap)


def data_parallel_ranks(worker: "LocalWorker") -> int:
    """How many data-parallel ranks a worker has, >= 1."""
    label = worker.worker.labels.get(RANKS_LABEL, "")
    return max(1, int(label)) if label.isdecimal() else 1


@lru_cache(maxsize=4096)
def _bootstrap(host: str, port: int) -> Bootstrap:
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return Bootstrap(host, port, msgspec.json.encode(host))
