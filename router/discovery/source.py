"""Port to an API server: pods, events and failures.

Its one implementation, `router.discovery.api_server.ApiServer`, alone needs a Kubernetes client.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from router.discovery.pods import Pod
from router.errors import StateError

ALL_NAMESPACES = "*"


class Trouble(StrEnum):
    """Kind of a failure."""

    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    GONE = "gone"
    THROTTLED = "throttled"
    SERVER = "server_error"
    REFUSED = "refused"
    MALFORMED = "malformed"
    CONFIG = "config"
    INTERNAL = "internal"
    """A fault of the gateway, logged with its traceback."""


class ApiFailure(StateError):
    """A question to the API server got no usable answer."""

    code = "kubernetes_unavailable"

    def __init__(self, trouble: Trouble, message: str) -> None:
        super().__init__(message)
        self.trouble = trouble


class Gone(ApiFailure):
    """The requested version is too old: list again."""


@dataclass(frozen=True, slots=True)
class PodList:
    """All matching pods at one time, in the server's order; a watch goes on from `version`."""

    pods: tuple[Pod, ...]
    version: str


@dataclass(frozen=True, slots=True)
class PodEvent:
    """Event of a watch: ``ADDED``, ``MODIFIED``, ``DELETED``, or ``BOOKMARK`` with only a version."""

    pod: Pod
    kind: str


class Source(Protocol):
    """Source of a cluster's pods."""

    async def list_pods(self, namespace: str, selector: str) -> PodList:
        """List the pods of a namespace (or `ALL_NAMESPACES`) by a label selector; raise `ApiFailure`."""

    def watch_pods(
        self, namespace: str, selector: str, version: str, lasts_s: int
    ) -> AsyncGenerator[PodEvent, None]:
        """Yield the events of pods since a version, until the server ends the watch after `lasts_s`.

        Raises `Gone` for a version that is too old, else `ApiFailure`.
        """

    async def renew(self) -> None:
        """Read certificates and credentials again, and cut calls under way; may raise `ApiFailure`."""

    async def close(self) -> None:
        """Close all connections."""
