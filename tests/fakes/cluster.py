"""A cluster's pods as its API server keeps them: with versions, a history, and events that get lost.

`Cluster` is the state, and a `router.discovery.source.Source` without sockets; `fakes.cluster_api` serves it
over HTTP. It keeps the promises of an API server: versions only grow, a watch reports every change of the
pods that its selector selects once and in order, a pod that stops matching is reported as deleted, a page of
a list is of the list's version, and a version older than the history is refused with 410.
"""

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from router.discovery.pods import Pod
from router.discovery.source import ApiFailure, Gone, PodEvent, PodList, Trouble

_uids = itertools.count(1)


def pod(
    name: str = "a",
    namespace: str = "llm",
    *,
    ip: str = "10.0.0.1",
    ready: bool = True,
    phase: str = "Running",
    ports: dict[str, int] | None = None,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    uid: str = "",
    **status: Any,
) -> dict[str, Any]:
    """A pod as the API server writes it, with many fields that the gateway does not read."""
    declared = {"http": 8000} if ports is None else ports
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid or f"uid-{next(_uids)}",
            "creationTimestamp": "2026-11-21T10:00:00Z",
            "labels": {"app": "engine", **(labels or {})},
            **({"annotations": annotations} if annotations else {}),
            "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {"f:conditions": {}}}}],
        },
        "spec": {
            "nodeName": "node-1",
            "containers": [
                {
                    "name": "engine",
                    "image": "engine:1",
                    "resources": {"limits": {"nvidia.com/gpu": "8"}},
                    "ports": [
                        {"name": port, "containerPort": number, "protocol": "TCP"}
                        for port, number in declared.items()
                    ],
                }
            ],
        },
        "status": {
            "phase": phase,
            **({"podIP": ip, "podIPs": [{"ip": ip}]} if ip else {}),
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastProbeTime": None},
                {"type": "Ready", "status": "True" if ready else "False", "lastProbeTime": None},
            ],
            **status,
        },
    }


def matches(labels: dict[str, str], selector: str) -> bool:
    """True if labels satisfy a selector of equalities."""
    wanted = (part.split("=", 1) for part in selector.split(",") if part)
    return all(labels.get(key) == value for key, value in wanted)


class Cluster:
    """Pods, and the history of their changes.

    Attributes:
        pods: Pods by namespace and name.
        history: Version, kind and pod of each change that is remembered.
        refuses: Error that every list and watch raises; None to answer.
    """

    def __init__(self) -> None:
        self.version = 100
        self.pods: dict[tuple[str, str], dict[str, Any]] = {}
        self.history: list[tuple[int, str, dict[str, Any]]] = []
        self.oldest = self.version
        self.refuses: ApiFailure | None = None
        self.lists = 0
        self.changed = asyncio.Condition()
        self.renewed = 0

    # Changes.

    def put(self, obj: dict[str, Any], *, lost: bool = False) -> dict[str, Any]:
        """Create or replace a pod.

        Args:
            obj: The pod.
            lost: True if no watch ever reports it.
        """
        self.version += 1
        obj = json.loads(json.dumps(obj))
        meta = obj["metadata"]
        meta["resourceVersion"] = str(self.version)
        key = meta["namespace"], meta["name"]
        before = self.pods.get(key)
        self.pods[key] = obj
        if not lost:
            if before is None:
                self._happens("ADDED", obj)
            else:
                self._happens("MODIFIED", obj, before["metadata"]["labels"])
        return obj

    def edit(
        self,
        name: str = "a",
        namespace: str = "llm",
        *,
        ready: bool | None = None,
        deleting: bool = False,
        phase: str | None = None,
        lost: bool = False,
        **metadata: dict[str, str],
    ) -> dict[str, Any]:
        """Change a pod: its readiness, its phase, its labels or annotations."""
        obj = json.loads(json.dumps(self.pods[namespace, name]))
        if ready is not None:
            obj["status"]["conditions"][1]["status"] = str(ready)
        if phase is not None:
            obj["status"]["phase"] = phase
        if deleting:
            obj["metadata"]["deletionTimestamp"] = "2026-11-21T11:00:00Z"
        for field, values in metadata.items():
            obj["metadata"][field] = {**obj["metadata"].get(field, {}), **values}
        return self.put(obj, lost=lost)

    def delete(self, name: str = "a", namespace: str = "llm", *, lost: bool = False) -> None:
        """Delete a pod for good."""
        self.version += 1
        obj = self.pods.pop((namespace, name))
        obj["metadata"]["resourceVersion"] = str(self.version)
        if not lost:
            self._happens("DELETED", obj)

    def compact(self) -> None:
        """Forget the history: a client that asks from an earlier version is refused."""
        self.version += 1
        self.history.clear()
        self.oldest = self.version

    def bookmark(self) -> None:
        """Tell all watches how far the cluster is, though nothing happened to their pods."""
        self.version += 1
        self._happens(
            "BOOKMARK", {"metadata": {"resourceVersion": str(self.version), "creationTimestamp": None}}
        )

    def _happens(self, kind: str, obj: dict[str, Any], before: dict[str, str] | None = None) -> None:
        self.history.append((self.version, kind, {**obj, "_before": before}))

    # Questions.

    def selected(self, namespace: str, selector: str) -> list[dict[str, Any]]:
        """Pods that match."""
        return [
            obj
            for (where, _), obj in sorted(self.pods.items())
            if namespace in ("*", where) and matches(obj["metadata"]["labels"], selector)
        ]

    def told(self, namespace: str, selector: str, version: int) -> list[tuple[int, str, dict[str, Any]]]:
        """Events of a watch that begins at a version."""
        events = []
        for at, kind, entry in self.history:
            if at <= version:
                continue
            obj = {key: value for key, value in entry.items() if key != "_before"}
            if kind != "BOOKMARK":
                if namespace not in ("*", obj["metadata"]["namespace"]):
                    continue
                now = matches(obj["metadata"]["labels"], selector)
                was = now if entry["_before"] is None else matches(entry["_before"], selector)
                if not now and not was:
                    continue
                if kind == "MODIFIED" and now != was:
                    kind = "ADDED" if now else "DELETED"
            events.append((at, kind, obj))
        return events

    def event(self, kind: str, obj: dict[str, Any]) -> PodEvent:
        """The event that a watch makes of a change."""
        return PodEvent(msgspec.convert(obj, Pod), kind)

    async def list_pods(self, namespace: str, selector: str) -> PodList:
        """List, as a source without sockets."""
        self.lists += 1
        if self.refuses is not None:
            raise self.refuses
        found = tuple(msgspec.convert(obj, Pod) for obj in self.selected(namespace, selector))
        return PodList(found, str(self.version))

    async def watch_pods(
        self, namespace: str, selector: str, version: str, lasts_s: int
    ) -> AsyncGenerator[PodEvent, None]:
        """Watch, as a source without sockets."""
        at = int(version)
        while True:
            if self.refuses is not None:
                raise self.refuses
            if at < self.oldest:
                raise Gone(Trouble.GONE, "too old resource version")
            for version_told, kind, obj in self.told(namespace, selector, at):
                at = version_told
                yield self.event(kind, obj)
            await asyncio.sleep(0.001)

    async def renew(self) -> None:
        """Count it."""
        self.renewed += 1

    async def close(self) -> None:
        """Nothing is open."""
