"""A tethered child ends on request, in any state.

Its users' tests, of the embedded Valkey and `Child`, cover its death with a killed owner.
"""

import os
import signal
import sys
from pathlib import Path

from fakes.running import until

from router.child_process import ChildProcess

READY = "print('ready', flush=True); time.sleep(600)"


async def started(tmp_path: Path, program: str, **options: object) -> ChildProcess:
    """A child that has written ``ready``."""
    path = tmp_path / "log"
    with path.open("wb") as log:
        child = await ChildProcess.start(
            *(sys.executable, "-c", f"import os, signal, sys, time\n{program}"),
            log=log,
            **options,  # type: ignore[arg-type]
        )
    await until(lambda: "ready" in path.read_text())
    return child


async def test_a_child_is_asked_to_end_and_may_clean_up(tmp_path: Path) -> None:
    child = await started(tmp_path, f"signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); {READY}")
    assert child.returncode is None
    await child.end(15)
    assert child.returncode == 7
    await child.end(15)


async def test_a_child_that_does_not_end_is_killed(tmp_path: Path) -> None:
    child = await started(tmp_path, f"signal.signal(signal.SIGTERM, signal.SIG_IGN); {READY}")
    await child.end(0.1)
    assert child.returncode == -signal.SIGKILL


async def test_a_paused_child_is_woken_to_end(tmp_path: Path) -> None:
    child = await started(tmp_path, READY)
    os.kill(child.pid, signal.SIGSTOP)
    await child.end(15)
    assert child.returncode == -signal.SIGTERM


async def test_a_child_that_ended_by_itself_keeps_its_status(tmp_path: Path) -> None:
    child = await started(tmp_path, "print('ready', flush=True); sys.exit(3)")
    assert await child.wait() == 3
    await child.end(15)
    assert child.returncode == 3


async def test_a_child_has_the_environment_it_is_given_and_writes_errors_to_its_log(tmp_path: Path) -> None:
    program = "print(os.environ['WHO'], file=sys.stderr, flush=True); print('ready', flush=True)"
    child = await started(tmp_path, program, environment={"WHO": "somebody"})
    await child.wait()
    await child.end(15)
    assert (tmp_path / "log").read_text().splitlines() == ["somebody", "ready"]
