"""The Dockerfile: it copies what exists, and manifests run what it builds."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def test_the_image_has_what_the_build_copies() -> None:
    """Every path that the Dockerfile copies exists and is let through by .dockerignore."""
    allowed = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines()}
    for line in DOCKERFILE.splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists(), source
                assert source in allowed or source.split("/")[0] in allowed, source


def test_the_gateways_image_is_the_one_that_is_built_by_default() -> None:
    assert re.findall(r"^FROM .+ AS (\S+)", DOCKERFILE, re.M)[-1] == "gateway"


def test_images_run_as_the_user_that_manifests_name() -> None:
    manifest = (ROOT / "deploy/kubernetes/base/deployment.yaml").read_text()
    (user,) = set(re.findall(r"^USER (\d+)", DOCKERFILE, re.M))
    assert f"runAsUser: {user}" in manifest
    assert set(re.findall(r"--uid (\d+)", DOCKERFILE)) == {user}


def test_the_load_test_runs_the_file_that_its_image_has() -> None:
    job = (ROOT / "deploy/kubernetes/overlays/loadtest/loadtest.yaml").read_text()
    (path,) = set(re.findall(r"--locustfile=(\S+)", job))
    folder = str(Path(path).parent)
    assert f"/site-packages/cacheway/loadtest/{Path(path).name} {folder}/" in DOCKERFILE
    assert f"COPY --from=build-loadtest {folder} {folder}" in DOCKERFILE


def test_images_say_what_they_are() -> None:
    for stage in re.split(r"^FROM ", DOCKERFILE, flags=re.M):
        if " AS gateway" in stage or " AS loadtest" in stage:
            for label in ("title", "description", "licenses", "version", "revision"):
                assert f"org.opencontainers.image.{label}=" in stage
