"""``python -m deploy.website``: build the documentation's site into ``build/site``, with a search.

The pages of ``docs/`` and those at the root (README, ARCHITECTURE, CONTRIBUTING, CHANGELOG) are one
site. Its navigation is in ``mkdocs.yml``. GitHub shows the same files, so their links are written for
the repository; this script copies the pages to ``build/pages`` and turns the links. A link to a file
that is no page (a manifest, a module) becomes plain text. The build fails on a page that the navigation
leaves out, and on a link or an anchor that leads nowhere.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urldefrag

import yaml

ROOT = Path(__file__).parents[1]

MOVED = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "docs/README.md": "questions.md",
}
"""Where the site has a page that is not at the same place below ``docs/``."""

RECORDS = re.compile(r"decisions/\d{4}-")
"""Decision records: their own index lists them, not the navigation."""

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_FENCE = re.compile(r"^( *```\w+) [^\n]*$", re.MULTILINE)
"""Says how a test runs the block, too, which Markdown on the site does not know."""

_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


class SiteProblem(Exception):
    """The site cannot be built as the pages are; the message says why."""


def pages_of(root: Path) -> Mapping[Path, str]:
    """Return the site's name of each page and picture of a checkout."""
    pages = {root / source: target for source, target in MOVED.items()}
    for path in sorted((root / "docs").rglob("*")):
        if path.suffix in {".md", ".png", ".svg"} and path not in pages:
            pages[path] = path.relative_to(root / "docs").as_posix()
    return pages


def turned(text: str, source: Path, pages: Mapping[Path, str]) -> str:
    """Return a page's text with links between the site's pages.

    Raises:
        SiteProblem: A link leads to no file of the checkout.
    """
    here = Path(pages[source]).parent

    def link(match: re.Match[str]) -> str:
        picture, label, address = match.groups()
        path, anchor = urldefrag(address)
        if not path or ":" in path:
            return match[0]
        target = (source.parent / path).resolve()
        if target not in pages:
            if not target.exists():
                raise SiteProblem(f"{source}: {address} leads nowhere")
            return label
        up = "../" * len(here.parts)
        return f"{picture}[{label}]({up}{pages[target]}{'#' + anchor if anchor else ''})"

    parts = _FENCED.split(text)
    parts = [
        _FENCE.sub(r"\1", part) if number % 2 else _LINK.sub(link, part) for number, part in enumerate(parts)
    ]
    return "".join(parts)


def stage(root: Path, target: Path) -> list[str]:
    """Copy all pages and pictures to a folder; return the pages' names on the site."""
    shutil.rmtree(target, ignore_errors=True)
    pages = pages_of(root)
    for source, name in pages.items():
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            copy.write_text(turned(source.read_text(encoding="utf-8"), source, pages), encoding="utf-8")
        else:
            shutil.copyfile(source, copy)
    return [name for name in pages.values() if name.endswith(".md")]


def listed(navigation: object) -> Iterator[str]:
    """Yield the pages that a navigation of ``mkdocs.yml`` names."""
    match navigation:
        case str():
            yield navigation
        case list():
            for one in navigation:
                yield from listed(one)
        case dict():
            for one in navigation.values():
                yield from listed(one)


def left_out(names: list[str], navigation: object) -> list[str]:
    """Return pages that the navigation does not list, and listed ones that are no pages."""
    shown = set(listed(navigation))
    return sorted(shown ^ {name for name in names if not RECORDS.match(name)})


def main() -> int:
    """Build the site; return the exit status."""
    config = ROOT / "mkdocs.yml"
    names = stage(ROOT, ROOT / "build" / "pages")
    wrong = left_out(names, yaml.safe_load(config.read_text(encoding="utf-8"))["nav"])
    if wrong:
        raise SiteProblem(f"mkdocs.yml and the pages differ: {', '.join(wrong)}")
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "--config-file", str(config)]
    return subprocess.run(command, check=False, cwd=ROOT, env={**os.environ, "NO_COLOR": "1"}).returncode  # noqa: S603


if __name__ == "__main__":
    sys.exit(main())
