"""Every fault of a `ChaosStage`: each kind strikes on entering and mends on leaving.

    group     what                                              what clients may see of it
    worker    killed, hung, failing, cut, slow, wrong model     the end of an answer that had begun there
    pair      KV that is lost or late on its way                nothing
    replica   killed, stopped, rolled, one process of two       those at that replica lose their connection
    redis     killed, paused, emptied, slow, full, stuck        nothing
    network   slow, lossy, narrow, silent cables                nothing
    host      clocks that step, disks that are full, bad files  nothing
    client    a thousand that stall, all leave at once          nothing, but who left
    admin     workers drained, removed; settings changed        nothing

`Blame` is the allowed effect on clients; any other is a fault of the gateway.
"""

import asyncio
import contextlib
import resource
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from redis.exceptions import RedisError

from loadtest.chaos.cable import Rule
from loadtest.chaos.schedule import FaultKind
from loadtest.chaos.testbed import (
    ADMIN_KEY,
    DECODE,
    HAMPERED,
    PLAIN,
    PREFILL,
    REPLICAS,
    SHARING,
    WRONG_MODEL,
    ChaosStage,
)
from loadtest.chaos.valkey import ValkeyServer

STALLED_CLIENTS = 1000
STALLED_PAGES = 20
REDIS_DELAY_S = 0.15
WORKER_DELAY_S = 0.1
LOSS_RATIO = 0.1
REDIS_BYTES_PER_S = 150_000.0
WORKER_BYTES_PER_S = 400_000.0
SLOW_S = 0.5
STALL_S = 2.0
BUSY_SCRIPT = "local n = 0 while true do n = n + 1 end"

LINK_SLOW_RATIO = 0.1

ALL = "all"
"""Target of what hits no one in particular."""


class Blame(StrEnum):
    """Allowed effect of a fault on clients."""

    NOBODY = "nobody"
    """Nothing at all."""

    WORKER = "worker"
    """An answer that had begun ends with an error event, if it came from the target."""

    REPLICA = "replica"
    """Those at that replica lose their connection."""


Striking = Callable[[ChaosStage, str], AbstractAsyncContextManager[None]]


@dataclass(frozen=True, slots=True)
class FaultInjector:
    """One kind of fault, by the name that a schedule uses.

    Attributes:
        strike: Strikes on entering, mends on leaving.
        blame: Allowed effect on clients.
        cabled: It needs cables.
    """

    kind: FaultKind
    strike: Striking
    blame: Blame = Blame.NOBODY
    cabled: bool = False


# Workers


@asynccontextmanager
async def _worker_killed(testbed: ChaosStage, target: str) -> AsyncIterator[None]:
    await testbed.engines[target].end()
    try:
        yield
    finally:
        await testbed.engines[target].start()


@asynccontextmanager
async def _worker_restarted(testbed: ChaosStage, target: str) -> AsyncIterator[None]:
    await testbed.engines[target].end()
    await testbed.engines[target].start()
    yield


@asynccontextmanager
async def _worker_hung(testbed: ChaosStage, target: str) -> AsyncIterator[None]:
    testbed.engines[target].signalled(signal.SIGSTOP)
    try:
        yield
    finally:
        testbed.engines[target].signalled(signal.SIGCONT)


@asynccontextmanager
async def _wrong_model(testbed: ChaosStage, target: str) -> AsyncIterator[None]:
    await testbed.engines[target].end()
    await testbed.engines[target].start(WRONG_MODEL)
    try:
        yield
    finally:
        await testbed.engines[target].end()
        await testbed.engines[target].start()


def _engine_fault(**fault: Any) -> Striking:
    """A fault of the emulator (`loadtest.engine.faults`)."""
    return _posted(lambda testbed, target: testbed.engines[target].url, fault)


def _link_fault(**fault: Any) -> Striking:
    """A fault of the link between sites (`loadtest.engine.link`)."""
    return _posted(lambda testbed, _: testbed.link_url, fault)


