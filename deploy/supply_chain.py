"""``python -m deploy.supply_chain audit|sbom``: the image's packages, and known vulnerabilities.

audit    pip-audit over requirements-runtime.lock, package by package as it is locked. A package that the
         advisory service did not answer for is not counted as sound: the outcome is then "not audited",
         with status 0 for those who work offline, and 3 with ``--strict``, which a release uses.
sbom     a CycloneDX list of the same packages with their hashes, validated, and compared with the lock.

    outcome         status
    sound           0        every package was looked up, and nothing is known against any
    vulnerable      1        something is known against at least one
    not audited     0 or 3   some could not be looked up
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements-runtime.lock"
PROJECT = ROOT / "pyproject.toml"

SOUND, VULNERABLE, NOT_AUDITED = 0, 1, 3

CYCLONEDX = (sys.executable, "-W", "ignore:The Component this BOM:UserWarning", "-m", "cyclonedx_py")
"""The program that lists packages. Its warning of missing dependencies is true of every lock."""

SHOWN_MAX = 5
TIMEOUT_S = 600.0

_LOCKED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)


def locked(lock: Path) -> frozenset[tuple[str, str]]:
    """The packages of a lock with their versions; some have another version for another Python."""
    found = _LOCKED.findall(lock.read_text(encoding="utf-8"))
    return frozenset((_normal(name), version) for name, version in found)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass(frozen=True, slots=True)
class Audit:
    """Known vulnerabilities of the packages of a lock.

    Attributes:
        advisories: Vulnerabilities, a line each.
        unknown: Packages that could not be looked up, with the reason.
        packages: Number of packages of the lock.
    """

    advisories: tuple[str, ...]
    unknown: dict[str, str]
    packages: int

    def status(self, *, strict: bool) -> int:
        """The exit status."""
        if self.advisories:
            return VULNERABLE
        return NOT_AUDITED if self.unknown and strict else SOUND

    def sentences(self) -> list[str]:
        """The report; it sounds good only if all packages were audited."""
        told = [f"VULNERABLE: {line}" for line in self.advisories]
        judged = self.packages - len(self.unknown)
        if self.unknown:
            some = ", ".join(sorted(self.unknown)[:SHOWN_MAX])
            more = f" and {len(self.unknown) - SHOWN_MAX} more" if len(self.unknown) > SHOWN_MAX else ""
            reason = next(iter(self.unknown.values()))
            told.append(
                f"NOT AUDITED: {len(self.unknown)} of {self.packages} packages could not be looked up "
                f"({some}{more}): {reason}"
            )
        elif not self.advisories:
            told.append(f"audited: nothing is known against any of {judged} packages")
        return told


def judged(report: Any, packages: Set[tuple[str, str]]) -> Audit:
    """Read pip-audit's JSON. Packages of the lock that the report lacks are unknown, too.

    Args:
        report: ``{"dependencies": [{name, version, vulns} or {name, skip_reason}]}``; None without one.
        packages: Packages of the lock.
    """
    advisories: list[str] = []
    names = {name for name, _ in packages}
    unknown = dict.fromkeys(sorted(names), "the audit did not get to it")
    entries = report.get("dependencies", []) if isinstance(report, dict) else []
    for entry in entries:
        name = _normal(entry["name"])
        if name not in names:
            continue
        if "skip_reason" in entry:
            unknown[name] = entry["skip_reason"]
        elif (name, entry.get("version")) in packages:
            unknown.pop(name, None)
        for found in entry.get("vulns", ()):
            mended = ", ".join(found.get("fix_versions", ())) or "no version"
            advisories.append(f"{name} {entry['version']}: {found['id']} (mended in {mended})")
    return Audit(tuple(advisories), unknown, len(names))


def audit(lock: Path, program: Sequence[str], *, strict: bool) -> int:
    """Look up every package of a lock; the exit status."""
    command = [*program, "--requirement", str(lock), "--no-deps", "--disable-pip", "--format", "json"]
    command += ["--progress-spinner", "off"]
    try:
        done = subprocess.run(  # noqa: S603 - our own words
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        report = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        sys.stderr.write(f"pip-audit gave no report: {type(error).__name__}\n")
        report = None
    found = judged(report, locked(lock))
    sys.stdout.write("".join(f"{line}\n" for line in found.sentences()))
    return found.status(strict=strict)


def sbom(lock: Path, out: Path, program: Sequence[str], project: Path = PROJECT) -> int:
    """Write the list of packages; ``project`` says for which project and version. The exit status.

    Raises:
        subprocess.CalledProcessError: It could not be made, or is not valid.
    """
    command = [*program, "requirements", str(lock), "--pyproject", str(project)]
    command += ["--output-reproducible", "--output-format", "JSON", "--validate", "--output-file", str(out)]
    subprocess.run(command, check=True, timeout=TIMEOUT_S)  # noqa: S603 - our own words
    components = json.loads(out.read_text(encoding="utf-8"))["components"]
    listed = {(_normal(entry["name"]), entry["version"]) for entry in components}
    wrong = listed ^ locked(lock)
    if wrong:
        sys.stdout.write(
            f"{out}: differs from {lock.name} in {', '.join(sorted({name for name, _ in wrong}))}\n"
        )
        return 1
    sys.stdout.write(f"{out}: {len(listed)} packages\n")
    return 0


def main(argv: Sequence[str]) -> int:
    """Run the command.

    Args:
        argv: Arguments.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(prog="deploy.supply_chain")
    commands = parser.add_subparsers(dest="command", required=True)
    auditing = commands.add_parser("audit", help="look every locked package up in the advisory database")
    auditing.add_argument("--strict", action="store_true", help="fail if one could not be looked up")
    listing = commands.add_parser("sbom", help="write the CycloneDX list of the locked packages")
    listing.add_argument("--out", type=Path, default=ROOT / "sbom.json")
    for each in (auditing, listing):
        each.add_argument("--lock", type=Path, default=LOCK)
    arguments = parser.parse_args(argv)
    if arguments.command == "audit":
        return audit(arguments.lock, [sys.executable, "-m", "pip_audit"], strict=arguments.strict)
    return sbom(arguments.lock, arguments.out, CYCLONEDX)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
