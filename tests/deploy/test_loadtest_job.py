"""The load test of ``deploy/kubernetes``: master and worker, run as their pods run them."""

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

from fakes.manifests import ROOT, containers, environment, needs_kubectl, rendered
from fakes.running import FAST_ENGINE

from loadtest.engine import EmulatedEngine
from loadtest.processes import free_port
from loadtest.workload import MODEL

WAIT_S = 90


@needs_kubectl
async def test_master_and_worker_meet_load_a_server_and_end_by_themselves(tmp_path: Path) -> None:
    """For six seconds in place of minutes, with one worker; in three a busy machine starts no user."""
    objects = rendered("loadtest")
    master, worker = (container for _, container in containers(objects))
    assert "--master" in master["args"]
    assert "--worker" in worker["args"]
    port = str(free_port())

    async with EmulatedEngine(replace(FAST_ENGINE, models=(MODEL,))) as engine:

        async def run(
            arguments: list[str], variables: dict[str, str]
        ) -> tuple[asyncio.subprocess.Process, str]:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "locust", *arguments),
                env={
                    **os.environ,
                    **variables,
                    "LOCUST_HOST": engine.url,
                    "LOCUST_USERS": "4",
                    "LOCUST_SPAWN_RATE": "4",
                    "LOCUST_RUN_TIME": "6s",
                    "LOCUST_MASTER_BIND_HOST": "127.0.0.1",
                    "LOCUST_MASTER_BIND_PORT": port,
                    "LOCUST_MASTER_NODE_PORT": port,
                    "PYTHONPATH": str(ROOT),
                },
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                cwd=tmp_path,
            )
            try:
                async with asyncio.timeout(WAIT_S):
                    output, _ = await process.communicate()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            return process, output.decode()

        def here(arguments: list[str]) -> list[str]:
            places = {
                "/opt/loadtest/locustfile.py": str(ROOT / "loadtest/locustfile.py"),
                "/reports/": f"{tmp_path}/",
                "--expect-workers=4": "--expect-workers=1",
                "--master-host=cacheway-loadtest": "--master-host=127.0.0.1",
            }
            for old, new in places.items():
                arguments = [argument.replace(old, new) for argument in arguments]
            return arguments

        (led, summary), (worked, output) = await asyncio.gather(
            run(here(master["args"]), environment(objects, master)),
            run(here(worker["args"]), environment(objects, worker)),
        )
    assert led.returncode == 0, summary
    assert worked.returncode == 0, output
    assert "/v1/chat/completions" in summary
    assert (tmp_path / "report.html").stat().st_size > 10_000
