"""Rendered ``deploy/kubernetes``, and its meaning to the kubelet."""

import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"

Object = dict[str, Any]

WORKLOADS = ("Deployment", "StatefulSet", "Job")

COMPOSED = {
    "ha+tls": ("overlays/ha", "components/tls"),
    "single+external-redis": ("overlays/single", "components/external-redis"),
    "vllm+kv-events": ("overlays/vllm", "components/kv-events"),
    "sglang+kv-events": ("overlays/sglang", "components/kv-events"),
    "ha+monitoring+gateway-api": ("overlays/ha", "components/monitoring", "components/gateway-api"),
}
"""Overlays as operators make them: one of ours, and components."""

OVERLAYS = sorted(
    str(path.parent.relative_to(KUBERNETES / "overlays"))
    for path in (KUBERNETES / "overlays").rglob("kustomization.yaml")
)

needs_kubectl = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="kubectl is not installed: manifests are not rendered"
)


@functools.cache
def rendered(name: str) -> tuple[Object, ...]:
    """All objects of an overlay of ours, or of one of `COMPOSED`."""
    if name not in COMPOSED:
        return _rendered(KUBERNETES / "overlays" / name)
    resource, *components = (KUBERNETES / path for path in COMPOSED[name])
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder).resolve()
        kustomization = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "namespace": "cacheway",
            "resources": [os.path.relpath(resource, here)],
            "components": [os.path.relpath(path, here) for path in components],
        }
        (here / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        return _rendered(here)


def _rendered(folder: Path) -> tuple[Object, ...]:
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def of_kind(objects: tuple[Object, ...], *kinds: str) -> list[Object]:
    """Those of some kinds."""
    return [each for each in objects if each["kind"] in kinds]


def title(each: Object) -> str:
    """Kind and name, for messages."""
    return f"{each['kind']}/{each['metadata']['name']}"


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """True if a label selector, or the plain map of a Service, matches some labels."""
    wanted = selector.get("matchLabels", {} if "matchExpressions" in selector else selector)
    if any(labels.get(name) != value for name, value in wanted.items()):
        return False
    for rule in selector.get("matchExpressions", ()):
        present = rule["key"] in labels
        match rule["operator"]:
            case "Exists":
                fits = present
            case "DoesNotExist":
                fits = not present
            case "In":
                fits = labels.get(rule["key"]) in rule["values"]
            case _:
                fits = labels.get(rule["key"]) not in rule["values"]
        if not fits:
            return False
    return True


@dataclass(frozen=True)
class Pods:
    """The pods of one workload."""

    owner: Object
    template: Object

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of its pods; a StatefulSet's also have their own names."""
        labels = dict(self.template["metadata"].get("labels", {}))
        if self.owner["kind"] == "StatefulSet":
            labels["statefulset.kubernetes.io/pod-name"] = f"{self.owner['metadata']['name']}-0"
        return labels

    @property
    def spec(self) -> Object:
        """Spec of its pods."""
        spec: Object = self.template["spec"]
        return spec

    @property
    def ports(self) -> Mapping[str, int]:
        """All named ports of all containers."""
        return {
            port["name"]: port["containerPort"]
            for container in self.spec["containers"]
            for port in container.get("ports", ())
        }


def pods(objects: tuple[Object, ...]) -> list[Pods]:
    """Pods of all workloads."""
    return [Pods(each, each["spec"]["template"]) for each in of_kind(objects, *WORKLOADS)]


def containers(objects: tuple[Object, ...]) -> Iterator[tuple[Pods, Object]]:
    """Each container with its pods."""
    for each in pods(objects):
        for container in each.spec["containers"]:
            yield each, container


def environment(objects: tuple[Object, ...], container: Object) -> dict[str, str]:
    """Environment by the kubelet: config maps, then variables, which may use earlier ones as ``$(NAME)``."""
    variables: dict[str, str] = {}
    maps = {each["metadata"]["name"]: each.get("data", {}) for each in of_kind(objects, "ConfigMap")}
    for source in container.get("envFrom", ()):
        variables.update(maps[source["configMapRef"]["name"]])
    for entry in container.get("env", ()):
        if "value" in entry:
            variables[entry["name"]] = expanded(entry["value"], variables)
            continue
        match entry["valueFrom"]:
            case {"fieldRef": {"fieldPath": "metadata.name"}}:
                variables[entry["name"]] = "pod-0"
            case {"fieldRef": {"fieldPath": "metadata.namespace"}}:
                variables[entry["name"]] = "cacheway"
            case {"fieldRef": {"fieldPath": "status.podIP"}}:
                variables[entry["name"]] = "10.0.0.1"
            case other:
                raise AssertionError(other)
    return variables


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """``$(NAME)`` as the kubelet expands it; an unknown name stays, which is a mistake here."""

    def value(found: re.Match[str]) -> str:
        assert found[1] in variables, f"$({found[1]}) is not set before it is used"
        return variables[found[1]]

    return re.sub(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)", value, text)
