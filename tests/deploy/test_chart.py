"""The Helm chart: it renders what the overlays render, takes what it says it takes, and refuses the rest."""

import base64
import copy
import json
import re
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from fakes.charts import CHART, charted, needs_helm, rendered_files
from fakes.manifests import (
    KUBERNETES,
    OVERLAYS,
    ROOT,
    Object,
    containers,
    environment,
    expanded,
    needs_kubectl,
    of_kind,
    pods,
    rendered,
    selects,
    title,
)

from deploy import chart as written
from deploy import release
from router import cli
from router.tenants.admin_tokens import parsed_tokens

NO_SECRETS = {"secrets": {"create": False}}
"""As the overlays, whose Secrets `secrets.sh` makes."""

EXTERNAL: dict[str, Any] = {"redis": {"mode": "external"}}
SINGLE: dict[str, Any] = {"replicas": 1, "redis": {"mode": "embedded"}}
MONITORED = {"monitoring": {"serviceMonitor": True, "rules": True, "dashboards": True}}
OUTSIDE = {"gatewayApi": {"enabled": True}}

SAME: dict[str, dict[str, Any]] = {
    "ha": {},
    "single": SINGLE,
    "single+external-redis": {"replicas": 1, **EXTERNAL},
    "ha+tls": {"tls": {"secret": "cacheway-tls"}},
    "ha+monitoring+gateway-api": {**MONITORED, **OUTSIDE},
    "ha-external": {**EXTERNAL, **MONITORED, **OUTSIDE, "autoscaling": {"enabled": True}},
    "vllm": {"engines": {"kind": "vllm"}},
    "sglang": {"engines": {"kind": "sglang"}},
    "vllm+kv-events": {"engines": {"kind": "vllm"}, "kvEvents": {"enabled": True}},
    "sglang+kv-events": {"engines": {"kind": "sglang"}, "kvEvents": {"enabled": True}},
    "pd": {"engines": {"kind": "sglang-pd"}},
    "pd-vllm": {"engines": {"kind": "vllm-pd"}},
    "try": {"engines": {"kind": "emulated"}},
    "picker": {"picker": {"enabled": True}, "gatewayApi": {"enabled": True, "paths": ["/"]}},
    "prfaas/dc1": {
        "engines": {"kind": "sglang-pd"},
        "settings": {
            "CACHEWAY_SITE": "dc1",
            "CACHEWAY_LINKS": "{dc2>dc1: {gbps: 100, rtt_ms: 20, cap_ratio: 0.8}}",
            "CACHEWAY_MODELS": "{'*': {attention: full, kv_bytes_per_token: 262144}}",
        },
        "remotePrefill": {
            "workers": [
                f"http://prefill-{number}.dc2.example:30000 8998 site=dc2 worker_class=h200"
                for number in range(2)
            ],
            "networks": ["10.2.0.0/16"],
        },
    },
    "prfaas/dc2": {
        "gateway": {"enabled": False},
        "engines": {"kind": "sglang-prefill"},
        "remotePrefill": {"networks": ["10.1.0.0/16"]},
    },
}
"""Overlays, and the values with which the chart renders the same."""

HELMS_LABELS = (
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
    "app.kubernetes.io/part-of",
    "helm.sh/chart",
)


def comparable(objects: tuple[Object, ...]) -> dict[str, Object]:
    """The objects by kind and name, without what the two tools do differently by their nature.

    kustomize writes the namespace, and ends names of ConfigMaps with a hash: a changed one is a rollout.
    Helm adds its labels, and a checksum does the same. The order of arguments says nothing.
    """
    hashed = {
        name: re.sub(r"-[a-z0-9]{10}$", "", name)
        for name in (each["metadata"]["name"] for each in of_kind(objects, "ConfigMap"))
    }

    def plain(value: Any) -> Any:
        match value:
            case dict():
                return {key: plain(each) for key, each in value.items() if key not in HELMS_LABELS}
            case list():
                return [plain(each) for each in value]
            case str():
                return hashed.get(value, value)
        return value

    found = {}
    for each in copy.deepcopy(objects):
        each["metadata"].pop("namespace", None)
        if each["kind"] in ("Deployment", "StatefulSet"):
            template = each["spec"]["template"]
            template["metadata"].get("annotations", {}).pop("checksum/settings", None)
            if not template["metadata"].get("annotations", {"": ""}):
                del template["metadata"]["annotations"]
            for container in template["spec"]["containers"]:
                container["args"] = sorted(container.get("args", ()))
        each = plain(each)
        if not each["metadata"].get("labels", {"": ""}):
            del each["metadata"]["labels"]
        assert title(each) not in found
        found[title(each)] = each
    return found


