"""The rendered Helm chart, by Helm's own engine (``helm-python-sdk``, which CI installs)."""

import functools
import importlib.util
import json
from typing import Any

import pytest
import yaml
from fakes.manifests import ROOT, Object

CHART = ROOT / "deploy" / "helm" / "cacheway"

needs_helm = pytest.mark.skipif(
    importlib.util.find_spec("helm_python") is None,
    reason="helm-python-sdk is not installed: no chart is rendered",
)


def charted(values: dict[str, Any] | None = None, *, name: str = "cacheway") -> tuple[Object, ...]:
    """All objects of a release in the namespace ``cacheway``; raises the errors of Helm."""
    return _charted(json.dumps(values or {}), name)


@functools.cache
def _charted(values: str, name: str) -> tuple[Object, ...]:
    objects: list[Object] = []
    for path, text in rendered_files(json.loads(values), name=name).items():
        if path.endswith(".yaml"):
            objects += [each for each in yaml.safe_load_all(text) if each]
    return tuple(objects)


def rendered_files(values: dict[str, Any], *, name: str = "cacheway") -> dict[str, str]:
    """Each template and its rendered text, notes included."""
    import helm_python

    with helm_python.Chart.load(str(CHART)) as chart:
        chart.validate_schema(values)
        files: dict[str, str] = chart.render(values, name=name, namespace="cacheway")
    return files
