"""The admin API with all its routes; the test writes what workers answer."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
from fakes.console import MadeUpFleet
from fakes.gateway import Bench
from fakes.queue_ports import queue_ports

from policies import DecodeFit, Offload, Offloading, OffloadRules
from router.admin import AdminPorts, LinkPorts, OffloadPorts, SettingsPorts, make_api
from router.console import EventStream, Pulse
from router.fleet import LocalWorker, RolePlanner
from router.live_settings import LiveSettings
from router.metrics import Metrics
from router.settings import OffloadSettings, Settings
from router.shared import LogStatus, Vitals
from router.sources import Loaded
from router.tenants import Door, KeysWatch, Limiter

WELL = LogStatus(
    connected=True,
    degraded_reason=None,
    lag_s=0.0,
    snapshot_age_s=1.0,
    buffered_ops=0,
    dropped_ops=0,
    skipped_ops={},
    replicas=("r1",),
    ready=True,
    warming=None,
)


class Setup:
    """An API before a gateway that nobody sends requests; the test writes the workers' answers."""

    def __init__(
        self,
        *,
        admin_key: bytes | None = None,
        keys: KeysWatch | None = None,
        limiter: Limiter | None = None,
    ) -> None:
        self.bench = Bench(workers=0)
        self.time, self.shared, self.registry = self.bench.time, self.bench.shared, self.bench.registry
        self.status = WELL
        self.shutting_down = False
        self.vitals: dict[str, Vitals | None] = {}
        self.degraded: tuple[str, ...] = ()
        self.hits: dict[str, tuple[int, int]] = {}
        self.asked: list[str] = []
        self.answer: Callable[[httpx.Request], Any] = lambda _: httpx.Response(200)
        self.workers_client = httpx.AsyncClient(transport=httpx.MockTransport(self._handle))
        self.live = LiveSettings(
            Loaded(Settings(), {}),
            self.shared.fleet.overrides,
            self.bench.core.log,
            parts={},
        )
        fleet = MadeUpFleet(0)
        self.ports = AdminPorts(
            version="1.2.3",
            replica="r1",
            fleet=self.shared.fleet,
            registry=self.registry,
            publish=self.shared.publish,
            now_us=self.time.clock.now_us,
            log_status=lambda: self.status,
            request_id_of=lambda headers: dict(headers).get(b"x-request-id", b"made"),
            door=Door(
                admin_key=admin_key,
                tenant_header=b"x-tenant-id",
                keys=None if keys is None else keys.keyring,
            ),
            keys=keys,
            metrics=Metrics("1.2.3"),
            client=self.workers_client,
            shutting_down=lambda: self.shutting_down,
            queue=queue_ports(self.shared, self.registry, self.time),
            links=LinkPorts(self.shared.fleet.links, lambda _, __: "abundant", self.time.clock.now_us),
            offload=OffloadPorts(
                Offloading(
                    self.shared.fleet,
                    Offload(self.shared.fleet.links, OffloadRules(threshold_tokens=7)),
                    replica="r1",
                ),
                OffloadSettings,
                (),
                self.time.clock.now_us,
            ),
            now_unix_s=lambda: 1e9,
            limiter=limiter,
            replicas_vitals=self._replicas_vitals,
            degraded=lambda: self.degraded,
            hits=lambda worker_id: self.hits.get(worker_id, (0, 0)),
            roles=RolePlanner(
                self.bench.core,
                self.workers_client,
                decode_fit=lambda _: DecodeFit(),
            ),
            settings=SettingsPorts("r1", self.live, lambda: self.status),
            gateway=self.bench.gateway,
            body_bytes_max=1 << 20,
            console=EventStream(fleet, Pulse(fleet), lambda: self.shutting_down),
        )
        self.api = make_api(self.ports)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.api), base_url="http://localhost")

    async def _replicas_vitals(self) -> dict[str, Vitals | None]:
        return self.vitals

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(f"{request.method} {request.url.host}{request.url.path}")
        answer = self.answer(request)
        return await answer if asyncio.iscoroutine(answer) else answer  # type: ignore[no-any-return]

    def add(self, *names: str) -> list[LocalWorker]:
        """Add healthy workers."""
        locals_ = []
        for name in names:
            local = self.registry.get(self.registry.add(f"http://{name}"))
            assert local is not None
            self.registry.probed(local, ok=True, refused=False, detail="as told")
            locals_.append(local)
        return locals_


def code(answer: httpx.Response) -> str:
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return str(error["code"])


def unreachable(request: httpx.Request) -> httpx.Response:
    """An answer of a worker that nobody reaches."""
    raise httpx.ConnectError("refused")
