"""The address of a prefill worker's bootstrap server, and its other labels for hand-over.

SGLang's and Mooncake's prefill engines listen on a port of their own for decode engines, on the host of the
worker's URL or the label ``bootstrap_host``. The port is the label ``bootstrap_port``, else the engine's own
report (`router.fleet.engine_info`), else 8998: the default of both (``srt/server_args.py`` of SGLang,
``VLLM_MOONCAKE_BOOTSTRAP_PORT`` in vLLM's ``envs.py``).
"""

from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from policies import BOOTSTRAP_HOST_LABEL, BOOTSTRAP_PORT_LABEL
from radix import parsed_whole

if TYPE_CHECKING:
    from router.fleet import LocalWorker

DEFAULT_PORT = 8998


class Bootstrap(msgspec.Struct, frozen=True, gc=False):
    """The address of a bootstrap server; an IPv6 host has brackets."""

    host: str
    port: int
    host_json: bytes


def bootstrap_of(worker: "LocalWorker") -> Bootstrap:
    """Return the address of a prefill worker's bootstrap server."""
    labels = worker.worker.labels
    port = labels.get(BOOTSTRAP_PORT_LABEL) or str(worker.advertised_port or "")
    return _bootstrap(worker.worker.url, labels.get(BOOTSTRAP_HOST_LABEL, ""), port)


@lru_cache(maxsize=4096)
def _bootstrap(url: str, host: str, port: str) -> Bootstrap:
    if not host:
        host = urlsplit(url).hostname or ""
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    number = parsed_whole(port, 65535) or DEFAULT_PORT
    return Bootstrap(host, number, msgspec.json.encode(host))
