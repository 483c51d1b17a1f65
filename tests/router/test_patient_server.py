"""A server without requests wakes up for nothing, and ends when it is told."""

import asyncio

import uvicorn
from fakes.virtual_loop import VirtualLoop, run_virtually

from router.patient_server import PatientServer


def test_it_waits_without_waking_up_and_ends_at_once() -> None:
    async def main(loop: VirtualLoop) -> None:
        server = PatientServer(uvicorn.Config("nothing:app"))
        serving = asyncio.create_task(server.main_loop())
        await asyncio.sleep(100)
        assert loop.waits == 1
        assert not server.should_exit
        server.should_exit = True
        await serving
        assert loop.time() == 100
        server.should_exit = False
        assert not server.should_exit

    run_virtually(main)
