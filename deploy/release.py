"""``python -m deploy.release``: build all files of a release into ``dist/``, from the newest commit.

    cacheway-VERSION-py3-none-any.whl   the wheel, built from the source distribution
    cacheway-VERSION.tar.gz             the source distribution
    cacheway-VERSION-image.tar.gz       for `docker build - < FILE`: the files that .dockerignore lets through
    cacheway-chart-VERSION.tgz          the Helm chart, for `helm install NAME FILE`
    cacheway-VERSION.cdx.json           bill of materials of the image's packages (CycloneDX)
    SHA256SUMS                          for `sha256sum --check`

Files of the same commit are equal byte for byte where they are built with the same tools: names are sorted,
and all times are the commit's. The version is that of ``pyproject.toml``, and the newest heading of
``CHANGELOG.md`` names it.
"""

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy import supply_chain

ROOT = Path(__file__).parents[1]
SUMS = "SHA256SUMS"

_HEADING = re.compile(r"^## \[([^\]]+)\]", re.MULTILINE)
_SAID = re.compile(r"^ARG (VERSION|REVISION)=.*$", re.MULTILINE)


class NotReleasable(Exception):
    """The checkout cannot be released as it is; the message says why."""


def version_of(source: Path) -> str:
    """Return the version of a source tree.

    Raises:
        NotReleasable: ``CHANGELOG.md`` begins with another one.
    """
    version = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    heading = _HEADING.search((source / "CHANGELOG.md").read_text(encoding="utf-8"))
    if heading is None or heading[1] != version:
        told = heading[1] if heading else "nothing"
        raise NotReleasable(
            f"pyproject.toml says version {version}, the newest heading of CHANGELOG.md {told}"
        )
    return str(version)


def export(root: Path, target: Path) -> tuple[str, int]:
    """Write the newest commit of a repository to a folder; return its hash and its time (Unix seconds).

    Raises:
        NotReleasable: There is no git repository.
    """
    try:
        revision, time_s = _output(["git", "-C", str(root), "log", "-1", "--format=%H %ct"]).split()
        archive = subprocess.run(  # noqa: S603 - our own words
            ["git", "-C", str(root), "archive", "HEAD"],  # noqa: S607 - as users find it
            check=True,
            capture_output=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotReleasable(f"{root} is not a git checkout: {error}") from error
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(target, filter="data")
    return revision, int(time_s)


def uncommitted(root: Path) -> int:
    """Number of files that differ from the newest commit."""
    return len(_output(["git", "-C", str(root), "status", "--porcelain"]).splitlines())


def image_context(source: Path, out: Path, version: str, revision: str, time_s: int) -> None:
    """Write the archive that ``docker build`` takes; its Dockerfile has version and revision as defaults."""
    allowed = [
        line[1:]
        for line in (source / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    ]
    said = {"VERSION": version, "REVISION": revision}
    dockerfile = _SAID.sub(
        lambda found: f"ARG {found[1]}={said[found[1]]}", (source / "Dockerfile").read_text(encoding="utf-8")
    )
    files = {"Dockerfile": dockerfile.encode()}
    for name in allowed:
        path = source / name
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                files[str(file.relative_to(source))] = file.read_bytes()
    write_archive(files, out, time_s)


def chart_archive(source: Path, out: Path, time_s: int) -> None:
    """Write the archive that ``helm install`` takes: the chart, with what its links lead to."""
    chart = source / "deploy" / "helm" / "cacheway"
    found = [Path(folder, name) for folder, _, names in os.walk(chart, followlinks=True) for name in names]
    # As its .helmignore says: of the dashboards the finished ones alone.
    files = [path for path in found if path.parent.name != "grafana" or path.suffix == ".json"]
    write_archive({f"cacheway/{path.relative_to(chart)}": path.read_bytes() for path in files}, out, time_s)


def write_archive(files: Mapping[str, bytes], out: Path, time_s: int) -> None:
    """Write a ``.tar.gz`` that depends on its arguments alone."""
    with (
        out.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=time_s) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(content), time_s, 0o644
            tar.addfile(entry, io.BytesIO(content))


def build(source: Path, out: Path, time_s: int) -> None:
    """Build the source distribution, and from it the wheel."""
    _hatch(source, "sdist", out, time_s)
    (sdist,) = out.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(sdist) as tar:
            tar.extractall(folder, filter="data")
        (unpacked,) = Path(folder).iterdir()
        _hatch(unpacked, "wheel", out, time_s)


def _hatch(source: Path, target: str, out: Path, time_s: int) -> None:
    subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out.resolve())],
        cwd=source,
        check=True,
        capture_output=True,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(time_s)},
    )


def write_sums(folder: Path) -> None:
    """Write the checksums of all files of a folder."""
    files = sorted(path for path in folder.iterdir() if path.name != SUMS)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def release(root: Path, out: Path) -> list[Path]:
    """Build all files of a release into a folder; files of former ones there are removed.

    Raises:
        NotReleasable: The checkout cannot be released.
    """
    with tempfile.TemporaryDirectory(prefix="cacheway-release-") as folder:
        source, made = Path(folder) / "source", Path(folder) / "dist"
        made.mkdir()
        revision, time_s = export(root, source)
        version = version_of(source)
        build(source, made, time_s)
        image_context(source, made / f"cacheway-{version}-image.tar.gz", version, revision, time_s)
        chart_archive(source, made / f"cacheway-chart-{version}.tgz", time_s)
        lock, project = (source / path.name for path in (supply_chain.LOCK, supply_chain.PROJECT))
        if supply_chain.sbom(lock, made / f"cacheway-{version}.cdx.json", supply_chain.CYCLONEDX, project):
            raise NotReleasable("the bill of materials differs from the lock")
        write_sums(made)
        out.mkdir(parents=True, exist_ok=True)
        for former in [*out.glob("cacheway-*"), *out.glob(SUMS)]:
            former.unlink()
        return [Path(shutil.copy(path, out)) for path in sorted(made.iterdir())]


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603


def main(argv: Sequence[str]) -> int:
    """Run the command.

    Args:
        argv: Arguments.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(prog="deploy.release", description="Build the files of a release.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    out = parser.parse_args(argv).out
    try:
        files = release(ROOT, out)
    except NotReleasable as error:
        sys.stderr.write(f"not released: {error}\n")
        return 1
    sys.stdout.write("".join(f"{path}  {path.stat().st_size:,} bytes\n" for path in files))
    if left := uncommitted(ROOT):
        sys.stdout.write(f"Of the newest commit: {left} files that differ from it are not in it.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