@needs_helm
@needs_kubectl
@pytest.mark.parametrize("overlay", SAME)
def test_the_chart_and_the_overlay_render_the_same_objects(overlay: str) -> None:
    chart = comparable(charted({**SAME[overlay], **NO_SECRETS}))
    overlays = comparable(rendered(overlay))
    assert chart.keys() == overlays.keys()
    for name, each in overlays.items():
        assert chart[name] == each, name


def test_every_overlay_of_a_fleet_is_compared() -> None:
    """The load test is no part of a fleet."""
    assert set(OVERLAYS) - SAME.keys() == {"loadtest"}


def test_templates_are_written_from_the_files_of_the_overlays() -> None:
    for path, text in written.generated().items():
        assert path.read_text() == text, f"{path.name}: python -m deploy.write"
    by_hand = {path.name for path in (CHART / "templates").iterdir()} - {
        path.name for path in written.generated()
    }
    assert by_hand == {
        "NOTES.txt",
        "_helpers.tpl",
        "discovery-namespaces.yaml",
        "monitoring.yaml",
        "secrets.yaml",
        "settings.yaml",
    }


def test_a_source_that_changed_below_a_change_stops_the_writing() -> None:
    change = written.Template.read("@@ from a.yaml\n@@ when .Values.a\n@@ old 2 times\na\n@@ new\nb\nc\n")
    assert change == written.Template("a.yaml", ".Values.a", (written.Change("a", "b\nc", 2),))
    with pytest.raises(ValueError, match="no changes"):
        written.Template.read("@@ from a.yaml\n@@ new\nb\n")
    with pytest.raises(ValueError, match=r"x\.yaml: 'a' occurs 2 times, and not 1"):
        written.Change("a", "b").applied("a a", "x.yaml")


def test_the_version_is_that_of_the_project() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)


def test_images_are_those_of_the_overlays() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    component = yaml.safe_load((KUBERNETES / "components/images/kustomization.yaml").read_text())
    images = [values["redis"]["image"], values["engines"]["vllm"], values["engines"]["sglang"]]
    assert {image["repository"]: image["tag"] for image in images} == {
        each["name"]: each["newTag"] for each in component["images"]
    }


def test_the_schema_knows_each_value_and_no_other() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def compare(values: Any, schema: Any, path: str) -> None:
        if "$ref" in schema:
            schema = json.loads((CHART / "values.schema.json").read_text())["definitions"][
                schema["$ref"].rpartition("/")[2]
            ]
        if "properties" not in schema or not isinstance(values, dict):
            return
        assert schema["additionalProperties"] is False, path
        known = schema["properties"].keys() - {"global", "claims"}
        assert values.keys() == known, path
        for name, value in values.items():
            compare(value, schema["properties"][name], f"{path}.{name}")

    compare(values, schema, "values")


@needs_helm
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"replica": 3}, "replica"),
        ({"replicas": 0}, "replicas"),
        ({"image": {"tag": "latest"}}, "tag"),
        ({"redis": {"mode": "cluster"}}, "mode"),
        ({"redis": {"mode": "external", "url": "http://redis"}}, "url"),
        ({"settings": {"PATH": "/"}}, "PATH"),
        ({"workerUrls": ["engine:8000"]}, "workerUrls"),
        ({"engines": {"kind": "tgi"}}, "kind"),
        ({"tls": {"secret": "Bad_Name"}}, "secret"),
        ({"picker": {"targetPorts": [0]}}, "targetPorts"),
        ({"picker": {"selector": "a in (b)"}}, "selector"),
        ({"remotePrefill": {"networks": ["all"]}}, "networks"),
    ],
)
def test_values_that_are_none_are_refused_by_name(values: dict[str, Any], said: str) -> None:
    import helm_python

    with pytest.raises(helm_python.HelmError, match=said):
        rendered_files(values)


@needs_helm
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"redis": {"mode": "embedded"}}, "for one replica"),
        ({**SINGLE, "autoscaling": {"enabled": True}}, "for one replica"),
        ({"discovery": {"enabled": False}}, "no workers"),
        ({"engines": {"kind": "vllm-pd"}, "kvEvents": {"enabled": True}}, "plain engines"),
        ({"gateway": {"enabled": False}}, "only prefills"),
        ({"picker": {"enabled": True}, "discovery": {"namespaces": ["other"]}}, "one namespace"),
        ({"remotePrefill": {"workers": ["http://p:30000 8998"]}}, "remotePrefill.networks"),
        ({"gateway": {"enabled": False}, "engines": {"kind": "sglang-prefill"}}, "remotePrefill.networks"),
    ],
)
def test_values_that_contradict_each_other_stop_the_rendering(values: dict[str, Any], said: str) -> None:
    import helm_python

    with pytest.raises(helm_python.HelmError, match=said):
        rendered_files(values)


