"""The Helm chart in ``helm/cacheway``: templates made from the files that overlays of ``kubernetes/`` use.

A template is one of those files with some of its text replaced, so comments and objects stay the same, and a
change there is one here. ``helm/changes/NAME.txt`` says for ``templates/NAME.yaml``:

    @@ from base/deployment.yaml           its source, below kubernetes/
    @@ when .Values.x.enabled              condition under which it renders; without this line always
    @@ old                                 text of the source, whole lines or a part of one;
      replicas: 1                          `@@ old 2 times` if it occurs twice
    @@ new                                 what stands there in the template
      replicas: {{ .Values.replicas }}

Changes are applied one after the other, after what all templates have in common: names and labels. If a text
does not occur as often as it says, since its source changed, nothing is written. Parts of the chart alone are
written by hand: ``values.yaml`` and its schema, helpers, Secrets, notes. ``tests/deploy/test_chart.py``
compares the objects of both.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
CHART = HERE / "helm" / "cacheway"
CHANGES = HERE / "helm" / "changes"
KUBERNETES = HERE / "kubernetes"

_INSTANCE = "app.kubernetes.io/instance: {{ .Release.Name }}"
_LABELS = '    {{- include "cacheway.labels" . | nindent 4 }}\n'
_FULLNAME = '{{ include "cacheway.fullname" . }}'
_BESIDE = ("valkey", "vllm", "sglang", "prefill", "decode", "emulated", "engines", "models")
"""Objects whose names do not begin with the gateway's."""

_CHART_YAML = """# Written by `python -m deploy.write`: the version is that of pyproject.toml.
apiVersion: v2
name: cacheway
description: A cache-affinity gateway for LLM fleets
type: application
version: {version}
appVersion: "{version}"
kubeVersion: ">=1.30.0-0"
keywords: [llm, gateway, router, kv-cache, vllm, sglang]
"""


@dataclass(frozen=True)
class Change:
    """Text of a source that another one replaces in its template, in a number of places."""

    old: str
    new: str
    times: int = 1

    def applied(self, text: str, source: str) -> str:
        """The text with the change; ValueError if the source has another number of places."""
        if (found := text.count(self.old)) != self.times:
            raise ValueError(f"{source}: {self.old!r} occurs {found} times, and not {self.times}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Template:
    """Source and changes of one file of ``templates/``."""

    source: str
    when: str
    changes: tuple[Change, ...]

    @classmethod
    def read(cls, text: str) -> "Template":
        """Read a file of ``changes/``; ValueError if it is none."""
        parts = re.split(r"(?m)^@@ (from|when|old|new) ?(.*)\n", text)
        marks, values, bodies = parts[1::3], parts[2::3], [body.removesuffix("\n") for body in parts[3::3]]
        first = 2 if "when" in marks else 1
        changed = marks[first:]
        if (
            parts[0]
            or marks[:first] != ["from", "when"][:first]
            or changed != ["old", "new"] * (len(changed) // 2)
        ):
            raise ValueError(f"no changes to a file: {text[:100]!r}")
        changes = tuple(
            Change(bodies[at], bodies[at + 1], int(values[at].removesuffix(" times") or 1))
            for at in range(first, len(marks), 2)
        )
        return cls(values[0], values[1] if first == 2 else "", changes)

    def text(self) -> str:
        """The template."""
        text = _with_names(_with_labels((KUBERNETES / self.source).read_text()))
        for change in self.changes:
            text = change.applied(text, self.source)
        head = f"{{{{- /* Written by `python -m deploy.write` from kubernetes/{self.source}. */}}}}\n"
        if self.when:
            return f"{head}{{{{- if {self.when} }}}}\n{text.rstrip()}\n{{{{- end }}}}\n"
        return head + text


def _with_labels(text: str) -> str:
    """The same with the release's name in every selector, and Helm's labels on every object."""
    documents = []
    for document in re.split(r"(?m)^---\n", text):
        # Selectors that share an object's labels by an anchor would take Helm's along.
        if found := re.search(r"(?m)^  labels: &(\w+)\n((?:    .+\n)+)", document):
            name, labels = found[1], found[2]
            flow = ", ".join(line.strip() for line in (*labels.splitlines(), _INSTANCE))
            document = document.replace(found[0], f"  labels:\n{labels}", 1)
            document = document.replace(f"*{name}", f"&{name} {{{flow}}}", 1)
        component = r"(?m)^( +)(app\.kubernetes\.io/component: \w+)$"
        document = re.sub(component, rf"\1\2\n\1{_INSTANCE}", document)
        if "\n  labels:\n" in document:
            document = document.replace("\n  labels:\n", f"\n  labels:\n{_LABELS}", 1)
        else:
            own = f"  labels:\n{_LABELS}    {_INSTANCE}\n"
            document = re.sub(r"(?m)^metadata:\n  name: .+\n", rf"\g<0>{own}", document)
        documents.append(document)
    return "---\n".join(documents)


def _with_names(text: str) -> str:
    """The same with names of objects that are made from the release's name."""
    text = re.sub(r"(?m)^  name: cacheway(-[a-z0-9-]+)?$", rf"  name: {_FULLNAME}\1", text)
    for name in _BESIDE:
        made = f'{{{{ include "cacheway.beside" (list . "{name}") }}}}'
        text = re.sub(rf"(?m)^  (name|serviceName): {name}$", rf"  \1: {made}", text)
    return text


def generated() -> Mapping[Path, str]:
    """All files of the chart that are written, with their content."""
    version = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]["version"]
    made = {
        CHART / "templates" / f"{path.stem}.yaml": Template.read(path.read_text()).text()
        for path in sorted(CHANGES.glob("*.txt"))
    }
    made[CHART / "Chart.yaml"] = _CHART_YAML.format(version=version)
    return made
