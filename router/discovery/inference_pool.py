"""The pods of an InferencePool (Gateway API Inference Extension): by its selector, at its target ports.

    API server ──GET, every `LOOK_S`──> the pool's selector and ports ──> lists and watches of pods

`PoolSource` is a source of pods whose selector is the pool's. If the pool changes, the watch ends as if its
version were too old, so the pods are listed again by the new selector. While there is no pool, or it cannot
be read, the known workers stay.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Protocol

import msgspec

from router.discovery.source import ApiFailure, Gone, PodEvent, PodList, Source, Trouble

LOOK_S = 5.0
"""Between two looks at the pool, in seconds: as long as a health check's interval."""

LABELS_MAX = 64
PORTS_MAX = 8
"""Target ports that a pool can have (``api/v1/inferencepool_types.go``)."""

VERSIONS = {
    "inference.networking.k8s.io": "v1",
    "inference.networking.x-k8s.io": "v1alpha2",
    "llm-d.ai": "v1alpha2",
}
"""Version of the objects, by API group."""


class ObjectSource(Source, Protocol):
    """A source of pods that other objects can be read from, too (`router.discovery.api_server`)."""

    async def read(self, path: str) -> bytes | None:
        """Return an object or a list as JSON; None if there is none. Raise `ApiFailure`."""


class PodPool(msgspec.Struct, frozen=True):
    """The pods of a picker: of a named pool, or by a selector and ports. An empty namespace is its own."""

    name: str = ""
    namespace: str = ""
    group: str = "inference.networking.k8s.io"
    selector: frozenset[str] = frozenset()
    ports: tuple[str, ...] = ()


class PoolName(msgspec.Struct, frozen=True):
    """An InferencePool: API group, namespace and name."""

    group: str
    namespace: str
    name: str

    @property
    def path(self) -> str:
        """Path of the object."""
        group = f"apis/{self.group}/{VERSIONS[self.group]}"
        return f"{group}/namespaces/{self.namespace}/inferencepools/{self.name}"

    def __str__(self) -> str:
        return f"InferencePool {self.namespace}/{self.name}"


class _Port(msgspec.Struct, frozen=True):
    number: int


class _Labels(msgspec.Struct, frozen=True, rename="camel"):
    match_labels: dict[str, str] = {}


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    """Pool of version v1; v1alpha2 has labels without ``matchLabels``, and one ``targetPortNumber``."""

    selector: msgspec.Raw = msgspec.Raw(b"{}")
    target_ports: tuple[_Port, ...] = ()
    target_port_number: int = 0


class _Pool(msgspec.Struct, frozen=True):
    spec: _Spec


class PoolSpec(msgspec.Struct, frozen=True):
    """A label selector, as lists take it, and ports."""

    selector: str
    ports: tuple[str, ...]


def read_pool(data: bytes) -> PoolSpec:
    """Read an InferencePool; raise `ApiFailure` for one that selects no pods or names no port."""
    try:
        spec = msgspec.json.decode(data, type=_Pool).spec
        labels = msgspec.json.decode(spec.selector, type=_Labels).match_labels
        if not labels and b"matchLabels" not in bytes(spec.selector):
            labels = msgspec.json.decode(spec.selector, type=dict[str, str])
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise ApiFailure(Trouble.MALFORMED, f"it is no InferencePool: {error}"[:300]) from error
    ports = tuple(port.number for port in spec.target_ports) or (spec.target_port_number,)
    if not 0 < len(labels) <= LABELS_MAX:
        raise ApiFailure(Trouble.MALFORMED, f"its selector has {len(labels)} labels")
    if len(ports) > PORTS_MAX or not all(0 < port < 65536 for port in ports):
        raise ApiFailure(Trouble.MALFORMED, f"its target ports are {ports[:PORTS_MAX]}")
    selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    return PoolSpec(selector, tuple(str(port) for port in ports))


class PoolSource:
    """The pods of one pool. ``ports`` are its target ports, empty before it was read."""

    def __init__(self, api: ObjectSource, pool: PoolName, *, look_s: float = LOOK_S) -> None:
        self._api, self._pool, self._look_s = api, pool, look_s
        self._spec: PoolSpec | None = None

    def ports(self) -> tuple[str, ...]:
        """Return the pool's target ports."""
        return () if self._spec is None else self._spec.ports

    async def list_pods(self, namespace: str, selector: str) -> PodList:
        """List the pool's pods; its selector is used, not the one given."""
        self._spec = spec = await self._read()
        return await self._api.list_pods(namespace, spec.selector)

    async def watch_pods(
        self, namespace: str, selector: str, version: str, lasts_s: int
    ) -> AsyncGenerator[PodEvent, None]:
        """Yield events of the pool's pods; raise `Gone` when the pool has changed."""
        if self._spec is None:
            raise Gone(Trouble.GONE, "the pool was not read yet")
        events = self._api.watch_pods(namespace, self._spec.selector, version, lasts_s)
        coming: asyncio.Future[PodEvent] | None = None
        look_s = time.monotonic() + self._look_s
        try:
            while True:
                coming = coming or asyncio.ensure_future(anext(events))
                done, _ = await asyncio.wait({coming}, timeout=max(0.0, look_s - time.monotonic()))
                if done:
                    event, coming = coming, None
                    try:
                        yield event.result()
                    except StopAsyncIteration:
                        return
                elif time.monotonic() >= look_s:
                    if await self._changed():
                        raise Gone(Trouble.GONE, "the pool has changed")
                    look_s = time.monotonic() + self._look_s
        finally:
            if coming is not None:
                coming.cancel()
                await asyncio.wait({coming})
            await events.aclose()

    async def renew(self) -> None:
        """Read certificates and credentials again."""
        await self._api.renew()

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()

    async def _changed(self) -> bool:
        """Return True if the pool is another one now; one that cannot be read has not changed."""
        try:
            return await self._read() != self._spec
        except ApiFailure:
            return False

    async def _read(self) -> PoolSpec:
        data = await self._api.read(self._pool.path)
        if data is None:
            raise ApiFailure(Trouble.REFUSED, f"there is no {self._pool}")
        return read_pool(data)
