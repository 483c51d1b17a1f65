"""Rules of discovery: which pods of a Kubernetes cluster are workers."""

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from policies import setting
from radix import parsed_whole
from router.label_selectors import Selector
from router.values import distinct

_NAMESPACE = re.compile(r"\*|[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")

_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9](?:[a-z0-9-]{0,13}[a-z0-9])?")
"""Names of container ports (IANA_SVC_NAME)."""


def _port_words(words: Any) -> Any:
    """Check that they are ports or names of container ports; a file may hold them as numbers."""
    if isinstance(words, int | str):
        words = [words]
    if not isinstance(words, list | tuple):
        return words
    texts = tuple(str(word) for word in words)
    for text in texts:
        if not (parsed_whole(text, 65535) if text.isdecimal() else _PORT_NAME.fullmatch(text)):
            raise ValueError(f"{text[:40]!r} is neither a port, 1 to 65535, nor the name of one")
    return texts


def _namespaces(names: tuple[str, ...]) -> tuple[str, ...]:
    """Check that they are names of Kubernetes namespaces, or all."""
    for name in names:
        if not _NAMESPACE.fullmatch(name):
            raise ValueError(f"{name[:80]!r} is no name of a namespace, nor *")
    if "*" in names and len(names) > 1:
        raise ValueError("* are all namespaces; give it alone")
    return distinct(names)


@dataclass(frozen=True)
class DiscoveryRules:
    """Pods of a Kubernetes cluster that are workers, beside the named ones."""

    service_discovery: bool = setting(
        False,  # noqa: FBT003 - a default
        "Make pods workers when they are ready, drain them when they are not, and remove them when they are "
        "gone; see docs/discovery.md. Needs a selector, the right to list and watch pods, and the extra "
        "cacheway[kubernetes].",
        common=True,
    )
    selector: Selector = setting(
        (),
        "Labels of pods that are workers, all of which must hold: KEY=VALUE, KEY!=VALUE, KEY, !KEY, 'KEY in "
        "(A, B)' or 'KEY notin (A, B)'. Their role is plain, or the one that cacheway.io/role gives. Empty "
        "selects none.",
        allowed="requirements of labels such as app=sglang, separated by spaces or commas",
        common=True,
    )
    prefill_selector: Selector = setting(
        (),
        "Labels of pods that are prefill workers. sglang.ai/bootstrap-port or cacheway.io/bootstrap-port "
        "gives their bootstrap port.",
        allowed="requirements of labels, as in discovery.selector",
    )
    decode_selector: Selector = setting(
        (),
        "Labels of pods that are decode workers.",
        allowed="requirements of labels, as in discovery.selector",
    )
    encode_selector: Selector = setting(
        (),
        "Labels of pods that are encode workers.",
        allowed="requirements of labels, as in discovery.selector",
    )
    ports: Annotated[tuple[str, ...], BeforeValidator(_port_words)] = setting(
        (),
        "Port of the workers, or the name of the container port, unless cacheway.io/port or "
        "smg.ai/worker-ports gives it; several ports are a worker each. Empty: the port that is called http, "
        "or the only one that the pod declares. The peers assume 80 or 8000, and find no worker there.",
        flag="service-discovery-port",
        allowed="port numbers or names of container ports",
    )
    namespaces: Annotated[tuple[str, ...], AfterValidator(_namespaces)] = setting(
        (),
        "Namespaces of the workers. Empty: the one where the gateway runs. * means all, which needs a "
        "ClusterRole.",
        flag="service-discovery-namespace",
        allowed="names of namespaces, or *",
    )
    resync_s: float = setting(
        60.0,
        "Time between two lists of all pods, in seconds, which find what the watch missed. One list of 1,000 "
        "pods costs some 50 ms of CPU.",
        flag="service-discovery-resync-secs",
        ge=1,
        le=3600,
    )
    kubeconfig: str = setting(
        "",
        "File with the address of the API server and our credentials. Empty: the pod's service account, else "
        "KUBECONFIG, else ~/.kube/config.",
    )

    @property
    def selectors(self) -> dict[str, str]:
        """Selectors by the role that they give; empty for the selector that gives none."""
        named = {
            "": self.selector,
            "prefill": self.prefill_selector,
            "decode": self.decode_selector,
            "encode": self.encode_selector,
        }
        return {role: ",".join(sorted(selector)) for role, selector in named.items() if selector}

    def __post_init__(self) -> None:
        """Refuse a discovery that selects no pods."""
        if self.service_discovery and not self.selectors:
            raise ValueError(
                "service_discovery needs the labels of the workers; give --selector KEY=VALUE, or "
                "--prefill-selector and --decode-selector"
            )
