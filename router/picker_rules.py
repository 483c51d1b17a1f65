"""Settings of the endpoint picker (`router.picker`), and the check that its extra is installed.

Names of flags and defaults are those of the reference picker (gateway-api-inference-extension v1.5.0,
``pkg/epp/server/options.go``), so that a Deployment changes its image and keeps its arguments.
"""

import re
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated

from pydantic import AfterValidator

from policies import setting
from router.discovery import VERSIONS, PodPool
from router.errors import SettingsError
from router.label_selectors import Selector

TARGET_PORTS_MAX = 8
"""Ports of one pod that an InferencePool can name (``api/v1/inferencepool_types.go``)."""

_PORT = re.compile(r"[1-9][0-9]{0,4}")


def _ports(words: tuple[str, ...]) -> tuple[str, ...]:
    """Check that they are ports."""
    ports = tuple(port for word in words for port in word.split(",") if port)
    for port in ports:
        if not _PORT.fullmatch(port) or int(port) > 65535:
            raise ValueError(f"{port[:40]!r} is no port, 1 to 65535")
    if len(ports) > TARGET_PORTS_MAX:
        raise ValueError(f"{len(ports)} ports are more than the {TARGET_PORTS_MAX} that a pool can have")
    return tuple(dict.fromkeys(ports))


@dataclass(frozen=True)
class PickerRules:
    """Choice of workers for proxies, by the endpoint-picker protocol."""

    enabled: bool = setting(
        False,  # noqa: FBT003 - a default
        "Let proxies ask where their requests should go, over gRPC (Envoy's ext_proc); see docs/picker.md. "
        "`cacheway picker` turns it on. Needs the extra cacheway[picker].",
        flag="picker",
    )
    pool_name: str = setting(
        "",
        "InferencePool whose pods are workers, too: by its selector and target ports, followed as they "
        "change. Needs the extra cacheway[kubernetes]. Empty: none.",
        allowed="the name of an object of Kubernetes",
        pattern=r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?$",
    )
    pool_namespace: str = setting(
        "",
        "Namespace of the pool and its pods. Empty: the one where the picker runs.",
        allowed="the name of a namespace",
        pattern=r"^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?$",
    )
    pool_group: str = setting(
        "inference.networking.k8s.io",
        "API group of the pool; the default is the one of version v1.",
        allowed=f"one of {', '.join(VERSIONS)}",
        pattern=rf"^({'|'.join(re.escape(group) for group in VERSIONS)})$",
    )
    endpoint_selector: Selector = setting(
        (),
        "Labels of pods that are workers, in place of a pool. Needs picker.endpoint_target_ports.",
        allowed="requirements of labels, as in discovery.selector",
    )
    endpoint_target_ports: Annotated[tuple[str, ...], AfterValidator(_ports)] = setting(
        (),
        "Ports of the pods that picker.endpoint_selector selects; each is a worker.",
        allowed="1 to 8 port numbers",
    )
    grpc_host: str = setting(
        "0.0.0.0",  # noqa: S104 - a proxy is in another pod
        "Address to listen on, for proxies and for probes. The default is every interface: the proxy is in "
        "another pod.",
        allowed="an address or a host name",
        pattern=r"^\S+$",
    )
    grpc_port: int = setting(9002, "Port for proxies. The default is the reference picker's.", ge=1, le=65535)
    grpc_health_port: int = setting(
        9003,
        "Port for probes (grpc.health.v1), never with TLS. The default is the reference picker's; 0 serves "
        "health on picker.grpc_port only.",
        ge=0,
        le=65535,
    )
    secure_serving: bool = setting(
        True,  # noqa: FBT003 - a default
        "Use TLS for proxies: with the certificate of picker.cert_path, else with one that the picker signs "
        "itself at its start. Gateways expect TLS, and do not check it unless told.",
    )
    cert_path: str = setting(
        "",
        "Folder with tls.crt and tls.key for proxies, as a Secret is mounted. Empty: self-signed.",
    )
    enable_cert_reload: bool = setting(
        True,  # noqa: FBT003 - a default
        "Use new files in picker.cert_path from the next connection on. The reference picker does so only if "
        "told; mounted Secrets do change.",
    )
    disable_endpoint_subset_filter: bool = setting(
        False,  # noqa: FBT003 - a default
        "Ignore the proxy's list of endpoints to choose from (envoy.lb.subset_hint).",
    )
    fallback_endpoints: int = setting(
        0,
        "Further endpoints that a choice names behind the chosen one, the best first, for proxies that go "
        "down the list if they get no answer. The default is none, since Envoy's ORIGINAL_DST clusters, "
        "which several gateways use, answer 503 to a list. Set it where the proxy has Envoy's policy "
        "override_host and a retry policy.",
        ge=0,
        le=16,
    )
    pass_any_path: bool = setting(
        False,  # noqa: FBT003 - a default
        "Forward requests for any path to a worker. Engines have paths there by which a client flushes "
        "caches or loads adapters. Without it only the endpoints of docs/endpoints.md, "
        "upstream.pass_through, /v1/models and /health do; others get 404.",
    )
    decode_sidecars: bool = setting(
        False,  # noqa: FBT003 - a default
        "Decode workers stand behind llm-d's sidecar, which sends the prefill to the worker that the "
        "header x-prefiller-host-port names. Without it a request for prefill and decode workers gets 503.",
    )
    streams_max: int = setting(
        20_000,
        "Most requests of proxies at a time in one process; more get 429. Each holds some 30 KB beside its "
        "body.",
        ge=1,
        le=1_000_000,
    )
    proxy_message_bytes_max: int = setting(
        16 * 1024 * 1024,
        "Largest message of a proxy, in bytes; a larger one ends its stream. Pieces of a body have some 64 "
        "KB; only a proxy that buffers (BUFFERED) sends a body whole. gRPC holds a message for each stream, "
        "uncounted, so the default is far below server.body_bytes_max.",
        ge=65_536,
        le=1 << 30,
    )
    proxy_connections_max: int = setting(
        1000,
        "Most connections of proxies at a time in one process; more are closed at once. A proxy opens one or "
        "a few for each of its threads.",
        ge=1,
        le=100_000,
    )

    def __post_init__(self) -> None:
        """Refuse two sources of workers, and a selector without ports."""
        if self.pool_name and self.endpoint_selector:
            raise ValueError("give either pool_name or endpoint_selector")
        if bool(self.endpoint_selector) is not bool(self.endpoint_target_ports):
            raise ValueError("endpoint_selector and endpoint_target_ports need each other")

    @property
    def pool(self) -> PodPool | None:
        """The pods that are workers; None if no pods are."""
        if not self.enabled or not (self.pool_name or self.endpoint_selector):
            return None
        return PodPool(
            self.pool_name,
            self.pool_namespace,
            self.pool_group,
            frozenset(self.endpoint_selector),
            self.endpoint_target_ports,
        )


def check_picker(rules: PickerRules) -> None:
    """Check that proxies can be served, before anything starts; raise SettingsError if they cannot."""
    if not rules.enabled:
        return
    for module in ("grpc", "grpc_health", "google.protobuf", "cryptography"):
        if not _installed(module):
            missing = f"picker.enabled needs the extra picker (there is no module {module})"
            raise SettingsError(
                [f"{missing}: install Cacheway with it, in a checkout pip install '.[picker]'"]
            )


def _installed(module: str) -> bool:
    """Return True if a module is installed."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even what it is part of
        return False
