"""The admin API with all its routes; the test writes the workers' answers."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
from fakes.console import MadeUpFleet
from fakes.gateway import ALONE_STATUS, Bench

from policies import DecodeFit, FleetRules
from router.admin import AdminParts, make_api
from router.console import EventStream, RateWindow
from router.destinations import Destinations
from router.fleet import LocalWorker
from router.live_settings import LiveSettings
from router.own_policies import OwnPolicies
from router.pairs import RolePlanner
from router.process.kv_events import make_kv_events
from router.proxy import Ending
from router.shared import LogStatus, Vitals
from router.sources import Loaded
from router.tenants import KeysWatch, Limiter

WELL = replace(ALONE_STATUS, snapshot_age_s=1.0)


async def no_vitals() -> dict[str, Vitals | None]:
    return {}


def parts_of(bench: Bench, client: httpx.AsyncClient | None = None, **others: Any) -> AdminParts:
    """The parts of a process around a gateway with fake workers."""
    client = client or httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(200)))
    parts = AdminParts(
        version="1.2.3",
        gateway=bench.gateway,
        own_policies=OwnPolicies(bench.settings.placement),
        live=LiveSettings(Loaded(bench.settings, {}), bench.shared.fleet.overrides, bench.core.log, parts={}),
        client=client,
        pairs=bench.pairs,
        roles=RolePlanner(
            bench.core,
            client,
            decode_fit=lambda _: DecodeFit(),
        ),
        kv_events=make_kv_events(
            bench.settings,
            bench.core,
            client,
            root_of=bench.gateway.reader.hasher.engine_root,
            destinations=Destinations(),
        ),
        discovery=None,
        door=bench.door,
        keys=None,
        tokens=None,
        ending=Ending(),
        vitals=no_vitals,
        degraded=tuple,
        finish_session=bench.sessions.finish,
        now_unix_s=lambda: 1e9,
    )
    return replace(parts, **others)


class Setup:
    """An API before a gateway that gets no requests; the test writes the workers' answers."""

    def __init__(
        self,
        *,
        admin_key: str = "",
        keys: KeysWatch | None = None,
        limiter: Limiter | None = None,
        rules: FleetRules | None = None,
        **sections: dict[str, Any],
    ) -> None:
        sections["server"] = {**sections.get("server", {}), "api_key": admin_key}
        self.bench = Bench(
            workers=0, keys=None if keys is None else keys.keyring, limiter=limiter, rules=rules, **sections
        )
        self.status = WELL
        self.time, self.shared, self.registry = self.bench.time, self.bench.shared, self.bench.registry
        self.vitals: dict[str, Vitals | None] = {}
        self.degraded: tuple[str, ...] = ()
        self.asked: list[str] = []
        self.answer: Callable[[httpx.Request], Any] = lambda _: httpx.Response(200)
        self.workers_client = httpx.AsyncClient(transport=httpx.MockTransport(self._handle))
        self.parts = parts_of(
            self.bench,
            self.workers_client,
            keys=keys,
            vitals=self._replicas_vitals,
            degraded=lambda: self.degraded,
        )
        self.live, self.ending = self.parts.live, self.parts.ending
        fleet = MadeUpFleet(0)
        self.console = EventStream(fleet, RateWindow(fleet), lambda: self.ending.begun)
        self.api = make_api(self.parts, self.console)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.api), base_url="http://localhost")

    @property
    def status(self) -> LogStatus:
        return self.bench.status

    @status.setter
    def status(self, status: LogStatus) -> None:
        self.bench.status = status

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
    """The answer of an unreachable worker."""
    raise httpx.ConnectError("refused")
