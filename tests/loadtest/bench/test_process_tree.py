"""Facts about processes are true of one that this test starts."""

import asyncio
import mmap
import os
import socket
import sys

from fakes.running import until

from loadtest.bench.process_tree import (
    clients_of,
    cpu_s,
    minor_faults,
    open_files,
    peak_rss_bytes,
    rss_bytes,
    tree_of,
)

BURN = "import time\nwhile time.process_time() < 0.3: pass\nprint()"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', '''{BURN}''']); input()"


async def test_a_tree_holds_its_descendants_and_the_cpu_of_those_that_ended() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PARENT), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        await until(lambda: len(tree_of(process.pid)) == 2)
        assert process.pid in tree_of(os.getpid())
        await process.stdout.readline()
        await until(lambda: tree_of(process.pid) == [process.pid])
        assert cpu_s(tree_of(process.pid)) >= 0.2
        assert 1e6 < rss_bytes(process.pid) <= peak_rss_bytes(process.pid) < 1e9
    finally:
        await process.communicate(b"\n")
    assert (rss_bytes(process.pid), cpu_s((process.pid,))) == (0, 0.0)


def test_clients_are_the_connections_that_a_process_has_accepted_on_a_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert clients_of(os.getpid(), port) == 0
        with socket.create_connection(("127.0.0.1", port)), listener.accept()[0]:
            assert clients_of(os.getpid(), port) == 1


def test_open_files_are_counted_and_nobody_has_none() -> None:
    before = open_files(os.getpid())
    with socket.socket(), socket.socket():
        assert open_files(os.getpid()) == before + 2
    assert open_files(1 << 30) == 0


def test_a_page_that_is_written_for_the_first_time_is_a_fault_and_nobody_has_any() -> None:
    before = minor_faults(os.getpid())
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        page[0] = 1
    assert minor_faults(os.getpid()) > before
    assert minor_faults(1 << 30) == 0
