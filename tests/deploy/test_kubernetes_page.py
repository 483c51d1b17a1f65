"""``docs/kubernetes.md``: its commands do what it says, as far as they can be run without a cluster."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import yaml
from fakes.charts import CHART, charted, needs_helm
from fakes.manifests import COMPOSED, KUBERNETES, OVERLAYS, ROOT, needs_kubectl, of_kind

TEXT = (ROOT / "docs/kubernetes.md").read_text()
COMMANDS = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```", TEXT, re.M | re.S)
    for line in block.splitlines()
    if line.strip()
]


@needs_kubectl
def test_the_install_command_puts_the_built_image_in_place() -> None:
    """The commands in front of ``kubectl apply`` run as they stand on the page."""
    (build,) = [line for line in COMMANDS if line.startswith("docker build -t registry")]
    (apply,) = [line for line in COMMANDS if line.startswith("kubectl kustomize")]
    image = shlex.split(build)[3]
    done = subprocess.run(
        ["sh", "-c", apply.removesuffix(" | kubectl apply -f -")],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    images = {
        container["image"]
        for each in yaml.safe_load_all(done.stdout)
        if each["kind"] == "Deployment"
        for container in each["spec"]["template"]["spec"]["containers"]
    }
    assert images == {image}


def test_paths_of_commands_exist() -> None:
    folders = ("deploy/kubernetes", "deploy/helm")
    paths = [word for line in COMMANDS for word in line.split() if word.startswith(folders)]
    assert len(paths) >= 6
    for path in paths:
        assert (ROOT / path).exists(), path


@needs_kubectl
def test_an_overlay_of_ones_own_is_built_as_the_page_shows_it(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```yaml\n(# kustomization.yaml\n.*?)^```", TEXT, re.M | re.S)
    # kustomize follows links out of its folder for bases, as it does for a checkout.
    example = example.replace("cacheway/deploy", os.path.relpath(ROOT / "deploy", tmp_path.resolve()))
    (tmp_path / "kustomization.yaml").write_text(example)
    done = subprocess.run(
        ["kubectl", "kustomize", str(tmp_path.resolve())], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "registry.example.com/cacheway:0.1.0" in done.stdout
    assert 'CACHEWAY_QUEUE_DRAIN_SECS_MAX: "10"' in done.stdout


@needs_helm
def test_the_values_that_the_page_shows_are_values_of_the_chart() -> None:
    (example,) = re.findall(r"^```yaml\n# values.yaml\n(.*?)^```", TEXT, re.M | re.S)
    objects = charted(yaml.safe_load(example))
    (engines,) = [each for each in of_kind(objects, "Deployment") if each["metadata"]["name"] == "vllm"]
    assert engines["spec"]["replicas"] == 4
    (install,) = [line for line in COMMANDS if line.startswith("helm install")]
    name, _, value = shlex.split(install)[-1].partition("=")
    section, _, key = name.partition(".")
    (gateway,) = of_kind(charted({section: {key: value}}), "Deployment")
    assert gateway["spec"]["template"]["spec"]["containers"][0]["image"].startswith(f"{value}:")


def test_the_page_names_the_values_for_each_overlay_and_no_others() -> None:
    """The values themselves are compared in `tests/deploy/test_chart.py`."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    table = TEXT.partition("| values | what they choose |")[2].partition("\n\n")[0]
    named = {name.partition(".")[0] for name in re.findall(r"`([a-zA-Z.]+)`", table)}
    sections = values.keys() - {"image", "imagePullSecrets", "fullnameOverride", "serviceAccount"}
    pods = {"podAnnotations", "podLabels", "nodeSelector", "tolerations", "affinity", "priorityClassName"}
    assert sections - pods - {"extraVolumes", "extraVolumeMounts"} <= named


def test_versions_of_engines_are_those_that_are_pinned() -> None:
    component = yaml.safe_load((KUBERNETES / "components/images/kustomization.yaml").read_text())
    pinned = {each["name"]: each["newTag"] for each in component["images"]}
    assert f"vLLM {pinned['vllm/vllm-openai']}" in TEXT
    assert f"SGLang {pinned['lmsysorg/sglang']}" in TEXT


def test_every_overlay_and_component_is_told_and_tried() -> None:
    components = {path.name for path in (KUBERNETES / "components").iterdir()}
    for name in (*OVERLAYS, *components - {"engines-pd"}):
        assert f"`{name}`" in TEXT, name
    used = {
        Path(path).name
        for file in KUBERNETES.rglob("kustomization.yaml")
        for path in yaml.safe_load(file.read_text()).get("components", ())
    }
    assert components <= used | {Path(path).name for parts in COMPOSED.values() for path in parts}
