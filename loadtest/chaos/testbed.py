"""Processes of a run: gateway replicas, engines, a Valkey, perhaps a link between sites.

A `Troupe` lists them. That of the campaign is `standing`, three gateway replicas and eight engines:

    r1 r2     one process each, behind a cable each (`loadtest.chaos.cable`) if namespaces can be had
    r3        two processes on one port (``--workers 2``), likewise
    e1 to e4  plain engines of one model, two of them SGLang, two vLLM
    p1 p2     SGLang prefill engines of another model, d1 d2 its decode engines
    valkey    a primary, a replica, three sentinels

An engine or replica keeps its name, address and role in all its lives. Engines write down the id of each
request. Nothing outlives its owner (`router.child_process`).
"""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from loadtest.bench.process_tree import rss_bytes, tree_of
from loadtest.chaos.cable import Rule, address
from loadtest.chaos.replica import Replica
from loadtest.chaos.tcp_proxy import TcpProxy
from loadtest.chaos.valkey import SentinelGroup, ValkeyServer
from loadtest.engine import EngineSettings
from loadtest.processes import Child, free_port
from loadtest.scenario import engine_flags
from loadtest.workload import MODEL
from router.tenants.keys import digest_of, new_key

PAIR_MODEL = "chaos-pairs"
WRONG_MODEL = "somebody-elses-model"

SIDE_PORT = "SIDE_PORT"
"""Stands in flags for the port at which other engines come to it."""

PLAIN = ("e1", "e2", "e3", "e4")
PREFILL = ("p1", "p2")
DECODE = ("d1", "d2")
REPLICAS = ("r1", "r2", "r3")
HAMPERED = PLAIN[1:3]
"""Workers on whose way from a replica something goes wrong."""

SHARING = "r3"
"""The replica that is two processes."""

INNER_HOST = "10.77.0.1"
"""Address of engines and Valkey if replicas have namespaces of their own."""

ADMIN_KEY = "chaos-admin"

ERRORS_EXPECTED = frozenset({"keys.refused", "process.ended"})
"""Errors that need an operator: the keys file is damaged, one of two processes was killed."""

HEARTBEAT_TTL_S = 3.0
READY_TIMEOUT_S = 90.0

SERVING_BYTES = 40 << 20
"""A process that serves has the gateway in memory; its watcher and Python's resource tracker have a tenth."""

FLAGS = (
    *("--health-check-interval-secs", "1", "--health-check-timeout-secs", "2"),
    *("--snapshot-interval-secs", "5", "--heartbeat-ttl-secs", str(HEARTBEAT_TTL_S)),
    *("--shutdown-delay-secs", "1", "--slow-start-secs", "3", "--connect-timeout-secs", "2"),
    *("--cb-timeout-duration-secs", "5", "--stream-idle-timeout-secs", "20"),
    *("--first-byte-timeout-secs", "20", "--read-timeout-secs", "20"),
    *("--queue-timeout-secs", "20", "--request-timeout-secs", "45"),
)
"""Production's defaults are for hours, where an act has seconds."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant of the keys file.

    Attributes:
        load: Share of a crowd's requests, in any unit.
        requests_per_minute: 0 for no limit.
    """

    name: str
    load: float = 1.0
    weight: float = 1.0
    requests_per_minute: int = 0


TENANTS = (Tenant("blue"), Tenant("green"))


@dataclass(frozen=True, slots=True)
class Part:
    """One worker of a troupe.

    Attributes:
        flags: More flags of ``cacheway engine``.
        labels: Behind its URL in the gateways' flags, beside ports.
        linked: Its KV leaves over the troupe's link.
    """

    name: str
    role: str
    settings: EngineSettings
    flags: Sequence[str] = ()
    labels: str = ""
    linked: bool = False


@dataclass(frozen=True, slots=True)
class Troupe:
    """Processes of a run, and tenants.

    Attributes:
        replicas: Processes of each gateway replica, by name.
        flags: More flags of ``cacheway serve``.
        settings: More settings of the gateways, as in their file.
        sentinels: Three sentinels watch Valkey, which then has a follower.
        link: Flags of the link between sites; none without one.
        traced: Each replica writes a request trace.
    """

    parts: Sequence[Part]
    replicas: Mapping[str, int]
    tenants: Sequence[Tenant] = TENANTS
    flags: Sequence[str] = ()
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sentinels: bool = False
    link: Sequence[str] = ()
    traced: bool = False


