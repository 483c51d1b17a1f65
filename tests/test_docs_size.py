"""Hand-written pages stay short: readers have one README, and pages that say everything once."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent

README_WORDS_MAX = 900
WORDS_MAX = 40_000
"""All hand-written pages together. Decision records are a record, not pages: they count apart."""

GENERATED = {
    "docs/benchmarks/fleet.md",
    "docs/benchmarks/peers.md",
    "docs/configuration.md",
    "docs/flags-of-other-routers.md",
    "docs/metrics.md",
    "docs/policy-study/tables.md",
    "docs/prfaas-study/matrix.md",
    "docs/prfaas-study/tables.md",
}
_MADE = re.compile(r"<!-- (?:study|ablation): [\w-]+ -->.*?<!-- end -->", re.DOTALL)
_CODE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


def words(text: str) -> int:
    """Count tokens with a letter, outside blocks of code and of generated figures."""
    return sum(bool(re.search("[A-Za-z]", token)) for token in _CODE.sub("", _MADE.sub("", text)).split())


def pages() -> list[Path]:
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [
        ROOT / name
        for name in names
        if name not in GENERATED and not name.startswith("docs/decisions/") and (ROOT / name).exists()
    ]


def test_hand_written_pages_are_short() -> None:
    counted = {path.relative_to(ROOT).as_posix(): words(path.read_text()) for path in pages()}
    longest = sorted(counted.items(), key=lambda item: -item[1])[:5]
    assert sum(counted.values()) <= WORDS_MAX, f"the longest: {longest}"


def test_the_readme_is_one_screen_and_some() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= README_WORDS_MAX
