"""From a pod to its workers, or to the reason why it has none. Pure.

Only the needed fields are decoded. A worker is described by where the pod was found and by the pod's
annotations or labels (an annotation wins):

    cacheway.io/role               plain, prefill, decode or encode
    cacheway.io/port               numbers or names of container ports, by commas: a worker each
    cacheway.io/scheme             http or https
    cacheway.io/capacity-tokens    KV capacity
    cacheway.io/ANY-NAME           label any_name of the worker: site, bucket, cache-pool, worker-class,
                                   convertible, dp-size, handover, bootstrap-port, bootstrap-host, ...

Names of the peers that mean the same are read, too; ours win:

    sglang.ai/bootstrap-port    bootstrap-port    one, or one for each port (smg, service_discovery.rs)
    smg.ai/worker-ports         port              (smg, service_discovery.rs, ``resolve_worker_ports``)
    inference.networking.k8s.io/active-ports  port  (gateway-api-inference-extension, datastore.go)
    smg.ai/kv-connector         handover          (the same, ``MOONCAKE_CONNECTOR``, ``NIXL_CONNECTOR``)
    llm-d.ai/role               role              prefill, decode, encode; both is plain (llm-d, pd_role.go)

The peers warn of an unreadable value and go on; here the pod is refused: a prefill worker with the wrong
bootstrap port fails every request.
"""

import ipaddress
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

import msgspec

from policies import BOOTSTRAP_HOST_LABEL, BOOTSTRAP_PORT_LABEL
from radix import TOKENS_MAX, is_name, parsed_whole
from router.destinations import Destinations
from router.errors import ClientError
from router.fleet import normal_url
from router.fleet.discovered import DISCOVERED_LABEL, NOTE_LABEL
from router.named_workers import check_labels

PREFIX = "cacheway.io/"

PORTS_MAX = 64
LABELS_MAX = 32
VERSION_MAX = (1 << 63) - 1
"""Greatest ``resourceVersion``: the revisions of etcd are whole numbers of 64 bits."""

VALUE_LENGTH_MAX = 256

_PEERS = MappingProxyType(
    {
        "sglang.ai/bootstrap-port": "bootstrap-port",
        "smg.ai/worker-ports": "port",
        "inference.networking.k8s.io/active-ports": "port",
        "smg.ai/kv-connector": "handover",
        "llm-d.ai/role": "role",
    }
)
_ROLES = MappingProxyType(
    {
        **{role: role for role in ("plain", "prefill", "decode", "encode")},
        **dict.fromkeys(("regular", "both", "prefill-decode"), "plain"),
    }
)
_NOT_LABELS = frozenset(("role", "port", "scheme", "capacity-tokens", "bootstrap-port"))
_RESERVED = frozenset((DISCOVERED_LABEL, NOTE_LABEL, "turning"))

ROLE = "role"
CAPACITY = "capacity_tokens"
"""Names of role and capacity beside the labels in `PodWorker.declared`."""


class Refusal(StrEnum):
    """Reason why a selected pod is no worker, or gets no requests."""

    NOT_RUNNING = "not_running"
    NO_ADDRESS = "no_address"
    ADDRESS_REFUSED = "address_refused"
    """The gateway may not connect there (`router.destinations`)."""
    NOT_READY = "not_ready"
    DELETING = "deleting"
    ENDED = "ended"
    NO_PORT = "no_port"
    BAD_LABEL = "bad_label"
    ROLE_CONFLICT = "role_conflict"
    SAME_ADDRESS = "same_address"
    """Another pod has it, and is more alive or newer."""
    UNREADABLE = "unreadable"
    """It is malformed, or the shared log cannot hold it."""
    BY_HAND = "by_hand"
    """An operator added a worker at its address."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A refused pod; `detail` says what is wrong and gives the right form."""

    reason: Refusal
    detail: str


@dataclass(frozen=True, slots=True)
class PodWorker:
    """A worker as its pod describes it: a normal URL, and labels with `ROLE` and perhaps `CAPACITY`."""

    url: str
    declared: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PodRules:
    """Rules for all pods; hosts that may not be connected to raise `ClientError`.

    `ports` are for a pod that names none; without them it is the one called ``http``, or its only one.
    `pool_ports` are those of an InferencePool now, in place of `ports` if there are some. `pair_labels` are
    defaults of prefill and decode workers.
    """

    ports: tuple[str, ...] = ()
    pair_labels: Mapping[str, str] = field(default_factory=dict)
    check_host: Callable[[str], None] = Destinations().check_host
    check_engine_host: Callable[[str], None] = Destinations().check_engine_host
    pool_ports: Callable[[], tuple[str, ...]] = tuple