def _posted(url_of: Callable[[ChaosStage, str], str], fault: Mapping[str, Any]) -> Striking:
    """A fault that a process is asked for, and asked to end."""

    @asynccontextmanager
    async def strike(testbed: ChaosStage, target: str) -> AsyncIterator[None]:
        url = f"{url_of(testbed, target)}/_fault"
        (await testbed.control.post(url, json=fault)).raise_for_status()
        try:
            yield
        finally:
            (await testbed.control.delete(url)).raise_for_status()

    return strike


@asynccontextmanager
async def _cache_flushed(testbed: ChaosStage, target: str) -> AsyncIterator[None]:
    engine = testbed.engines[target]
    route = "reset_prefix_cache" if engine.settings.dialect == "vllm" else "flush_cache"
    await testbed.control.post(
        f"{engine.url}/{route}"
    )  # a SGLang engine that is busy says 400, and that is that
    yield


# Replicas


@asynccontextmanager
async def _replica_killed(testbed: ChaosStage, target: str) -> AsyncIterator[None]:
    await testbed.gateways[target].kill()
    try:
        yield
    finally:
        await testbed.gateways[target].start()


@asynccontextmanager
async def _replica_stopped(testbed: ChaosStage, target: str) -> AsyncIterator[None]:
    gateway = testbed.gateways[target]
    gateway.ready = False
    gateway.signalled(signal.SIGSTOP)
    try:
        yield
    finally:
        gateway.signalled(signal.SIGCONT)
        gateway.ready = True


@asynccontextmanager
async def _replica_rolled(testbed: ChaosStage, target: str) -> AsyncIterator[None]:
    await testbed.gateways[target].terminate()
    try:
        yield
    finally:
        await testbed.gateways[target].start()


@asynccontextmanager
async def _process_killed(testbed: ChaosStage, target: str) -> AsyncIterator[None]:
    """One of the two processes on a port; their supervisor starts another one."""
    await testbed.gateways[target].kill_process()
    yield


# Valkey


@asynccontextmanager
async def _primary_killed(testbed: ChaosStage, _: str) -> AsyncIterator[None]:
    server = await testbed.primary()
    await server.kill()
    try:
        yield
    finally:
        await server.start()


@asynccontextmanager
async def _primary_emptied(testbed: ChaosStage, _: str) -> AsyncIterator[None]:
    """It is back before the sentinels miss it, with nothing, and its replica follows it into that."""
    await (await testbed.primary()).restart(empty=True)
    yield


@asynccontextmanager
async def _primary_paused(testbed: ChaosStage, _: str) -> AsyncIterator[None]:
    server = await testbed.primary()
    server.pause()
    try:
        yield
    finally:
        server.resume()


@asynccontextmanager
async def _flushed(testbed: ChaosStage, _: str) -> AsyncIterator[None]:
    await (await testbed.primary()).command("FLUSHALL")
    yield


@asynccontextmanager
async def _clients_paused(testbed: ChaosStage, _: str) -> AsyncIterator[None]:
    server = await testbed.primary()
    await server.command("CLIENT", "PAUSE", 60_000, "WRITE")
    try:
        yield
    finally:
        await server.command("CLIENT", "UNPAUSE")


@asynccontextmanager
async def _out_of_memory(testbed: ChaosStage, _: str) -> AsyncIterator[None]:
    await (await testbed.primary()).configure(maxmemory=1)
    try:
        yield
    finally:
        await _everywhere(testbed, lambda server: server.configure(maxmemory=0))


@asynccontextmanager
async def _script_stuck(testbed: ChaosStage, _: str) -> AsyncIterator[None]:
    """It answers BUSY to all clients; a sentinel may kill the script before we do."""
    server = await testbed.primary()
    stuck = asyncio.create_task(server.command("EVAL", BUSY_SCRIPT, 0), name="busy-script")
    try:
        yield
    finally:
        with contextlib.suppress(RedisError, OSError):
            await server.command("SCRIPT", "KILL")
        stuck.cancel()
        await asyncio.gather(stuck, return_exceptions=True)


@asynccontextmanager
async def _sentinels_killed(testbed: ChaosStage, _: str) -> AsyncIterator[None]:
    for sentinel in testbed.sentinels:
        await sentinel.kill()
    try:
        yield
    finally:
        for sentinel in testbed.sentinels:
            await sentinel.start()


