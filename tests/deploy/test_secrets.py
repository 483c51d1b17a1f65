"""``deploy/kubernetes/secrets.sh``: it makes what the pods mount, once, and prints a token that works."""

import os
import re
import stat
import subprocess
from pathlib import Path

import pytest
from fakes.manifests import KUBERNETES

from router.sources import load
from router.tenants.admin_tokens import parsed_tokens

KUBECTL = """#!/bin/sh
# Stands for kubectl: objects are files of a folder.
case "$*" in
  "get namespace "*) test -e "$OBJECTS/namespace" ;;
  "create namespace "*) : > "$OBJECTS/namespace" ;;
  *" get secret "*) for name in "$@"; do :; done; test -e "$OBJECTS/$name" ;;
  *" create secret generic "*) cat > "$OBJECTS/$6"; echo "$7" > "$OBJECTS/$6.how" ;;
  *) exit 9 ;;
esac
"""


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    kubectl = tmp_path / "bin" / "kubectl"
    kubectl.parent.mkdir()
    kubectl.write_text(KUBECTL)
    kubectl.chmod(kubectl.stat().st_mode | stat.S_IXUSR)
    folder = tmp_path / "objects"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{kubectl.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("OBJECTS", str(folder))
    return folder


def run() -> str:
    done = subprocess.run(["sh", str(KUBERNETES / "secrets.sh")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_token_that_is_printed_is_the_one_whose_hash_is_stored(objects: Path) -> None:
    (token,) = re.findall(r"cw-[0-9a-f]{64}", run())
    stored = (objects / "cacheway-admin").read_text()
    assert token not in stored
    holder = parsed_tokens(stored.encode(), "Secret").holder(token.encode(), 0.0)
    assert holder is not None
    assert (holder.name, holder.role) == ("operator", "write")
    assert (objects / "cacheway-admin.how").read_text().strip() == "--from-file=tokens.yaml=/dev/stdin"


def test_what_exists_is_left_alone(objects: Path) -> None:
    run()
    before = {path.name: path.read_bytes() for path in objects.iterdir()}
    assert "cw-" not in run()
    assert {path.name: path.read_bytes() for path in objects.iterdir()} == before


def test_the_password_of_valkey_is_random_and_fit_for_a_url(objects: Path) -> None:
    run()
    made = dict(line.split("=", 1) for line in (objects / "cacheway-valkey").read_text().splitlines())
    assert (objects / "cacheway-valkey.how").read_text().strip() == "--from-env-file=/dev/stdin"
    assert re.fullmatch(r"[0-9a-f]{64}", made["password"])
    found = dict(name.split("=") for name in made["url"].partition("?")[2].split("&"))
    assert found == {"sentinel_password": made["password"]}
    assert made["url"].startswith(f"redis+sentinel://:{made['password']}@valkey-0.valkey:26379,")
    assert load({"shared.redis_url": made["url"]}).settings.shared.redis_url == made["url"]


def test_the_key_for_clients_is_one_and_is_not_printed(objects: Path, tmp_path: Path) -> None:
    """A reader of the Secret can read the key again; a log of the installation need not hold it."""
    said = run()
    key = (objects / "cacheway-data").read_text()
    assert re.fullmatch(r"cw-[0-9a-f]{64}", key)
    assert key not in said
    assert "get secret cacheway-data" in said
    assert (objects / "cacheway-data.how").read_text().strip() == "--from-file=api-key=/dev/stdin"
    file = tmp_path / "api-key"
    file.write_text(key)
    api_key = load({"server.api_key_file": str(file)}).settings.server.api_key_file
    assert api_key == str(file)
