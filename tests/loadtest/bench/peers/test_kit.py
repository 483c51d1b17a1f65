"""Visits to peers: files read from the kit, and their removal afterwards."""

import asyncio
import re
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.bench_kit import bench_kit

from loadtest.bench.peers.kit import Kit, KitFailed, cacheway_command
from loadtest.bench.peers.results import Repetition


async def visited(kit: Kit, *workloads: str) -> list[Repetition]:
    seen: list[Repetition] = []
    await kit.visit("smg-rr", workloads, round_number=3, seconds=1.5, keep=seen.append)
    return seen


async def test_a_visit_gives_every_workload_in_our_units(tmp_path: Path) -> None:
    body = """
measured("W1", **SOUND)
measured("W5", **{**SOUND, "cpu_us_per_chunk": 20.5, "transit_ms": {"p50": 0.2, "p99": 0.8}})
"""
    plain, streams = await visited(bench_kit(tmp_path, body), "W1", "W5")

    assert plain == Repetition(
        peer="smg-rr",
        workload="W1",
        round_number=3,
        completed=1000,
        failed=0,
        cpu_us_per_request=50.0,
        cpu_us_per_chunk=None,
        per_s=500.0,
        p50_ms=3.0,
        p99_ms=9.0,
        chunk_p50_ms=None,
        chunk_p99_ms=None,
        rss_mib=100.0,
    )
    assert (streams.cpu_us_per_chunk, streams.chunk_p50_ms, streams.chunk_p99_ms) == (20.5, 0.2, 0.8)


async def test_all_that_is_not_a_whole_answer_with_200_failed(tmp_path: Path) -> None:
    body = "measured('W4', **{**SOUND, 'errors': 5, 'non200': 20, 'bad_streams': 3})"
    (seen,) = await visited(bench_kit(tmp_path, body), "W4")

    assert (seen.completed, seen.failed) == (977, 28)


async def test_a_load_generator_that_failed_is_a_failure(tmp_path: Path) -> None:
    (seen,) = await visited(bench_kit(tmp_path, "measured('W1', error='no connection')"), "W1")

    assert (seen.completed, seen.failed) == (0, 1)


async def test_a_repetition_comes_when_it_is_measured_and_not_at_the_end(tmp_path: Path) -> None:
    """The second workload begins only after the first one was seen."""
    body = """
measured("W1", **SOUND)
while not (home / "seen").exists(): time.sleep(0.01)
measured("W2", **SOUND)
"""
    kit = bench_kit(tmp_path, body)
    seen: list[str] = []

    def keep(repetition: Repetition) -> None:
        seen.append(repetition.workload)
        (kit.home / "seen").touch()

    await kit.visit("smg-rr", ["W1", "W2"], round_number=0, seconds=1, keep=keep)

    assert seen == ["W1", "W2"]


async def test_a_peer_that_does_not_come_up_gives_nothing_and_the_reason_is_in_the_log(
    tmp_path: Path,
) -> None:
    kit = bench_kit(tmp_path, "print('smg-rr: did not get ready')")

    assert await visited(kit, "W1") == []
    assert kit.last_words() == "smg-rr: did not get ready"


async def test_a_kit_that_fails_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(KitFailed, match=r"status 3: out of order"):
        await visited(bench_kit(tmp_path, "print('out of order', flush=True); sys.exit(3)"), "W1")


async def test_a_visit_that_is_cancelled_lets_the_kit_end_what_it_started(tmp_path: Path) -> None:
    """The real one ends its children when it gets SIGTERM, which takes it a while."""
    body = """
def end(*_):
    time.sleep(0.3)
    (home / "ended").touch()
    sys.exit(1)
signal.signal(signal.SIGTERM, end)
(home / "started").touch()
while True: time.sleep(1)
"""
    kit = bench_kit(tmp_path, body)
    visit = asyncio.create_task(visited(kit, "W1"))
    async with asyncio.timeout(60):
        while not (kit.home / "started").exists():  # noqa: ASYNC110 - there is no signal
            await asyncio.sleep(0.02)
    visit.cancel()

    with pytest.raises(asyncio.CancelledError):
        await visit
    assert (kit.home / "ended").exists()


async def test_a_port_that_somebody_has_is_refused_before_anything_starts(tmp_path: Path) -> None:
    kit = bench_kit(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(KitFailed, match=f"port {port} of 127.0.0.1 is taken"):
            await visited(replace(kit, ports=(port,)), "W1")

    assert not kit.log.exists()


async def test_settings_of_the_user_do_not_reach_the_gateway_that_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHEWAY_POLICY", "round_robin")
    kit = bench_kit(tmp_path, "print([name for name in os.environ if name.startswith('CACHEWAY_')])")

    await visited(kit, "W1")

    assert kit.last_words() == "[]"


def test_what_is_missing_is_only_what_the_peers_need(tmp_path: Path) -> None:
    kit = bench_kit(tmp_path)
    empty = replace(kit, home=tmp_path / "empty")

    assert kit.missing(["cacheway", "sglang-ca", "smg-rr"]) == []
    assert kit.missing(["vllm-ca", "vllm-rr", "smg-rr"]) == ["vllm"]
    assert empty.missing(["cacheway", "smg-ca", "smg-rr"]) == ["tools", "smg"]


def test_parts_are_installed_in_the_home_of_the_kit(tmp_path: Path) -> None:
    kit = bench_kit(tmp_path)

    kit.install(["tools", "smg"])

    assert (kit.home / "installed").read_text() == "tools smg\n"


def test_an_installation_that_fails_is_an_error(tmp_path: Path) -> None:
    kit = bench_kit(tmp_path)
    (kit.folder / "install_peers.sh").write_text("#!/bin/sh\nexit 1\n")

    with pytest.raises(KitFailed, match="installing nginx failed"):
        kit.install(["nginx"])


def test_versions_are_of_packages_and_not_of_modes(tmp_path: Path) -> None:
    versions = bench_kit(tmp_path).versions(["cacheway", "smg-ca", "smg-rr"])

    assert list(versions) == ["cacheway", "smg"]
    assert versions["smg"] == "9.9"


def test_a_router_without_a_version_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KitFailed, match="vllm-router does not tell its version"):
        bench_kit(tmp_path).versions(["vllm-ca"])


def test_cacheway_is_started_with_the_defaults_of_its_users() -> None:
    """Only its address, the engines' addresses and its end differ."""
    command = ["config" if word == "serve" else word for word in cacheway_command()]
    effective = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    changed = re.findall(r"^ +(\w+): .*# flag", effective, re.MULTILINE)

    assert changed == ["host", "port", "shutdown_delay_s", "worker_urls"]