class ContainerPort(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A port of a container."""

    container_port: int = 0
    name: str = ""
    protocol: str = "TCP"


class Container(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A container, for its ports."""

    ports: tuple[ContainerPort, ...] | None = None


class Condition(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A condition of a pod."""

    type: str = ""
    status: str = ""


class Metadata(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Identity, labels and annotations of a pod."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Spec(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Containers of a pod."""

    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None


class Status(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """State of a pod."""

    phase: str = "Unknown"
    pod_ip: str = msgspec.field(name="podIP", default="")
    conditions: tuple[Condition, ...] | None = None


class Pod(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A pod, as far as it matters here."""

    metadata: Metadata
    spec: Spec = Spec()
    status: Status = Status()
    unreadable: str = msgspec.field(name="cacheway.unreadable", default="")
    """Reason why only its metadata is known; no pod of an API server has this."""

    @property
    def uid(self) -> str:
        """Its unique identity."""
        return self.metadata.uid

    @property
    def version(self) -> int:
        """Its ``resourceVersion``; the greater is the newer (KEP-5504)."""
        return parsed_whole(self.metadata.resource_version, VERSION_MAX) or 0

    @property
    def name(self) -> str:
        """``NAMESPACE/POD``."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def ready(self) -> bool:
        """True if Kubernetes would send it requests."""
        conditions = self.status.conditions or ()
        return self.status.phase == "Running" and any(
            condition.type == "Ready" and condition.status == "True" for condition in conditions
        )

    @property
    def deleting(self) -> bool:
        """True while a deleted pod finishes."""
        return self.metadata.deletion_timestamp is not None

    @property
    def ended(self) -> bool:
        """True if all its containers have ended for good."""
        return self.status.phase in ("Succeeded", "Failed")


def read_pod(pod: Pod, roles: Collection[str], rules: PodRules) -> tuple[PodWorker, ...] | Refused:
    """Return a pod's workers, ready or not, or why it has none; `roles` are those of its selectors."""
    if pod.unreadable:
        return Refused(Refusal.UNREADABLE, pod.unreadable)
    if pod.ended:
        return Refused(Refusal.ENDED, f"its phase is {pod.status.phase}")
    try:
        host = _host(pod.status.pod_ip, rules)
        declared = _declared(pod)
        role = _role(declared, roles)
        ports = _ports(pod, declared.get("port", ""), rules.pool_ports() or rules.ports)
        labels = _labels(declared)
        if BOOTSTRAP_HOST_LABEL in labels:
            _check_host(labels[BOOTSTRAP_HOST_LABEL], rules.check_engine_host)
        if role in ("prefill", "decode"):
            labels = {**rules.pair_labels, **labels}
        bootstrap_ports = _bootstrap_ports(declared, len(ports))
        return tuple(
            _worker(f"{_scheme(declared)}://{host}:{port}", role, labels, declared, bootstrap)
            for port, bootstrap in zip(ports, bootstrap_ports, strict=True)
        )
    except _Wrong as wrong:
        return wrong.refused


class _Wrong(Exception):
    def __init__(self, reason: Refusal, detail: str) -> None:
        super().__init__(detail)
        self.refused = Refused(reason, detail)


def _host(pod_ip: str, rules: PodRules) -> str:
    if not pod_ip:
        raise _Wrong(Refusal.NO_ADDRESS, "it has no IP address yet")
    try:
        address = ipaddress.ip_address(pod_ip)
    except ValueError:
        raise _Wrong(Refusal.NO_ADDRESS, f"{pod_ip[:64]!r} is no IP address") from None
    _check_host(str(address), rules.check_host)
    return f"[{address}]" if address.version == 6 else str(address)


def _check_host(host: str, check: Callable[[str], None]) -> None:
    try:
        check(host)
    except ClientError as error:
        raise _Wrong(Refusal.ADDRESS_REFUSED, error.message) from None


def _declared(pod: Pod) -> dict[str, str]:
    """Annotations and labels of a pod, by our names without the prefix."""
    declared: dict[str, str] = {}
    sources = (pod.metadata.labels or {}, pod.metadata.annotations or {})
    for source in sources:
        declared.update({name: source[theirs] for theirs, name in _PEERS.items() if theirs in source})
    for source in sources:
        declared.update(
            {
                name[len(PREFIX) :].replace("_", "-"): value
                for name, value in source.items()
                if name.startswith(PREFIX)
            }
        )
    if len(declared) > LABELS_MAX:
        raise _Wrong(Refusal.BAD_LABEL, f"it has more than {LABELS_MAX} labels with {PREFIX}")
    for name, value in declared.items():
        if not is_name(name):
            raise _Wrong(Refusal.BAD_LABEL, f"{PREFIX}{name[:64]!a} is no name of printable characters")
        if len(value) > VALUE_LENGTH_MAX or not value.isprintable():
            raise _Wrong(
                Refusal.BAD_LABEL, f"{name} is no line of at most {VALUE_LENGTH_MAX} printable characters"
            )
    return {name: value.strip() for name, value in declared.items() if value.strip()}


def _role(declared: Mapping[str, str], roles: Collection[str]) -> str:
    selected = sorted(set(roles) - {""})
    if len(selected) > 1:
        raise _Wrong(Refusal.ROLE_CONFLICT, f"the selectors of {' and '.join(selected)} select it")
    own = declared.get("role", "").lower()
    if own and own not in _ROLES:
        raise _Wrong(Refusal.BAD_LABEL, f"role {own!r} is not known; give one of {', '.join(_ROLES)}")
    if not selected:
        return _ROLES[own] if own else "plain"
    if own and _ROLES[own] not in ("plain", selected[0]):
        raise _Wrong(
            Refusal.ROLE_CONFLICT, f"the selector of {selected[0]} selects it, and it says {own} itself"
        )
    return selected[0]


def _ports(pod: Pod, own: str, default: tuple[str, ...]) -> list[int]:
    declared = [
        port
        for container in (*(pod.spec.containers or ()), *(pod.spec.init_containers or ()))
        for port in container.ports or ()
        if port.protocol == "TCP"
    ]
    words = [word.strip() for word in own.split(",") if word.strip()] or list(default)
    if words:
        ports = list(dict.fromkeys(_port(word, declared) for word in words))
        if len(ports) > PORTS_MAX:
            raise _Wrong(Refusal.NO_PORT, f"it names {len(ports)} ports; at most {PORTS_MAX} are used")
        return ports
    called_http = [port.container_port for port in declared if port.name == "http"]
    ports = list(dict.fromkeys(called_http or [port.container_port for port in declared]))
    if len(ports) != 1:
        count = "no port" if not ports else f"{len(ports)} ports and none called http"
        raise _Wrong(
            Refusal.NO_PORT, f"it declares {count}; say which with {PREFIX}port or --service-discovery-port"
        )
    return ports


def _port(word: str, declared: list[ContainerPort]) -> int:
    number = parsed_whole(word, 65535)
    if number is None and word.isdecimal():
        raise _Wrong(Refusal.NO_PORT, f"{word[:20]!r} is no port; give 1 to 65535")
    if number is None:
        found = [port.container_port for port in declared if port.name == word]
        if not found:
            names = ", ".join(sorted({port.name for port in declared if port.name})) or "none"
            raise _Wrong(
                Refusal.NO_PORT, f"it declares no port called {word[:63]!r}; those with names: {names}"
            )
        number = found[0]
    if not 0 < number < 65536:
        raise _Wrong(Refusal.NO_PORT, f"{word[:20]!r} is no port; give 1 to 65535")
    return number


def _scheme(declared: Mapping[str, str]) -> str:
    scheme = declared.get("scheme", "http")
    if scheme not in ("http", "https"):
        raise _Wrong(Refusal.BAD_LABEL, f"scheme {scheme[:20]!r} is not known; give http or https")
    return scheme


def _labels(declared: Mapping[str, str]) -> dict[str, str]:
    labels = {name.replace("-", "_"): value for name, value in declared.items() if name not in _NOT_LABELS}
    for name in _RESERVED & labels.keys():
        raise _Wrong(Refusal.BAD_LABEL, f"{name} is not for pods to say")
    if "handover" in labels:
        labels["handover"] = labels["handover"].lower()
    return labels


def _bootstrap_ports(declared: Mapping[str, str], count: int) -> list[str]:
    """Bootstrap port of each worker, empty to use the engine's."""
    text = declared.get("bootstrap-port", "")
    words = [word.strip() for word in text.split(",") if word.strip()] if text.lower() != "none" else []
    if len(words) not in (0, 1, count):
        raise _Wrong(
            Refusal.BAD_LABEL,
            f"bootstrap-port names {len(words)} ports for {count} workers; give one, or one for each",
        )
    if len(words) == count:
        return words
    return (words or [""]) * count


def _worker(
    url: str, role: str, labels: Mapping[str, str], declared: Mapping[str, str], bootstrap_port: str
) -> PodWorker:
    described = {**labels, **({BOOTSTRAP_PORT_LABEL: bootstrap_port} if bootstrap_port else {})}
    try:
        check_labels(described)
        url = normal_url(url)
    except (ValueError, ClientError) as error:
        raise _Wrong(Refusal.BAD_LABEL, str(error)) from None
    capacity = declared.get("capacity-tokens", "")
    if capacity:
        if parsed_whole(capacity, TOKENS_MAX) is None:
            raise _Wrong(Refusal.BAD_LABEL, f"capacity-tokens {capacity[:20]!r} is no whole number of tokens")
        described[CAPACITY] = capacity
    described[ROLE] = role
    return PodWorker(url, described)
