"""Two sites with a link between them, as processes: what `loadtest.chaos.prefill_decode` lets fail.

    dc1   prefill p1 p2, decode d1 d2, replicas r1 r2, a Valkey
    dc2   prefill far1 far2, faster; their KV leaves over a shaped link (`loadtest.engine.link`)

Each is a process of its own, so that each can be killed by itself; a worker that begins another life has the
ports of the one before, as an orchestrator gives it a name.
"""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import httpx

from loadtest.chaos.replica import Replica, logged_errors
from loadtest.chaos.valkey import ValkeyServer
from loadtest.engine import EngineSettings
from loadtest.engine.profiles import PROFILES
from loadtest.processes import Child, free_port
from loadtest.scenario import engine_flags
from loadtest.workload import MODEL

LOCAL = EngineSettings(
    models=(MODEL,), prefill_tokens_per_s=6_000, prefill_base_ms=5, tpot_ms=5, chunk_tokens=4096
)
REMOTE = replace(LOCAL, prefill_tokens_per_s=15_000.0)
"""Two and a half times as fast: about what an H200 is to an H20 (PrfaaS, arXiv:2604.15039, table 6)."""

KV_TOKEN_BYTES = PROFILES["dense-70b"].shape.token_bytes
"""Of the model that an engine without a profile emulates."""

SITE, FAR = "dc1", "dc2"
LINK = f"{FAR}>{SITE}"
SLOW_RATIO = 0.1
LEASE_S = 5
"""How long vLLM keeps KV that nobody fetches: shorter than by default, so that a run can see its end."""

_CLASSES = {SITE: "h20", FAR: "h200"}
"""Prices are learnt for each class."""

_CONNECTORS = {"nixl": "NixlConnector", "mooncake": "MooncakeConnector"}


@dataclass(frozen=True, slots=True)
class Sites:
    """What stands where.

    Attributes:
        protocol: How the engines hand over.
        gbps: Capacity of the link, in Gbit/s.
        rtt_ms: Its round trip.
        cap_ratio: What of it KV may take in any second.
        flags: More flags of ``cacheway serve``.
    """

    protocol: Literal["sglang", "nixl", "mooncake"] = "sglang"
    gbps: float = 50.0
    rtt_ms: float = 10.0
    cap_ratio: float = 0.85
    flags: Sequence[str] = ()

    @property
    def cap_bytes_per_s(self) -> float:
        """What KV may take of the link."""
        return self.cap_ratio * self.gbps * 1e9 / 8


class Worker:
    """One engine, with the same ports in all its lives."""

    def __init__(self, name: str, role: str, site: str, directory: Path) -> None:
        self.name = name
        self.role = role
        self.site = site
        self.lives = 0
        self.side_port = free_port()
        self._port = free_port()
        self.arguments: Sequence[str] = ()
        self._directory = directory
        self._child: Child | None = None

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self._port}"

    def line(self, protocol: str) -> str:
        """What ``--prefill`` or ``--decode`` says of it."""
        port = f" {self.side_port}" if self.role == "prefill" else ""
        return f"{self.url}{port} site={self.site} handover={protocol} worker_class={_CLASSES[self.site]}"

    async def start(self) -> None:
        """Begin a life."""
        self.lives += 1
        arguments = ["engine", "--port", str(self._port), *self.arguments]
        self._child = Child(f"{self.name}-{self.lives}", arguments, self._directory)
        await self._child.__aenter__()
        await self._child.wait_for_line("cacheway engine ready:")

    async def kill(self) -> None:
        """End this one."""
        assert self._child is not None
        await self._child.kill()

    async def __aenter__(self) -> "Worker":
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._child is not None
        await self._child.__aexit__(None, None, None)