@needs_helm
@pytest.mark.parametrize(("kind", "policies"), [("none", 0), ("sglang-pd", 2)])
def test_only_engines_of_this_release_are_shut_off_but_from_the_other_site(kind: str, policies: int) -> None:
    """A policy for engines of another release would admit only the other site."""
    remote = {"workers": ["http://p:30000 8998 site=dc2"], "networks": ["10.2.0.0/16"]}
    objects = charted({"engines": {"kind": kind}, "pd": {"enabled": True}, "remotePrefill": remote})
    found = [
        each
        for each in of_kind(objects, "NetworkPolicy")
        if "cacheway.io/role" in json.dumps(each["spec"]["podSelector"])
    ]
    assert len(found) == policies


OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "everything": {
        "image": {"repository": "registry.example.com/cacheway", "digest": f"sha256:{'0' * 64}"},
        "imagePullSecrets": [{"name": "registry"}],
        "replicas": 5,
        "settings": {"CACHEWAY_SHUTDOWN_DELAY_SECS": 30, "CACHEWAY_NAMESPACE": "chat"},
        "extraArgs": ["--policy=cache_aware"],
        "redis": {"mode": "external", "url": "rediss://user:secret@redis.example.com:6379/0"},
        "discovery": {"selector": "app=vllm,tier in (a, b)", "namespaces": ["engines-a", "engines-b"]},
        "workerUrls": ["http://10.0.0.1:8000", "http://10.0.0.2:8000"],
        "pd": {"enabled": True},
        "tenants": {"secret": "tenants"},
        "tls": {"secret": "cacheway-tls"},
        "gatewayApi": {
            "enabled": True,
            "parentRefs": [{"name": "shared", "namespace": "infra"}],
            "paths": ["/v1", "/v2"],
        },
        "monitoring": {
            "serviceMonitor": True,
            "rules": True,
            "dashboards": True,
            "labels": {"release": "prometheus"},
        },
        "resources": {"requests": {"cpu": "2", "memory": "2Gi"}, "limits": {"memory": "8Gi"}},
        "podAnnotations": {"a": "b"},
        "podLabels": {"c": "d"},
        "nodeSelector": {"e": "f"},
        "tolerations": [{"key": "g", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "extraVolumes": [{"name": "tokenizers", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "tokenizers", "mountPath": "/models"}],
        "serviceAccount": {"create": False, "name": "gateway"},
        "networkPolicy": {"enabled": False},
    },
    "without discovery": {"discovery": {"enabled": False}, "workerUrls": ["http://10.0.0.1:8000"]},
    "picker": {
        "picker": {
            "enabled": True,
            "pool": "chat",
            "selector": "app=sglang,tier=a",
            "targetPorts": [30000, 30001],
            "failureMode": "FailClose",
        },
        "gatewayApi": {"enabled": True, "parentRefs": [{"name": "shared"}]},
        "discovery": {"enabled": False},
        "tls": {"secret": "cacheway-tls"},
        "engines": {"kind": "sglang-pd"},
    },
    "small engines": {
        "engines": {
            "kind": "vllm",
            "model": "Qwen/Qwen3-0.6B",
            "replicas": 1,
            "gpus": 1,
            "extraArgs": ["--max-model-len=8192"],
            "storage": {"size": "20Gi", "accessMode": "ReadWriteOnce", "className": "fast"},
        }
    },
}

CUSTOM_GROUPS = ("monitoring.coreos.com/", "gateway.networking.k8s.io/", "inference.networking.k8s.io/")

each_option = pytest.mark.parametrize("name", OPTIONS)


@needs_helm
@each_option
@pytest.mark.parametrize("version", ["1.30", "1.37"])
def test_objects_of_every_option_fit_their_schemas(name: str, version: str) -> None:
    import kubernetes_validate

    for each in charted(OPTIONS[name]):
        if not each["apiVersion"].startswith(CUSTOM_GROUPS):
            kubernetes_validate.validate(each, version, strict=True)


@needs_helm
@each_option
def test_the_command_line_of_every_option_is_valid(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    objects = charted(OPTIONS[name])
    (container,) = [each for _, each in containers(objects) if each["name"] == "gateway"]
    variables = environment(objects, container)
    arguments = [expanded(argument, variables) for argument in container["args"]]
    status = cli.main(["config", *arguments[1:]], variables, serve=lambda _: 1, tools={})
    assert status == 0, capsys.readouterr().err


@needs_helm
def test_everything_that_values_say_is_in_the_objects() -> None:
    objects = charted(OPTIONS["everything"])
    (gateway,) = pods(objects)
    (container,) = gateway.spec["containers"]
    assert gateway.owner["spec"]["replicas"] == 5
    assert container["image"] == f"registry.example.com/cacheway@sha256:{'0' * 64}"
    assert gateway.spec["terminationGracePeriodSeconds"] == 30 + 180 + 10
    assert {"--policy=cache_aware", "--service-discovery-namespace=engines-b"} <= set(container["args"])
    assert container["args"][-3:] == ["--worker-urls", "http://10.0.0.1:8000", "http://10.0.0.2:8000"]
    assert "--selector=app=vllm,tier in (a, b)" in container["args"]
    assert gateway.spec["serviceAccountName"] == "gateway"
    assert not of_kind(objects, "ServiceAccount", "NetworkPolicy", "Gateway")
    roles = {role["metadata"].get("namespace") for role in of_kind(objects, "Role")}
    assert roles == {None, "engines-a", "engines-b"}
    (route,) = of_kind(objects, "HTTPRoute")
    assert route["spec"]["parentRefs"] == [{"name": "shared", "namespace": "infra"}]
    assert [match["path"]["value"] for match in route["spec"]["rules"][0]["matches"]] == ["/v1", "/v2"]
    (secret,) = [each for each in of_kind(objects, "Secret") if each["metadata"]["name"] == "cacheway-redis"]
    assert secret["stringData"] == {"url": "rediss://user:secret@redis.example.com:6379/0"}
    for each in of_kind(objects, "ServiceMonitor", "PrometheusRule"):
        assert each["metadata"]["labels"]["release"] == "prometheus"
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {"/models", "/etc/cacheway/tenants", "/etc/cacheway/tls", "/etc/cacheway/log"} <= mounts


@needs_helm
@pytest.mark.parametrize("selector", ["cacheway.io/role=plain", "app=sglang,tier=a"])
def test_a_picker_reaches_the_pods_of_its_pool(selector: str) -> None:
    """To probe them: most pools are of pods that were there before, without labels of ours."""
    objects = charted({"picker": {"enabled": True, "selector": selector}})
    (pool,) = of_kind(objects, "InferencePool")
    labels = pool["spec"]["selector"]["matchLabels"]
    policies = [each for each in of_kind(objects, "NetworkPolicy") if each["metadata"]["name"] == "cacheway"]
    peers = [peer for rule in policies[0]["spec"]["egress"] for peer in rule.get("to", [])]
    selectors = [peer["podSelector"] for peer in peers if "podSelector" in peer]
    roles = {"matchExpressions": [{"key": "cacheway.io/role", "operator": "Exists"}]}
    assert {"matchLabels": labels} in selectors or (roles in selectors and "cacheway.io/role" in labels)


@needs_helm
def test_a_picker_is_asked_by_a_route_to_its_pool() -> None:
    objects = charted(OPTIONS["picker"], name="llm")
    (pool,) = of_kind(objects, "InferencePool")
    assert pool["metadata"]["name"] == "chat"
    assert pool["spec"] == {
        "selector": {"matchLabels": {"app": "sglang", "tier": "a"}},
        "targetPorts": [{"number": 30000}, {"number": 30001}],
        "endpointPickerRef": {
            "name": "llm-cacheway",
            "port": {"number": 9002},
            "failureMode": "FailClose",
        },
    }
    (route,) = of_kind(objects, "HTTPRoute")
    assert route["spec"]["rules"][0]["backendRefs"][0]["name"] == "chat"
    assert not of_kind(objects, "Gateway")
    (gateway,) = [each for each in pods(objects) if each.owner["metadata"]["name"] == "llm-cacheway"]
    (container,) = gateway.spec["containers"]
    assert container["args"][0] == "picker"
    assert not [each for each in container["args"] if "selector" in each or "api-key" in each]
    rights = [rule for role in of_kind(objects, "Role") for rule in role["rules"]]
    assert {"pods", "inferencepools"} <= {name for rule in rights for name in rule["resources"]}


@needs_helm
def test_the_archive_of_a_release_renders_what_the_folder_renders(tmp_path: Path) -> None:
    """Links are files in it; nothing but finished dashboards comes from their folder."""
    import helm_python

    values = {**MONITORED, **NO_SECRETS}
    release.chart_archive(ROOT, tmp_path / "chart.tgz", 1_800_000_000)
    with tarfile.open(tmp_path / "chart.tgz") as tar:
        assert all(entry.isfile() and entry.name.startswith("cacheway/") for entry in tar)
        assert {Path(name).suffix for name in tar.getnames() if "/grafana/" in name} == {".json"}
    with helm_python.Chart.load(str(tmp_path / "chart.tgz")) as chart:
        assert chart.render(values, name="cacheway", namespace="cacheway") == rendered_files(values)


@needs_helm
def test_a_changed_setting_is_a_rollout() -> None:
    def checksum(values: dict[str, Any]) -> str:
        (gateway,) = [each for each in pods(charted(values)) if each.owner["metadata"]["name"] == "cacheway"]
        return str(gateway.template["metadata"]["annotations"]["checksum/settings"])

    assert checksum({}) != checksum({"settings": {"CACHEWAY_QUEUE_TIMEOUT_SECS": 90}})
    assert checksum({}) != checksum({"kvEvents": {"enabled": True}})
    assert checksum({}) == checksum({"replicas": 4})


@needs_helm
@pytest.mark.parametrize("name", ["llm", "cacheway-b"])
def test_two_releases_share_a_namespace(name: str) -> None:
    """No object of one has the name of an object of the other, and no selector takes the other's pods."""
    values: dict[str, Any] = {"engines": {"kind": "vllm"}, **MONITORED, "secrets": {"create": True}}
    one, other = charted(values), charted(values, name=name)
    assert not {title(each) for each in one} & {title(each) for each in other}
    theirs = [each for each in pods(other) if each.labels.get("app.kubernetes.io/component") != "engine"]
    for each in one:
        match each["kind"]:
            case "Deployment" | "StatefulSet" | "PodDisruptionBudget":
                selector = each["spec"]["selector"]
            case "Service":
                selector = each["spec"]["selector"]
            case "NetworkPolicy":
                selector = each["spec"]["podSelector"]
            case _:
                continue
        assert not [pod for pod in theirs if selects(selector, pod.labels)], title(each)
    (valkey,) = [each for each in pods(other) if each.owner["kind"] == "StatefulSet"]
    peers = {entry["name"]: entry.get("value") for entry in valkey.spec["containers"][0]["env"]}
    assert peers["HOST"] == f"$(POD_NAME).{valkey.owner['spec']['serviceName']}"
    assert (
        peers["PEERS"].split()[2]
        == f"{valkey.owner['metadata']['name']}-2.{valkey.owner['spec']['serviceName']}"
    )


@needs_helm
def test_secrets_of_a_release_open_what_they_are_for() -> None:
    """Made at random, each time that nothing is there; the token's hash is the one that the gateway has."""
    first, second = (
        {each["metadata"]["name"]: each for each in of_kind(charted(values), "Secret")}
        for values in ({}, {"replicas": 2})
    )
    assert first.keys() == {"cacheway-admin", "cacheway-admin-token", "cacheway-data", "cacheway-valkey"}
    for name in first:
        assert first[name]["stringData"] != second[name]["stringData"]
    token = first["cacheway-admin-token"]["stringData"]["token"]
    tokens = first["cacheway-admin"]["stringData"]["tokens.yaml"]
    assert token not in tokens
    holder = parsed_tokens(tokens.encode(), "Secret").holder(token.encode(), 0.0)
    assert holder is not None
    assert (holder.name, holder.role) == ("operator", "write")
    assert re.fullmatch("cw-[0-9a-f]{64}", first["cacheway-data"]["stringData"]["api-key"])
    valkey = first["cacheway-valkey"]["stringData"]
    assert valkey["url"] == (
        f"redis+sentinel://:{valkey['password']}@valkey-0.valkey:26379,valkey-1.valkey:26379,"
        f"valkey-2.valkey:26379/cacheway?sentinel_password={valkey['password']}"
    )


@needs_helm
def test_notes_name_what_the_release_has() -> None:
    notes = rendered_files({})["cacheway/templates/NOTES.txt"]
    assert "get secret cacheway-admin-token" in notes
    assert token_free(notes)
    assert (
        "https://127.0.0.1:30000" in rendered_files({"tls": {"secret": "t"}})["cacheway/templates/NOTES.txt"]
    )
    given = rendered_files(NO_SECRETS, name="llm")["cacheway/templates/NOTES.txt"]
    assert "llm-cacheway-admin (tokens.yaml)" in given
    assert "-token" not in given


def token_free(text: str) -> bool:
    """Nothing in it is a key, plain or in base64."""
    return not re.search(r"cw-[0-9a-f]{16}", text) and base64.b64encode(b"cw-")[:3].decode() not in text