def standing(engine: EngineSettings) -> Troupe:
    """The troupe of the campaign; ``engine`` has the common settings of all engines."""
    vllm = replace(engine, models=(MODEL,), dialect="vllm")
    plain = {name: vllm if name in ("e3", "e4") else replace(engine, models=(MODEL,)) for name in PLAIN}
    paired = replace(engine, models=(PAIR_MODEL,))
    parts = [Part(name, "plain", settings) for name, settings in plain.items()]
    parts += [Part(name, "prefill", paired, disaggregated("prefill")) for name in PREFILL]
    parts += [Part(name, "decode", paired, disaggregated("decode")) for name in DECODE]
    replicas = {name: 2 if name == SHARING else 1 for name in REPLICAS}
    flags = (*FLAGS, "--log-level", "info")
    return Troupe(parts, replicas, flags=flags, sentinels=True, traced=True)


def disaggregated(role: str) -> Sequence[str]:
    """Flags of an SGLang engine that prefills or decodes only."""
    return ("--disaggregation-mode", role, "--disaggregation-bootstrap-port", SIDE_PORT)


@dataclass(slots=True)
class Engine:
    """One worker; ``directory`` holds its log and journal, ``lives`` counts its starts.

    Attributes:
        proxy: Between it and all gateways, where there are no cables.
    """

    part: Part
    host: str
    directory: Path
    port: int = field(default_factory=free_port)
    side_port: int = field(default_factory=free_port)
    lives: int = 0
    child: Child | None = None
    proxy: TcpProxy | None = None
    link_url: str = ""

    @property
    def name(self) -> str:
        """Its name."""
        return self.part.name

    @property
    def role(self) -> str:
        """Its role."""
        return self.part.role

    @property
    def settings(self) -> EngineSettings:
        """Its settings."""
        return self.part.settings

    @property
    def line(self) -> str:
        """Its description in the gateways' flags."""
        port = str(self.side_port) if self.role == "prefill" else ""
        return " ".join(filter(None, (self.worker_url, port, self.part.labels)))

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://{self.host}:{self.port}"

    @property
    def worker_id(self) -> str:
        """Its id at the gateways: their address for it."""
        return f"{self.host}:{self.port if self.proxy is None else self.proxy.port}"

    @property
    def worker_url(self) -> str:
        """Its URL for gateways."""
        return f"http://{self.worker_id}"

    @property
    def journal(self) -> Path:
        """Ids of the requests that came to it."""
        return self.directory / f"{self.name}.journal"

    async def start(self, model: str | None = None) -> None:
        """Begin a life, perhaps with another model."""
        self.lives += 1
        settings = self.settings if model is None else replace(self.settings, models=(model,))
        flags = ["--host", self.host, "--port", str(self.port), "--journal", str(self.journal)]
        flags += [*engine_flags(settings), "--chunk-tokens", str(settings.chunk_tokens)]
        flags += [str(self.side_port) if flag == SIDE_PORT else flag for flag in self.part.flags]
        if self.part.linked:
            flags += ["--kv-link", self.link_url]
        child = Child(f"{self.name}-{self.lives}", ["engine", *flags], self.directory)
        self.child = await child.__aenter__()
        await self.child.wait_for_line("cacheway engine ready:")

    async def end(self) -> None:
        """End this life at once."""
        if self.child is not None:
            await self.child.kill()

    def signalled(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self.child is not None
        os.kill(self.child.pid, number)


@dataclass(slots=True)
class Gateway:
    """One replica.

    Attributes:
        processes: Share its port.
        arguments: Of ``cacheway serve``.
        cable: In front of it; None if it shares our network.
        ready: A balancer would send it requests.
    """

    name: str
    host: str
    directory: Path
    arguments: Sequence[str]
    processes: int = 1
    cable: Child | None = None
    port: int = field(default_factory=free_port)
    lives: int = 0
    child: Child | None = None
    ready: bool = False
    view: Replica = field(init=False)

    def __post_init__(self) -> None:
        headers = {"authorization": f"Bearer {ADMIN_KEY}"}
        self.view = Replica(
            httpx.AsyncClient(base_url=self.url, headers=headers, timeout=10.0, trust_env=False)
        )

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://{self.host}:{self.port}"

    @property
    def control(self) -> Path:
        """Control socket of its cable."""
        return self.directory / f"{self.name}.cable"

    @property
    def pids(self) -> list[int]:
        """Processes: the one that was started and those that serve, without helpers that watch the owner."""
        assert self.child is not None
        first, *others = tree_of(self.child.pid)
        return [first, *(pid for pid in others if rss_bytes(pid) > SERVING_BYTES)]

    async def start(self) -> None:
        """Begin a life, and wait until it is warm."""
        self.lives += 1
        arguments = ["serve", "--host", self.host, "--port", str(self.port), "--replica-id", self.name]
        arguments += ["--workers", str(self.processes), *self.arguments]
        within = () if self.cable is None else ("nsenter", f"--net=/proc/{self.cable.pid}/ns/net")
        name = f"{self.name}-{self.lives}"
        child = Child(name, arguments, self.directory, "loadtest.chaos.stepping", within)
        self.child = await child.__aenter__()
        await self.child.wait_for_answer(f"{self.url}/readiness")
        await self.view.warmed()
        self.ready = True

    async def kill(self) -> None:
        """End this life at once, and that of all its processes."""
        self.ready = False
        if self.child is not None:
            others = self.pids[1:]
            await self.child.kill()
            for pid in others:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    async def terminate(self) -> None:
        """End it as an operator does; clients go elsewhere from now on."""
        self.ready = False
        assert self.child is not None
        await self.child.end(20.0)

    async def kill_process(self) -> None:
        """Kill the youngest of its processes, and wait until its supervisor has started another one."""
        before = set(self.pids)
        os.kill(max(before - {self.pids[0]}), signal.SIGKILL)
        async with asyncio.timeout(READY_TIMEOUT_S):
            while set(self.pids) <= before:  # noqa: ASYNC110 - it is another process's state
                await asyncio.sleep(0.05)

    def signalled(self, number: signal.Signals) -> None:
        """Send all its processes a signal."""
        for pid in self.pids:
            os.kill(pid, number)

    async def rule(self, rule: Rule) -> None:
        """Tell its cable a rule; one without ports ends all."""
        reader, writer = await asyncio.open_unix_connection(self.control)
        fields = {name: getattr(rule, name) for name in Rule.__slots__}
        writer.write(json.dumps(fields).encode() + b"\n")
        await reader.readline()
        writer.close()


class ChaosStage:
    """All processes of a troupe; an async context manager.

    Args:
        cabled: Give replicas namespaces of their own; else `HAMPERED` are behind proxies.
        seed: Seed of the losses of cables.

    Attributes:
        valkey: The shared one, or the group that its sentinels watch.
        link_url: API of the link between sites; empty without one.
        control: Client for engines.
        leave: Lets all waiting clients close their connections; returns their number.
    """

    def __init__(self, directory: Path, troupe: Troupe, *, cabled: bool = False, seed: int = 1) -> None:
        self.directory = directory
        self.troupe = troupe
        self.cabled = cabled
        self.engines: dict[str, Engine] = {}
        self.gateways: dict[str, Gateway] = {}
        host = INNER_HOST if cabled else "127.0.0.1"
        self.valkey = SentinelGroup(host=host) if troupe.sentinels else ValkeyServer(host=host)
        self.link_url = ""
        self.keys = {tenant.name: new_key() for tenant in troupe.tenants}
        self.keys_file = directory / "keys.json"
        self.control = httpx.AsyncClient(trust_env=False, timeout=10.0)
        self.leave: Callable[[], int] = lambda: 0
        self._seed = seed
        self._stack = contextlib.AsyncExitStack()
        self._config = directory / "config.yaml"
        for part in troupe.parts:
            self.engines[part.name] = Engine(part, host, directory)

    @property
    def ready_urls(self) -> dict[str, str]:
        """Base URLs of the replicas that a balancer would send requests to, by name."""
        return {name: gateway.url for name, gateway in self.gateways.items() if gateway.ready}

    @property
    def redis_ports(self) -> tuple[int, ...]:
        """TCP ports of everything that replicas share state through."""
        servers = (*self.servers, *self.sentinels)
        return tuple(server.port for server in servers if server.port is not None)

    @property
    def servers(self) -> Sequence[ValkeyServer]:
        """Those that have the data."""
        return [self.valkey] if isinstance(self.valkey, ValkeyServer) else self.valkey.servers

    @property
    def sentinels(self) -> Sequence[ValkeyServer]:
        """Those that watch them."""
        return [] if isinstance(self.valkey, ValkeyServer) else self.valkey.sentinels

    def headers(self, tenant: str) -> Mapping[str, str]:
        """Headers of a tenant's clients."""
        return {"authorization": f"Bearer {self.keys[tenant]}"}

    def write_keys(self) -> None:
        """Write the keys file as it should be; whole, as an operator does."""
        tenants: dict[str, dict[str, object]] = {}
        for tenant in self.troupe.tenants:
            digest = digest_of(self.keys[tenant.name].encode())
            tenants[tenant.name] = {"keys": [f"sha256:{digest.hex()}"], "weight": tenant.weight}
            if tenant.requests_per_minute:
                tenants[tenant.name]["limits"] = {"requests_per_minute": tenant.requests_per_minute}
        written = self.keys_file.with_suffix(".new")
        written.write_text(json.dumps({"tenants": tenants}))
        written.replace(self.keys_file)

    async def __aenter__(self) -> "ChaosStage":
        async with self._stack:
            self.write_keys()
            self._stack.push_async_callback(self.control.aclose)
            await self._stack.enter_async_context(self.valkey)
            if self.troupe.link:
                link = Child("link", self.troupe.link, self.directory, module="loadtest.engine.link")
                await self._stack.enter_async_context(link)
                self.link_url = (await link.wait_for_line("link ready:")).rpartition(" ")[2]
            for engine in self.engines.values():
                self._stack.push_async_callback(engine.end)
                engine.link_url = self.link_url
                if not self.cabled and engine.name in HAMPERED:
                    proxy = TcpProxy((engine.host, engine.port))
                    engine.proxy = await self._stack.enter_async_context(proxy)
            await asyncio.gather(*(engine.start() for engine in self.engines.values()))
            self._config.write_text(json.dumps(self._settings()))
            for number, (name, processes) in enumerate(self.troupe.replicas.items(), start=1):
                await self._gateway(number, name, processes)
            await asyncio.gather(*(gateway.start() for gateway in self.gateways.values()))
            self._stack = self._stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    def _settings(self) -> dict[str, Any]:
        """The workers, and the troupe's settings."""
        roles = {"worker_urls": "plain", "prefill": "prefill", "decode": "decode"}
        named = {
            setting: [engine.line for engine in self.engines.values() if engine.role == role]
            for setting, role in roles.items()
        }
        settings = dict(self.troupe.settings)
        return settings | {"fleet": {**named, **settings.get("fleet", {})}}

    async def _gateway(self, number: int, name: str, processes: int) -> None:
        host = address(number) if self.cabled else "127.0.0.1"
        arguments = ["--config", str(self._config), "--redis-url", self.valkey.url, "--namespace", "chaos"]
        arguments += ["--tenant-keys-file", str(self.keys_file), "--api-key", ADMIN_KEY, *self.troupe.flags]
        if self.troupe.traced:
            arguments += ["--request-trace", str(self.directory / f"{name}.trace")]
        gateway = Gateway(name, host, self.directory, arguments, processes)
        self.gateways[name] = gateway
        if self.cabled:
            flags = ["--number", str(number), "--control", str(gateway.control)]
            flags += ["--seed", str(self._seed * 10 + number)]
            gateway.cable = Child(f"{name}-cable", flags, self.directory, "loadtest.chaos.cable")
            await self._stack.enter_async_context(gateway.cable)
            await gateway.cable.wait_for_line("cable ready")
        self._stack.push_async_callback(gateway.view.client.aclose)
        self._stack.push_async_callback(gateway.kill)

    async def hamper(self, target: str, rule: Rule) -> None:
        """Let a rule hold for one replica's network, or end all; proxies know delay and silence, for all."""
        if self.cabled:
            await self.gateways[target].rule(rule)
            return
        for engine in self.engines.values():
            if engine.proxy is not None:
                hit = engine.port in rule.ports
                engine.proxy.delay_s = rule.delay_s if hit else 0.0
                await engine.proxy.heal()
                if hit and rule.loss_ratio == 1.0:
                    engine.proxy.blackhole()

    async def primary(self) -> ValkeyServer:
        """The Valkey server that takes writes now."""
        return self.valkey if isinstance(self.valkey, ValkeyServer) else await self.valkey.primary()

    async def administer(self, method: str, path: str, body: Any = None) -> httpx.Response:
        """Ask the first replica that is ready, as an operator."""
        gateway = next(gateway for gateway in self.gateways.values() if gateway.ready)
        return await gateway.view.client.request(method, path, json=body)

    def errors(self) -> list[str]:
        """Errors in replicas' logs that faults do not explain, and broken log lines."""
        lines: list[str] = []
        for log in sorted(self.directory.glob("r?-*.log")):
            if log.stem.endswith("cable"):
                continue
            for line in log.read_text(errors="replace").splitlines():
                with contextlib.suppress(ValueError):
                    fields = json.loads(line)
                    if fields["level"] not in ("error", "critical") or fields["event"] in ERRORS_EXPECTED:
                        continue
                lines.append(f"{log.stem}: {line}")
        return lines
