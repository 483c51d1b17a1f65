"""Each kind of fault strikes and mends an existing target, and mends it despite errors in between."""

import contextlib
import json
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from loadtest.chaos.fault_injector import ALL, GROUPS, MISCHIEF, FaultInjector
from loadtest.chaos.tcp_proxy import TcpProxy
from loadtest.chaos.testbed import DECODE, PLAIN, PREFILL, REPLICAS, ChaosStage, standing
from loadtest.engine import EmulatedEngine, EngineSettings

BY_NAME = {each.kind.name: each for each in MISCHIEF}
ENGINE_FAULTS = (
    *("worker answers 500", "worker answers 503", "worker resets", "worker talks rubbish"),
    *("worker cuts streams", "worker truncates", "worker slow", "worker stalls streams", "worker unhealthy"),
    *("KV late", "KV lost"),
)


@pytest.fixture
async def testbed(tmp_path: Path) -> AsyncIterator[ChaosStage]:
    """Only the processes that a test starts run."""
    made = ChaosStage(tmp_path, standing(EngineSettings()))
    yield made
    await made.control.aclose()


def injector(name: str) -> FaultInjector:
    return BY_NAME[name]


def test_every_kind_has_a_name_of_its_own_and_targets_that_exist() -> None:
    assert len(BY_NAME) == len(MISCHIEF)
    known = {*PLAIN, *PREFILL, *DECODE, *REPLICAS, ALL}
    for each in MISCHIEF:
        assert set(each.kind.targets) <= known
        assert each.kind.lasts_s[0] <= each.kind.lasts_s[1]
        assert each.kind.group in GROUPS


def test_only_faults_of_the_network_need_cables() -> None:
    assert {each.kind.group for each in MISCHIEF if each.cabled} == {"network"}
    without = {each.kind.name for each in MISCHIEF if each.kind.group == "network" and not each.cabled}
    assert without == {"slow to workers", "silent to workers"}


async def test_without_cables_a_proxy_is_slow_or_silent_and_heals(testbed: ChaosStage) -> None:
    async with EmulatedEngine(EngineSettings()) as engine, TcpProxy(("127.0.0.1", engine.port)) as proxy:
        target = testbed.engines["e2"]
        target.port, target.proxy = engine.port, proxy
        assert target.worker_id == f"127.0.0.1:{proxy.port}"
        async with injector("slow to workers").strike(testbed, "r1"):
            assert proxy.delay_s > 0
        assert proxy.delay_s == 0
        async with injector("silent to workers").strike(testbed, "r1"):
            with pytest.raises(httpx.TimeoutException):
                await testbed.control.get(f"{target.worker_url}/health", timeout=0.2)
        assert (await testbed.control.get(f"{target.worker_url}/health")).status_code == 200


@pytest.mark.parametrize("name", ENGINE_FAULTS)
async def test_a_fault_of_an_engine_is_armed_and_ends(name: str, testbed: ChaosStage) -> None:
    async with EmulatedEngine(EngineSettings()) as engine:
        target = injector(name).kind.targets[0]
        testbed.engines[target].port = engine.port
        with contextlib.suppress(KeyError):
            async with injector(name).strike(testbed, target):
                assert engine.faults.armed or engine.faults.unhealthy
                raise KeyError
        assert not engine.faults.armed
        assert not engine.faults.unhealthy


@pytest.mark.parametrize("name", ["keys file is rubbish", "keys file gone", "keys file unreadable"])
async def test_a_keys_file_is_whole_again(name: str, testbed: ChaosStage) -> None:
    testbed.write_keys()
    good = testbed.keys_file.read_text()
    with contextlib.suppress(KeyError):
        async with injector(name).strike(testbed, ALL):
            with pytest.raises((OSError, ValueError)):
                json.loads(testbed.keys_file.read_text())
            raise KeyError
    assert testbed.keys_file.read_text() == good


class Sleeper:
    """A process in the place of a gateway."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.pids = [process.pid]
        self.ready = True
        self.told: list[int] = []

    def signalled(self, number: signal.Signals) -> None:
        self.told.append(number)


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    with subprocess.Popen((sys.executable, "-c", "input()"), stdin=subprocess.PIPE) as process:
        yield Sleeper(process)
        process.communicate(b"\n")


async def test_a_full_disk_is_a_limit_that_is_lifted_again(testbed: ChaosStage, sleeper: Sleeper) -> None:
    testbed.gateways["r1"] = sleeper  # type: ignore[assignment]
    (pid,) = sleeper.pids
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    async with injector("disk full").strike(testbed, "r1"):
        assert resource.prlimit(pid, resource.RLIMIT_FSIZE)[0] == 1
    assert resource.prlimit(pid, resource.RLIMIT_FSIZE) == before


async def test_clocks_step_back_and_who_was_stopped_goes_on(testbed: ChaosStage, sleeper: Sleeper) -> None:
    testbed.gateways["r1"] = sleeper  # type: ignore[assignment]
    async with injector("clock a minute ahead").strike(testbed, "r1"):
        assert sleeper.told == [signal.SIGUSR1]
    async with injector("replica stopped").strike(testbed, "r1"):
        assert not sleeper.ready
    assert sleeper.told == [signal.SIGUSR1, signal.SIGUSR2, signal.SIGSTOP, signal.SIGCONT]
    assert sleeper.ready
