"""``docs/kubernetes.md``: its commands do what it says, as far as they can be run without a cluster."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import yaml
from fakes.manifests import COMPOSED, KUBERNETES, OVERLAYS, ROOT, needs_kubectl

TEXT = (ROOT / "docs/kubernetes.md").read_text()
COMMANDS = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```", TEXT, re.M | re.S)
    for line in block.splitlines()
    if line.strip()
]


@needs_kubectl
def test_the_install_command_puts_the_built_image_in_place() -> None:
    """What is piped into ``kubectl apply``, run as it stands."""
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
    paths = [word for line in COMMANDS for word in line.split() if word.startswith("deploy/kubernetes")]
    assert len(paths) >= 5
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
