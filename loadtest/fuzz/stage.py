"""The processes that are attacked: two replicas that share a Valkey, engines, a hostile worker, pods.

    bystander ──┐          ┌──> engine "calm"        the bystander's own, which no case asks for
    cases ──────┴> replicas┼──> engines "emulated"
                     │  │  └──> hostile worker       in this process, as is the API server
                  Valkey API server

Everything ends with the stage.
"""

import contextlib
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from loadtest.chaos.valkey import ValkeyServer
from loadtest.fuzz.api_server import ApiServer
from loadtest.fuzz.bodies import MODEL
from loadtest.fuzz.worker import HostileWorker
from loadtest.processes import Child, free_port

CALM = "calm"
"""The bystander's model."""

NAMESPACE = "fuzz"
ANSWER_S = 30.0


class Gateway:
    """One replica; ``ports`` of its listeners, ``data`` and ``admin``."""

    def __init__(self, name: str, child: Child, ports: dict[str, int]) -> None:
        self.name = name
        self.child = child
        self.ports = ports
        self.url = f"http://127.0.0.1:{ports['data']}"
        self.client = httpx.AsyncClient(base_url=self.url, timeout=ANSWER_S, trust_env=False)
        self.admin = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{ports['admin']}", timeout=ANSWER_S, trust_env=False
        )
        self._read_bytes = 0

    async def close(self) -> None:
        """Close our connections to it."""
        await self.client.aclose()
        await self.admin.aclose()

    @property
    def resident_bytes(self) -> int:
        """Its memory."""
        pages = int(Path(f"/proc/{self.child.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    @property
    def files(self) -> int:
        """Number of open files."""
        return len(list(Path(f"/proc/{self.child.pid}/fd").iterdir()))

    @property
    def alive(self) -> bool:
        """True if its process exists and has not ended."""
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.child.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        return False

    def new_lines(self) -> list[bytes]:
        """Log lines since the last call."""
        with self.child.log.open("rb") as log:
            log.seek(self._read_bytes)
            data = log.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        return whole.splitlines()

    async def view(self, path: str) -> Any:
        """Return the admin API's answer; `ViewFailed` if there is none."""
        try:
            answer = await self.admin.get(path)
        except httpx.HTTPError as error:
            raise ViewFailed(f"{self.name}: GET {path}: {type(error).__name__} {error}") from error
        if answer.status_code != 200:
            raise ViewFailed(f"{self.name}: GET {path} is {answer.status_code}: {answer.text[:300]}")
        return answer.json()

    async def metric(self, name: str) -> float:
        """Sum of a metric over its labels, 0 if there is none; may raise `ViewFailed`."""
        answer = await self.client.get("/metrics")
        if answer.status_code != 200:
            raise ViewFailed(f"{self.name}: GET /metrics is {answer.status_code}")
        lines = (
            line.rpartition(" ")
            for line in answer.text.splitlines()
            if line.startswith((f"{name} ", name + "{"))
        )
        return sum(float(value) for _, _, value in lines)


class ViewFailed(Exception):
    """A replica does not say how it is."""


class Stage:
    """All processes; an async context manager.

    ``without`` names a missing mend (`loadtest.fuzz.unmended`).
    """

    def __init__(self, folder: Path, without: str = "") -> None:
        self._folder = folder
        self._without = without
        self._stack = contextlib.AsyncExitStack()
        self.valkey = ValkeyServer(port=None)
        self.worker = HostileWorker()
        self.api_server = ApiServer()
        self.gateways: list[Gateway] = []
        self.engine_ids: set[str] = set()

    async def __aenter__(self) -> Self:
        async with self._stack:
            for part in (self.valkey, self.worker, self.api_server):
                await self._stack.enter_async_context(part)
            urls = [*await self._engines(MODEL, 2), *await self._engines(CALM, 1)]
            self.engine_ids = {url.removeprefix("http://") for url in urls}
            kubeconfig = self.api_server.kubeconfig(self._folder)
            for number in range(2):
                await self._gateway(f"gateway-{number}", urls, kubeconfig)
            for gateway in self.gateways:
                await gateway.child.wait_for_answer(f"{gateway.url}/readiness")
            self._stack = self._stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _engines(self, model: str, count: int) -> list[str]:
        urls = []
        for number in range(count):
            port = free_port()
            flags = (
                *("--port", str(port), "--served-model-name", model),
                *("--max-model-len", "20000", "--speed", "50"),
            )
            child = Child(f"engine-{model}-{number}", ["engine", *flags], self._folder)
            await self._stack.enter_async_context(child)
            urls.append(f"http://127.0.0.1:{port}")
            await child.wait_for_answer(f"{urls[-1]}/health")
        return urls

    async def _gateway(self, name: str, urls: list[str], kubeconfig: Path) -> None:
        ports = {"data": free_port(), "admin": free_port()}
        flags = [
            *(
                "serve",
                "--host",
                "127.0.0.1",
                "--port",
                str(ports["data"]),
                "--admin-port",
                str(ports["admin"]),
            ),
            *(
                "--redis-url",
                self.valkey.url,
                "--namespace",
                NAMESPACE,
                "--replica-id",
                name,
                "--worker-urls",
                *urls,
            ),
            *(
                "--snapshot-interval-secs",
                "1",
                "--health-check-interval-secs",
                "0.5",
                "--slow-start-secs",
                "0",
            ),
            *(
                "--engine-metrics-interval-secs",
                "0.2",
                "--shutdown-delay-secs",
                "0",
                "--read-timeout-secs",
                "3",
            ),
            *("--service-discovery", "--selector", "app=engine", "--kubeconfig", str(kubeconfig)),
        ]
        without = ["--without", self._without] if self._without else []
        child = Child(name, [*without, *flags], self._folder, module="loadtest.fuzz.watched")
        await self._stack.enter_async_context(child)
        gateway = Gateway(name, child, ports)
        self._stack.push_async_callback(gateway.close)
        self.gateways.append(gateway)