async def _everywhere(testbed: ChaosStage, mend: Callable[[ValkeyServer], Any]) -> None:
    for server in testbed.servers:
        if server.running:
            await mend(server)


# The network


def _redis_cable(**rule: float) -> Striking:
    @asynccontextmanager
    async def strike(testbed: ChaosStage, target: str) -> AsyncIterator[None]:
        async with _ruled(testbed, target, Rule(testbed.redis_ports, **rule)):
            yield

    return strike


def _worker_cable(**rule: float) -> Striking:
    """Something between one replica and half of the plain workers."""

    @asynccontextmanager
    async def strike(testbed: ChaosStage, target: str) -> AsyncIterator[None]:
        ports = tuple(testbed.engines[name].port for name in HAMPERED)
        async with _ruled(testbed, target, Rule(ports, **rule)):
            yield

    return strike


def _client_cable(**rule: float) -> Striking:
    @asynccontextmanager
    async def strike(testbed: ChaosStage, target: str) -> AsyncIterator[None]:
        async with _ruled(testbed, target, Rule((testbed.gateways[target].port,), **rule)):
            yield

    return strike


@asynccontextmanager
async def _ruled(testbed: ChaosStage, target: str, rule: Rule) -> AsyncIterator[None]:
    await testbed.hamper(target, rule)
    try:
        yield
    finally:
        await testbed.hamper(target, Rule())


# Hosts


def _clock(first: signal.Signals, then: signal.Signals) -> Striking:
    @asynccontextmanager
    async def strike(testbed: ChaosStage, target: str) -> AsyncIterator[None]:
        testbed.gateways[target].signalled(first)
        try:
            yield
        finally:
            testbed.gateways[target].signalled(then)

    return strike


@asynccontextmanager
async def _disk_full(testbed: ChaosStage, target: str) -> AsyncIterator[None]:
    """No file of its processes may grow any more: log and request trace fail."""
    pids = testbed.gateways[target].pids
    before = [resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in pids]
    for pid, (_, hard) in zip(pids, before, strict=True):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, hard))
    try:
        yield
    finally:
        for pid, limits in zip(pids, before, strict=True):
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)


def _keys_file(damage: Callable[[ChaosStage], None]) -> Striking:
    @asynccontextmanager
    async def strike(testbed: ChaosStage, _: str) -> AsyncIterator[None]:
        damage(testbed)
        try:
            yield
        finally:
            if testbed.keys_file.is_dir():
                testbed.keys_file.rmdir()
            testbed.write_keys()

    return strike


def _rubbish(testbed: ChaosStage) -> None:
    testbed.keys_file.write_bytes(b"\x00\xff{tenants: [" * 50)


def _gone(testbed: ChaosStage) -> None:
    testbed.keys_file.unlink()


def _unreadable(testbed: ChaosStage) -> None:
    """Put a folder in place of the keys file: no user can read it as a file, not even root."""
    testbed.keys_file.unlink()
    testbed.keys_file.mkdir()


# Clients


@asynccontextmanager
async def _stalling_clients(testbed: ChaosStage, target: str) -> AsyncIterator[None]:
    """They connect, send half of a head, and nothing more."""
    gateway = testbed.gateways[target]
    half = b"POST /v1/chat/completions HTTP/1.1\r\nhost: chaos\r\ncontent-le"
    writers: list[asyncio.StreamWriter] = []
    try:
        for _ in range(STALLED_CLIENTS):
            _, writer = await asyncio.open_connection(gateway.host, gateway.port)
            writers.append(writer)
            writer.write(half)
        yield
    finally:
        for writer in writers:
            writer.transport.abort()


@asynccontextmanager
async def _stalling_pages(testbed: ChaosStage, target: str) -> AsyncIterator[None]:
    """Pages of the console that ask for everything that happens, and read none of it."""
    gateway = testbed.gateways[target]
    head = f"GET /events HTTP/1.1\r\nhost: chaos\r\nauthorization: Bearer {ADMIN_KEY}\r\n\r\n".encode()
    writers: list[asyncio.StreamWriter] = []
    try:
        for _ in range(STALLED_PAGES):
            _, writer = await asyncio.open_connection(gateway.host, gateway.port, limit=1024)
            writers.append(writer)
            writer.write(head)
        yield
    finally:
        for writer in writers:
            writer.transport.abort()


