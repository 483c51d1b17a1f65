"""Commands in the pages work as they stand: blocks marked ``sh run`` are run, against real processes.

    ```sh run
    cacheway engine --port 30001 &
    curl -s http://127.0.0.1:30000/readiness
    ```

All marked blocks of a page are one script, in the order of the page: what an earlier one started is still
there. What readers need not see is in a comment, from ``<!-- sh run`` to ``-->``. The script runs in an empty
folder, with ``cacheway`` on the path, a Valkey and a namespace of its own, and each port that the page names
replaced by a free one. It fails with the first command that does, also with an HTTP error.

The block ``sh install`` of the README is run by ``tests/deploy/test_fresh_install.py``.
"""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from fakes.page_commands import run, script

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN = [page for page in PAGES if script(page)]


def test_pages_are_run_at_all() -> None:
    assert {page.name for page in RUN} >= {"README.md", "operating.md", "observability.md", "migrating.md"}


def test_no_block_is_marked_in_a_way_that_nobody_runs() -> None:
    for page in PAGES:
        marked = set(re.findall(r"^```(\S+ [^\n]*)$", page.read_text(), re.M))
        assert marked <= {"sh run"} | ({"sh install"} if page.name == "README.md" else set()), page.name


def test_the_install_commands_are_the_same_on_both_pages() -> None:
    """Those of ``docs/kubernetes.md`` are tested there."""
    install = re.compile(r"^```sh\n((?:(?:docker|sh|kubectl) [^\n]*\n)+)```$", re.M)
    (front,) = install.findall((ROOT / "README.md").read_text())
    page = "".join(install.findall((ROOT / "docs" / "kubernetes.md").read_text()))
    assert [line for line in page.splitlines() if line in front.splitlines()] == front.splitlines()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_the_commands_of_a_page_work(page: Path, tmp_path: Path, redis_url: str, namespace: str) -> None:
    commands = tmp_path / "bin"
    commands.mkdir()
    cacheway = commands / "cacheway"
    cacheway.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m router "$@"\n')
    cacheway.chmod(0o755)
    variables = {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "CACHEWAY_REDIS_URL": redis_url,
        "CACHEWAY_NAMESPACE": namespace,
    }
    run(script(page), tmp_path / "work", variables)
