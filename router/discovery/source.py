"""Who is asked for pods, what it answers, and how it fails.

`router.discovery.api_server.ApiServer` is one; it alone needs a Kubernetes client to be installed.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from router.discovery.pods import Pod
from router.errors import StateError

ALL_NAMESPACES = "*"


class Trouble(StrEnum):
    """What kind of failure it was."""

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
    """A fault of the gateway; the log has it whole."""


class ApiFailure(StateError):
    """The API server did not answer what it was asked."""

    code = "kubernetes_unavailable"

    def __init__(self, trouble: Trouble, message: str) -> None:
        super().__init__(message)
        self.trouble = trouble


class Gone(ApiFailure):
    """What was asked for is too old to be known: list again."""


@dataclass(frozen=True, slots=True)
class PodList:
    """All pods that were asked for, as they were at one time.

    Attributes:
        pods: In the server's order.
        version: When that was; a watch goes on from there.
    """

    pods: tuple[Pod, ...]
    version: str


@dataclass(frozen=True, slots=True)
class PodEvent:
    """What a watch tells.

    Attributes:
        pod: The pod it is about; of a bookmark only its version is known.
        kind: ``ADDED``, ``MODIFIED``, ``DELETED`` or ``BOOKMARK``.
    """

    pod: Pod
    kind: str


class Source(Protocol):
    """Knows the pods of a cluster."""

    async def list_pods(self, namespace: str, selector: str) -> PodList:
        """List pods.

        Args:
            namespace: One, or `ALL_NAMESPACES`.
            selector: Of labels, as Kubernetes writes it.

        Raises:
            ApiFailure: They are not known.
        """

    def watch_pods(
        self, namespace: str, selector: str, version: str, lasts_s: int
    ) -> AsyncGenerator[PodEvent, None]:
        """Tell what happens to pods, until the other side ends it.

        Args:
            namespace: As for `list_pods`.
            selector: As for `list_pods`.
            version: Since when.
            lasts_s: When the other side shall end it.

        Raises:
            Gone: It is not known any more what happened since.
            ApiFailure: It ended otherwise, or never began.
        """

    async def renew(self) -> None:
        """Read certificates and credentials again: they may have been exchanged. Cuts what is under way.

        Raises:
            ApiFailure: They cannot be read now.
        """

    async def close(self) -> None:
        """Close all connections."""