@asynccontextmanager
async def _all_leave(testbed: ChaosStage, _: str) -> AsyncIterator[None]:
    """All waiting clients leave in the same moment."""
    testbed.leave()
    yield


# Operators


@asynccontextmanager
async def _drained(testbed: ChaosStage, target: str) -> AsyncIterator[None]:
    path = f"/workers/{testbed.engines[target].worker_id}"
    (await testbed.administer("PUT", path, {"draining": True})).raise_for_status()
    try:
        yield
    finally:
        (await testbed.administer("PUT", path, {"draining": False})).raise_for_status()


@asynccontextmanager
async def _forgotten(testbed: ChaosStage, target: str) -> AsyncIterator[None]:
    engine = testbed.engines[target]
    (await testbed.administer("DELETE", f"/workers/{engine.worker_id}")).raise_for_status()
    try:
        yield
    finally:
        (await testbed.administer("POST", "/workers", {"url": engine.worker_url})).raise_for_status()


def _settings_changed(values: dict[str, Any]) -> Striking:
    """Settings that all replicas go by until they are told to go by their own again."""

    @asynccontextmanager
    async def strike(testbed: ChaosStage, _: str) -> AsyncIterator[None]:
        (await testbed.administer("PATCH", "/settings", {"values": values})).raise_for_status()
        try:
            yield
        finally:
            own = {"values": dict.fromkeys(values)}
            (await testbed.administer("PATCH", "/settings", own)).raise_for_status()

    return strike


ALONE = tuple(name for name in REPLICAS if name != SHARING)
"""Replicas that are one process."""

PROXIED = ("slow", "silent")
"""Faults that a proxy can make, too."""

ENGINES = (*PLAIN, *PREFILL, *DECODE)
AT_ONCE = (1.0, 1.0)


def _injector(
    group: str,
    name: str,
    strike: Striking,
    targets: Sequence[str],
    blame: Blame = Blame.NOBODY,
    *,
    lasts_s: tuple[float, float] = (3.0, 7.0),
    cabled: bool = False,
) -> FaultInjector:
    return FaultInjector(FaultKind(name, group, targets, lasts_s), strike, blame, cabled)


