"""Build of the wheel: one package, ``cacheway``, whose parts lie side by side in the repository.

    repository                          wheel
    cacheway/__init__.py                cacheway/__init__.py
    router/cli.py                       cacheway/router/cli.py
      from policies import place          from cacheway.policies import place
    loadtest/study/                     (nothing: our own laboratory)

Packages named ``router`` or ``policies`` in site-packages would overwrite packages of others, and be
overwritten by them (decision 0069). So imports of the packages that ``pyproject.toml`` names
(`tool.hatch.build.targets.wheel.hooks.custom`) are renamed as the wheel is built, and so is ``python -m
loadtest...`` in texts. Nothing else in the code changes, and line numbers stay. An import that cannot be
renamed alone stops the build.

The long description is the README. On a package index its relative links lead nowhere: they are made absolute
if ``CACHEWAY_REPOSITORY_URL`` names the place of the repository, at the tag of the version; else only their
text is left.
"""

import ast
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

HOME = "cacheway"
REPOSITORY = "CACHEWAY_REPOSITORY_URL"

_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?!https?:|#)(?P<path>[^)\s]+)\)")


class UnclearImport(ValueError):
    """An import that binds the name of a package: uses of that name would have to be renamed as well."""


def renamed(source: str, packages: frozenset[str], file: str) -> str:
    """Return a module's source with imports of ``packages`` below ``cacheway``.

    Raises:
        UnclearImport: The module has ``import router`` or ``import router.x`` without ``as``.
    """
    lines = source.splitlines(keepends=True)
    names = "|".join(sorted(packages))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            if node.level or _top(node.module or "") not in packages:
                continue
        elif isinstance(node, ast.Import):
            if not any(_top(alias.name) in packages for alias in node.names):
                continue
            if len(node.names) > 1 or not node.names[0].asname:
                raise UnclearImport(
                    f"{file}:{node.lineno}: write `from ... import ...` or `import ... as ...`"
                )
        else:
            continue
        # Columns count bytes of UTF-8.
        line = lines[node.lineno - 1].encode()
        head, tail = line[: node.col_offset].decode(), line[node.col_offset :].decode()
        lines[node.lineno - 1] = head + re.sub(rf"^((?:from|import)\s+)({names})\b", rf"\1{HOME}.\2", tail)
    return re.sub(rf"\bpython -m ({names})\b", rf"python -m {HOME}.\1", "".join(lines))


def _top(module: str) -> str:
    return module.partition(".")[0]


def described(readme: str, url: str, version: str) -> str:
    """Return the README for an index: with absolute links below ``url``, without links if that is empty."""

    def link(found: re.Match[str]) -> str:
        image, text, path = found["image"], found["text"], found["path"]
        if not url:
            return "" if image else text
        return f"{image}[{text}]({url}/{'raw' if image else 'blob'}/v{version}/{path})"

    return _LINK.sub(link, readme)


def lay_out(root: Path, target: Path, packages: frozenset[str], left_out: frozenset[str]) -> None:
    """Write the package ``cacheway`` as wheels have it to ``target``, of those packages that are there."""
    for package in (HOME, *sorted(packages)):
        for path in sorted((root / package).rglob("*")):
            inside = path.relative_to(root)
            if not path.is_file() or "__pycache__" in inside.parts or inside.name.startswith("."):
                continue
            if left_out & {str(inside), *map(str, inside.parents)}:
                continue
            out = target / (inside.relative_to(HOME) if package == HOME else inside)
            out.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".py":
                out.write_text(
                    renamed(path.read_text(encoding="utf-8"), packages, str(inside)), encoding="utf-8"
                )
            else:
                shutil.copyfile(path, out)


class WheelHook(BuildHookInterface):  # type: ignore[type-arg]  # of the builder's configuration, which is not used
    """Lay the package out in a folder of its own, and let the wheel take it from there."""

    _folder: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Begin a build; an editable install has the repository itself on its path."""
        if version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory(prefix="cacheway-wheel-")
        target = Path(self._folder.name) / HOME
        lay_out(
            Path(self.root), target, frozenset(self.config["packages"]), frozenset(self.config["left-out"])
        )
        build_data["force_include"][str(target)] = HOME

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """End a build."""
        if self._folder is not None:
            self._folder.cleanup()


class DescriptionHook(MetadataHookInterface):
    """Fill in the long description and the URLs; a source distribution brings both with it."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Change the metadata of the project."""
        if "readme" in metadata:
            return
        url = os.environ.get(REPOSITORY, "").rstrip("/")
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = described(readme, url, metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        if url:
            tag = f"{url}/blob/v{metadata['version']}"
            metadata["urls"] = {
                "Repository": url,
                "Documentation": f"{tag}/docs/README.md",
                "Changelog": f"{tag}/CHANGELOG.md",
                "Issues": f"{url}/issues",
            }