class TwoSites:
    """The processes.

    Args:
        sites: What stands where.
        stack: Ends them.

    Attributes:
        workers: By name.
        replicas: Those that live.
        link_url: The link's API.
        stats: What each engine said last, by name and life.
    """

    def __init__(self, sites: Sites, stack: contextlib.AsyncExitStack) -> None:
        self._sites = sites
        self._stack = stack
        self._directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cw-pd-")))
        self.workers: dict[str, Worker] = {}
        self.replicas: list[Replica] = []
        self.link_url = ""
        self._replica_children: list[Child] = []
        self._config = self._directory / "config.yaml"
        self.control = httpx.AsyncClient(trust_env=False, timeout=10.0)
        self.stats: dict[tuple[str, int], Mapping[str, Any]] = {}

    async def start(self) -> None:
        """Start everything and wait until all replicas are warm."""
        sites, stack = self._sites, self._stack
        await stack.enter_async_context(self.control)
        valkey = await stack.enter_async_context(ValkeyServer())
        flags = ["--gbps", str(sites.gbps), "--rtt-ms", str(sites.rtt_ms)]
        link = await stack.enter_async_context(
            Child("link", flags, self._directory, module="loadtest.engine.link")
        )
        self.link_url = (await link.wait_for_line("link ready:")).rpartition(" ")[2]
        for name, role, site in (
            *((name, "prefill", SITE) for name in ("p1", "p2")),
            *((name, "decode", SITE) for name in ("d1", "d2")),
            *((name, "prefill", FAR) for name in ("far1", "far2")),
        ):
            worker = self.workers[name] = Worker(name, role, site, self._directory)
            worker.arguments = self._engine_flags(worker)
        await asyncio.gather(*map(stack.enter_async_context, self.workers.values()))
        self._config.write_text(json.dumps(self._settings()))
        names = ("r1", "r2")
        self.replicas = list(await asyncio.gather(*(self._replica(name, valkey.url) for name in names)))

    def _engine_flags(self, worker: Worker) -> list[str]:
        sites = self._sites
        engine = LOCAL if worker.site == SITE else REMOTE
        side_port = str(worker.side_port)
        if sites.protocol == "sglang":
            flags = ["--disaggregation-mode", worker.role, "--disaggregation-bootstrap-port", side_port]
        else:
            engine = replace(engine, dialect="vllm")
            role = "kv_producer" if worker.role == "prefill" else "kv_consumer"
            config = {
                "kv_connector": _CONNECTORS[sites.protocol],
                "kv_role": role if sites.protocol == "mooncake" else "kv_both",
                "kv_connector_extra_config": {"kv_lease_duration": LEASE_S},
            }
            flags = ["--kv-transfer-config", json.dumps(config), "--side-channel-port", side_port]
        if worker.site == FAR:
            flags += ["--kv-link", self.link_url]
        return [*engine_flags(engine), "--chunk-tokens", str(engine.chunk_tokens), *flags]

    def _settings(self) -> dict[str, Any]:
        sites = self._sites
        named = {
            role: [worker.line(sites.protocol) for worker in self.workers.values() if worker.role == role]
            for role in ("prefill", "decode")
        }
        link = {"gbps": sites.gbps, "rtt_ms": sites.rtt_ms, "cap_ratio": sites.cap_ratio}
        return {
            "fleet": {**named, "site": SITE, "links": {LINK: link}, "health_check_interval_s": 2.0},
            "placement": {"models": {"*": {"kv_bytes_per_token": KV_TOKEN_BYTES}}},
        }

    async def _replica(self, name: str, redis_url: str) -> Replica:
        port = free_port()
        arguments = ["serve", "--config", str(self._config), "--host", "127.0.0.1", "--port", str(port)]
        arguments += ["--replica-id", name, "--redis-url", redis_url, "--namespace", "prefill-decode"]
        arguments += ["--log-level", "warning", *self._sites.flags]
        child = await self._stack.enter_async_context(Child(name, arguments, self._directory))
        self._replica_children.append(child)
        url = f"http://127.0.0.1:{port}"
        await child.wait_for_answer(f"{url}/readiness")
        client = httpx.AsyncClient(base_url=url, timeout=30.0, trust_env=False)
        replica = Replica(await self._stack.enter_async_context(client))
        await replica.warmed()
        return replica

    async def kill_last_replica(self) -> str:
        """Kill one; its URL."""
        victim = self.replicas.pop()
        await self._replica_children.pop().kill()
        return victim.url

    async def link_fault(self, kind: str, seconds: float) -> None:
        """Slow the link, or let it die, for some time."""
        fault = {"kind": kind, "seconds": seconds} | ({"ratio": SLOW_RATIO} if kind == "slow" else {})
        (await self.control.post(f"{self.link_url}/_fault", json=fault)).raise_for_status()

    async def look(self) -> None:
        """Ask every engine what it has done in this life, if it lives."""
        for worker in self.workers.values():
            with contextlib.suppress(httpx.TransportError):
                answer = await self.control.get(f"{worker.url}/_stats")
                self.stats[worker.name, worker.lives] = answer.json()

    def errors(self) -> list[str]:
        """Lines that replicas logged as errors, whether they live or not."""
        return logged_errors(self._directory.glob("r?.log"))
