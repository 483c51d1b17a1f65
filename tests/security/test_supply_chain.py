"""A dependency is bad, or differs from the lock: no audit reports "sound" without a check."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy import supply_chain
from deploy.supply_chain import LOCK, NOT_AUDITED, SOUND, VULNERABLE, audit, judged, locked, main

PACKAGES = {("httpx", "0.28.1"), ("uvicorn", "0.54.0")}


def entry(name: str, version: str, *vulns: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "version": version, "vulns": list(vulns)}


ALL = [entry("httpx", "0.28.1"), entry("Uvicorn", "0.54.0")]
SKIPPED = {"name": "uvicorn", "skip_reason": "Dependency not found on PyPI and could not be audited"}


@pytest.mark.parametrize(
    ("dependencies", "status", "strictly", "says"),
    [
        (ALL, SOUND, SOUND, "audited: nothing is known against any of 2 packages"),
        (
            [ALL[0], SKIPPED],
            SOUND,
            NOT_AUDITED,
            "NOT AUDITED: 1 of 2 packages could not be looked up (uvicorn)",
        ),
        ([ALL[0]], SOUND, NOT_AUDITED, "NOT AUDITED: 1 of 2"),
        ([ALL[0], entry("uvicorn", "0.1.0")], SOUND, NOT_AUDITED, "NOT AUDITED: 1 of 2"),
        ([], SOUND, NOT_AUDITED, "NOT AUDITED: 2 of 2"),
        (
            [entry("httpx", "0.28.1", {"id": "PYSEC-1", "fix_versions": ["0.29"]}), SKIPPED],
            VULNERABLE,
            VULNERABLE,
            "VULNERABLE: httpx 0.28.1: PYSEC-1 (mended in 0.29)",
        ),
    ],
)
def test_only_what_was_looked_up_counts_as_sound(
    dependencies: list[dict[str, Any]], status: int, strictly: int, says: str
) -> None:
    found = judged({"dependencies": dependencies}, PACKAGES)
    assert (found.status(strict=False), found.status(strict=True)) == (status, strictly)
    assert found.sentences()[0].startswith(says)
    assert any("NOT AUDITED" in line for line in found.sentences()) == bool(found.unknown)


@pytest.mark.parametrize(
    "program",
    [
        "import sys; sys.exit(1)",
        "print('no JSON')",
        "print('[]')",
        "print('{}')",
        "import sys; sys.stderr.write('could not reach the service'); print('')",
    ],
)
def test_an_audit_that_did_not_happen_is_no_clean_bill(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, program: str
) -> None:
    lock = tmp_path / "lock"
    lock.write_text("httpx==0.28.1 \\\n    --hash=sha256:00\n")
    assert audit(lock, [sys.executable, "-c", program], strict=True) == NOT_AUDITED
    assert audit(lock, ["/nowhere/pip-audit"], strict=False) == SOUND
    said = capsys.readouterr().out
    assert "audited: nothing" not in said
    assert said.count("NOT AUDITED: 1 of 1") == 2


def test_the_lock_pins_every_package_by_its_hashes() -> None:
    pins = re.split(r"^(?=[A-Za-z0-9])", LOCK.read_text(), flags=re.MULTILINE)[1:]
    assert len(pins) == len(locked(LOCK)) > 30
    assert all("--hash=sha256:" in pin for pin in pins)


def test_the_list_of_packages_is_valid_and_that_of_the_lock(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The bill of a part of the lock, since the whole takes 5 s; the form is validated."""
    lock, out = tmp_path / "part.lock", tmp_path / "sbom.json"
    lock.write_text("\n".join(LOCK.read_text().splitlines()[:12]) + "\n")
    assert main(["sbom", "--lock", str(lock), "--out", str(out)]) == 0
    written = json.loads(out.read_text())
    assert (written["bomFormat"], written["metadata"]["component"]["name"]) == ("CycloneDX", "cacheway")
    assert {(part["name"], part["version"]) for part in written["components"]} == locked(lock)
    told = capfd.readouterr()
    assert f"{len(locked(lock))} packages" in told.out
    assert not told.err


def test_a_list_that_is_not_the_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lock, out = tmp_path / "part.lock", tmp_path / "sbom.json"
    lock.write_text("httpx==0.28.1 \\\n    --hash=sha256:" + "0" * 64 + "\n")
    out.write_text(json.dumps({"components": [{"name": "httpx", "version": "0.1"}]}))
    monkeypatch.setattr(supply_chain.subprocess, "run", lambda *_, **__: None)
    assert main(["sbom", "--lock", str(lock), "--out", str(out)]) == 1
    assert "differs from part.lock in httpx" in capsys.readouterr().out