MISCHIEF: tuple[FaultInjector, ...] = (
    _injector("worker", "worker killed", _worker_killed, ENGINES, Blame.WORKER),
    _injector("worker", "worker restarted", _worker_restarted, ENGINES, Blame.WORKER, lasts_s=AT_ONCE),
    _injector("worker", "worker hung", _worker_hung, ENGINES, Blame.WORKER),
    _injector("worker", "worker has another model", _wrong_model, PLAIN, Blame.WORKER),
    _injector("worker", "worker answers 500", _engine_fault(kind="error"), ENGINES),
    _injector("worker", "worker answers 503", _engine_fault(kind="error", status=503), ENGINES),
    _injector("worker", "worker resets", _engine_fault(kind="reset"), ENGINES),
    _injector("worker", "worker talks rubbish", _engine_fault(kind="garbage"), ENGINES),
    _injector(
        "worker",
        "worker cuts streams",
        _engine_fault(kind="reset", after_chunks=2),
        (*PLAIN, *DECODE),
        Blame.WORKER,
    ),
    _injector(
        "worker",
        "worker truncates",
        _engine_fault(kind="close", after_chunks=3),
        (*PLAIN, *DECODE),
        Blame.WORKER,
    ),
    _injector("worker", "worker slow", _engine_fault(kind="slow", seconds=SLOW_S), ENGINES),
    _injector(
        "worker",
        "worker stalls streams",
        _engine_fault(kind="stall", after_chunks=2, seconds=STALL_S),
        (*PLAIN, *DECODE),
    ),
    _injector("worker", "worker unhealthy", _engine_fault(kind="unhealthy"), ENGINES),
    _injector("worker", "cache flushed", _cache_flushed, PLAIN, lasts_s=AT_ONCE),
    _injector("pair", "KV late", _engine_fault(kind="stall_transfer", seconds=STALL_S), PREFILL),
    _injector("pair", "KV lost", _engine_fault(kind="fail_transfer"), PREFILL),
    _injector("replica", "replica killed", _replica_killed, REPLICAS, Blame.REPLICA),
    _injector("replica", "replica stopped", _replica_stopped, REPLICAS, lasts_s=(1.0, 8.0)),
    _injector("replica", "replica rolled", _replica_rolled, REPLICAS, lasts_s=AT_ONCE),
    _injector("replica", "process of two killed", _process_killed, (SHARING,), Blame.REPLICA),
    _injector("redis", "Valkey killed", _primary_killed, (ALL,)),
    _injector("redis", "Valkey paused", _primary_paused, (ALL,), lasts_s=(0.3, 6.0)),
    _injector("redis", "Valkey restarted empty", _primary_emptied, (ALL,), lasts_s=AT_ONCE),
    _injector("redis", "Valkey flushed", _flushed, (ALL,), lasts_s=AT_ONCE),
    _injector("redis", "Valkey takes no writes", _clients_paused, (ALL,)),
    _injector("redis", "Valkey out of memory", _out_of_memory, (ALL,)),
    _injector("redis", "Valkey stuck in a script", _script_stuck, (ALL,)),
    _injector("redis", "sentinels killed", _sentinels_killed, (ALL,)),
    *(
        _injector("network", f"{name} to Valkey", _redis_cable(**rule), REPLICAS, cabled=True)
        for name, rule in (
            ("slow", {"delay_s": REDIS_DELAY_S}),
            ("lossy", {"loss_ratio": LOSS_RATIO}),
            ("narrow", {"bytes_per_s": REDIS_BYTES_PER_S}),
            ("silent", {"loss_ratio": 1.0}),
        )
    ),
    *(
        _injector(
            "network", f"{name} to workers", _worker_cable(**rule), REPLICAS, cabled=name not in PROXIED
        )
        for name, rule in (
            ("slow", {"delay_s": WORKER_DELAY_S}),
            ("lossy", {"loss_ratio": LOSS_RATIO}),
            ("narrow", {"bytes_per_s": WORKER_BYTES_PER_S}),
            ("silent", {"loss_ratio": 1.0}),
        )
    ),
    _injector(
        "network",
        "lossy to clients",
        _client_cable(loss_ratio=LOSS_RATIO, delay_s=0.02),
        REPLICAS,
        cabled=True,
    ),
    _injector("host", "clock a minute ahead", _clock(signal.SIGUSR1, signal.SIGUSR2), ALONE),
    _injector("host", "clock a minute behind", _clock(signal.SIGUSR2, signal.SIGUSR1), ALONE),
    _injector("host", "disk full", _disk_full, REPLICAS),
    _injector("host", "keys file is rubbish", _keys_file(_rubbish), (ALL,)),
    _injector("host", "keys file gone", _keys_file(_gone), (ALL,)),
    _injector("host", "keys file unreadable", _keys_file(_unreadable), (ALL,)),
    _injector("client", "clients stall", _stalling_clients, REPLICAS),
    _injector("client", "console pages stall", _stalling_pages, REPLICAS),
    _injector("client", "all clients leave", _all_leave, (ALL,), lasts_s=AT_ONCE),
    _injector("admin", "worker drained", _drained, PLAIN),
    _injector("admin", "worker removed", _forgotten, PLAIN),
    _injector("admin", "policy switched", _settings_changed({"placement.policy": "min_ttft"}), (ALL,)),
    _injector("admin", "queue switched off", _settings_changed({"queue.disable_queue": True}), (ALL,)),
)
"""All kinds, in the order that a seed draws from."""

ON_LINKS = (
    _injector("link", "link slow", _link_fault(kind="slow", ratio=LINK_SLOW_RATIO), ("link",)),
    _injector("link", "link dead", _link_fault(kind="dead"), ("link",)),
)
"""Kinds for a troupe with a link, which the campaign's has not."""

BY_NAME = {each.kind.name: each for each in (*MISCHIEF, *ON_LINKS)}

GROUPS = tuple(dict.fromkeys(each.kind.group for each in MISCHIEF))
