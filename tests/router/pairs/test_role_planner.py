"""The slow loop in a replica: its leader, its plans, and the turn of a worker."""

import asyncio
import json
import logging
from dataclasses import replace

import httpx
import pytest
from fakes.gateway import FakeShared, VirtualTime, log_port, registry

from policies import (
    Circuit,
    CircuitSet,
    DecodeFit,
    DecodeFitted,
    FleetRules,
    Forget,
    OffloadPlan,
    Op,
    Placed,
    ServiceLevel,
    Started,
    Switched,
)
from policies.disaggregation import TURNING_LABEL, RoleRules
from radix import WHOLE_MAX
from router.fleet import Core
from router.pairs import RolePlanner
from router.pairs.role_planner import LEAD_S, role_of, switch_role


class Setup:
    """Two prefill and six decode workers of SGLang, all convertible, and long prompts."""

    def __init__(
        self, *, mode: str = "apply", replicas: tuple[str, ...] = ("r1",), requests: int = 300
    ) -> None:
        self.time = VirtualTime()
        self.shared = FakeShared(FleetRules())
        self.registry = registry(self.shared, self.time)
        self.client = httpx.AsyncClient(transport=httpx.MockTransport(self._handle))
        self.asked: list[tuple[str, str]] = []
        self.answers: list[httpx.Response] = []
        self.looked_at: list[str] = []
        self.engine_role = "prefill"
        self.connected = True
        self.replicas = replicas
        self.turned: list[str] = []
        self.fit = DecodeFit()
        for number in range(100):
            self.fit.observe(1 + number % 20, 2.0, 101)
        self.planners = [self.planner(replica, mode) for replica in replicas]
        for number in range(8):
            self.add(f"w{number}", "prefill" if number < 2 else "decode")
        for number in range(requests):
            self.place(number)
        self.wait(LEAD_S)

    def planner(self, replica: str, mode: str = "apply") -> RolePlanner:
        planner = RolePlanner(
            Core(
                self.shared.fleet,
                self.registry,
                log_port(
                    self.shared,
                    self.time,
                    replica,
                    lambda: self.replicas,
                    connected=lambda: self.connected,
                ),
            ),
            self.client,
            decode_fit=lambda _: self.fit,
            rules=RoleRules(mode=mode, interval_s=0.001),
            turned=self.turned.append,
            clock=self.time.time,
        )
        planner.leads()
        return planner

    def add(self, name: str, role: str) -> None:
        labels = {"convertible": "true", "max_running_requests": "16"}
        local = self.registry.get(self.registry.add(f"http://{name}", role=role, labels=labels))
        assert local is not None
        local.engine = "sglang"
        for _ in range(2):
            self.registry.probed(local, ok=True, refused=False, detail="")

    def place(self, number: int) -> None:
        now_us = self.time.clock.now_us()
        op = Placed(
            f"q{number}",
            now_us,
            f"w{number % 2}:80",
            "r1",
            4 * 10**6,
            60_000,
            61_000,
            (b"",),
            home_uncached_tokens=60_000,
        )
        self.shared.publish(op)

    def wait(self, seconds: float) -> None:
        self.time.advance(seconds)

    def role(self, worker_id: str) -> tuple[str, bool, dict[str, str]]:
        worker = self.shared.fleet.worker(worker_id)
        assert worker is not None
        labels = {name: value for name, value in worker.labels.items() if name == TURNING_LABEL}
        return worker.role, worker.draining, labels

    def plans(self) -> list[OffloadPlan]:
        return [op for op in self.shared.ops if isinstance(op, OffloadPlan)]

    def _handle(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            self.looked_at.append(request.url.host)
            return httpx.Response(200, json={"internal_states": [{"disaggregation_mode": self.engine_role}]})
        self.asked.append((request.url.host, json.loads(request.content)["new_role"]))
        return self.answers.pop(0) if self.answers else httpx.Response(200, json={"success": True})


async def test_a_worker_drains_its_engine_switches_and_it_serves_in_its_new_role(
    caplog: pytest.LogCaptureFixture,
) -> None:
    setup = Setup()
    (planner,) = setup.planners
    with caplog.at_level(logging.INFO):
        await planner.look()
    assert setup.role("w2:80") == ("decode", True, {TURNING_LABEL: "prefill"})
    assert setup.asked == []
    await planner.look()
    assert setup.asked == [("w2", "prefill")]
    assert setup.role("w2:80") == ("prefill", False, {})
    assert [op.worker for op in setup.shared.said(Forget)] == ["w2:80"]
    assert setup.turned == ["prefill"]
    plan = setup.plans()[0]
    assert plan.roles == {"w2:80": "prefill"}
    (line,) = [record for record in caplog.records if record.message == "roles planned"]
    assert line.__dict__["reason"] == plan.reason
    assert line.__dict__["roles"] == plan.roles
    (turn,) = [record for record in caplog.records if record.__dict__.get("event") == "role.changes"]
    assert (turn.__dict__["worker_id"], turn.__dict__["told"]) == ("w2:80", "drains to prefill")


async def test_nothing_turns_where_roles_are_only_recommended() -> None:
    setup = Setup(mode="recommend")
    for _ in range(3):
        await setup.planners[0].look()
    assert setup.plans()[-1].roles == {"w2:80": "prefill"}
    assert setup.role("w2:80") == ("decode", False, {})


async def test_a_loop_that_was_switched_off_takes_back_what_it_planned_and_who_is_turning() -> None:
    setup = Setup()
    await setup.planners[0].look()
    off = setup.planner("r1", "off")
    setup.wait(LEAD_S)
    for _ in range(3):
        await off.look()
    assert setup.role("w2:80") == ("decode", False, {})
    assert setup.asked == [("w2", "decode")], "it is asked to stay what it is"
    last = setup.plans()[-1]
    assert (last.threshold_tokens, last.prefill, last.roles) == (-1, 0, {})


async def test_a_leader_without_traffic_of_its_own_uses_what_the_others_learned_of_decode() -> None:
    setup = Setup()
    line = setup.fit.line()
    setup.fit = DecodeFit()
    await setup.planners[0].look()
    assert setup.plans()[-1].reason.startswith("nothing is known of decode yet")
    setup.shared.publish(DecodeFitted("default", setup.time.clock.now_us(), "r2", *line))
    setup.wait(1.0)
    await setup.planners[0].look()
    assert setup.plans()[-1].roles == {"w2:80": "prefill"}


async def test_of_several_replicas_one_leads_and_the_next_only_after_a_while() -> None:
    setup = Setup(replicas=("r1", "r2", "r3"))
    for planner in setup.planners:
        await planner.look()
    (plan,) = setup.plans()
    setup.replicas = tuple(name for name in setup.replicas if name != plan.replica)
    for _ in range(2):
        for planner in setup.planners:
            if planner.core.log.replica != plan.replica:
                await planner.look()
        assert len(setup.plans()) == 1
        setup.wait(LEAD_S / 2 - 0.1)
    setup.wait(LEAD_S)
    for planner in setup.planners:
        if planner.core.log.replica != plan.replica:
            await planner.look()
    assert setup.plans()[1].replica in setup.replicas
    assert setup.role("w2:80") == ("prefill", False, {}), "it goes on where the first one stopped"


async def test_who_is_cut_off_from_the_log_does_not_lead() -> None:
    setup = Setup()
    setup.connected = False
    await setup.planners[0].look()
    setup.connected = True
    await setup.planners[0].look()
    assert setup.plans() == []
    setup.wait(LEAD_S)
    await setup.planners[0].look()
    assert len(setup.plans()) == 1


async def test_a_fleet_of_plain_workers_is_left_alone() -> None:
    setup = Setup()
    for number in range(8):
        setup.registry.change(f"w{number}:80", role="plain")
    await setup.planners[0].look()
    assert setup.plans() == []


async def test_an_engine_that_is_not_idle_yet_is_asked_again_and_one_that_broke_is_left_drained() -> None:
    setup = Setup()
    (planner,) = setup.planners
    await planner.look()
    setup.answers = [
        httpx.Response(400, json={"success": False, "message": "not idle"}),
        httpx.Response(400, json={"success": False, "message": "unhealthy, restart required"}),
    ]
    await planner.look()
    assert setup.role("w2:80") == ("decode", True, {TURNING_LABEL: "prefill"})
    await planner.look()
    assert setup.role("w2:80") == ("decode", True, {})
    assert setup.plans()[-1].stuck_us.keys() == {"w2:80"}
    assert setup.turned == []


@pytest.mark.parametrize("change", ["taken back", "removed"])
async def test_what_was_changed_while_its_engine_switched_stays_as_it_was_changed(change: str) -> None:
    setup = Setup()
    (planner,) = setup.planners

    def meanwhile(_: httpx.Request) -> httpx.Response:
        setup.wait(1.0)
        if change == "removed":
            setup.registry.remove("w2:80")
        else:
            setup.registry.change("w2:80", draining=False)
        return httpx.Response(200, json={"success": True})

    planner.client = httpx.AsyncClient(transport=httpx.MockTransport(meanwhile))
    await planner.look()
    said = len(setup.plans())
    await planner.look()
    assert len(setup.plans()) == said + 1, "of the look, and none of the switch"
    assert setup.turned == []
    assert setup.shared.said(Forget) == []


async def test_members_are_those_that_prefill_or_decode_as_this_replica_sees_them() -> None:
    setup = Setup(requests=0)
    setup.add("far", "prefill")
    known = setup.shared.fleet.worker("far:80")
    assert known is not None
    setup.registry.change("far:80", labels={"site": "dc2", "convertible": "true"})
    setup.registry.change("w7:80", labels={"handover": "nixl"})
    setup.registry.change("w6:80", role="plain")
    setup.shared.publish(CircuitSet("w5:80", setup.time.clock.now_us(), "r1", Circuit.OPEN, WHOLE_MAX))
    setup.place(0)
    found = {member.worker_id: member for member in setup.planners[0].members()}
    assert sorted(found) == ["far:80", "w0:80", "w1:80", "w2:80", "w3:80", "w4:80", "w5:80", "w7:80"]
    far = found["far:80"]
    assert (far.site, far.home, far.convertible) == ("dc2", False, False)
    assert (found["w2:80"].convertible, found["w7:80"].convertible) == (True, False)
    assert (found["w5:80"].well, found["w4:80"].well) == (False, True)
    assert found["w0:80"].inflight_requests == 1
    groups = {name: found[name].group for name in ("w2:80", "w3:80", "w7:80")}
    assert groups["w2:80"] == groups["w3:80"] != groups["w7:80"]


async def test_an_engine_that_began_anew_has_the_role_that_it_was_started_with() -> None:
    """Asked once for each start, and only if the start is newer than the last report about the worker."""
    setup = Setup(requests=0)
    (planner,) = setup.planners
    setup.registry.change("w4:80", labels={})
    now_us = setup.time.clock.now_us()
    for worker_id in ("w3:80", "w4:80", "w5:80"):
        setup.shared.publish(Started(worker_id, now_us + 1, "r1", 7_000, cold=worker_id != "w5:80"))
    setup.shared.publish(Started("w6:80", 1, "r1", 7_000, cold=True))
    setup.wait(1.0)
    await planner.look()
    assert setup.looked_at == ["w3"]
    assert setup.role("w3:80") == ("prefill", False, {})
    setup.engine_role = "decode"
    setup.shared.publish(Started("w3:80", setup.time.clock.now_us() + 1, "r1", 8_000, cold=True))
    setup.wait(1.0)
    for _ in range(2):
        await planner.look()
    assert setup.role("w3:80") == ("decode", False, {})
    assert setup.looked_at == ["w3", "w3"]


async def test_an_engine_that_began_anew_as_it_was_is_asked_once() -> None:
    setup = Setup(requests=0)
    setup.engine_role = "decode"
    setup.shared.publish(Started("w3:80", setup.time.clock.now_us() + 1, "r1", 7_000, cold=True))
    applied = setup.planners[0].rules
    for mode in (replace(applied, mode="recommend"), applied):
        setup.planners[0].rules = mode
        for _ in range(2):
            await setup.planners[0].look()
    assert setup.looked_at == ["w3"]
    assert setup.role("w3:80") == ("decode", False, {})


async def test_the_loop_looks_again_and_again_until_it_is_cancelled() -> None:
    setup = Setup()
    (planner,) = setup.planners
    twice = asyncio.Event()

    def publish(op: Op) -> None:
        setup.shared.publish(op)
        if len(setup.plans()) == 2:
            twice.set()

    planner.core = replace(planner.core, log=replace(planner.core.log, publish=publish))
    task = asyncio.create_task(planner.run())
    async with asyncio.timeout(60):
        await twice.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_loop_that_is_told_another_interval_does_not_sleep_out_the_old_one() -> None:
    setup = Setup(mode="recommend")
    planner = setup.planners[0]
    planner.rules = replace(planner.rules, interval_s=3600.0)
    task = asyncio.create_task(planner.run())
    try:
        await asyncio.sleep(0)
        planner.use(RoleRules(mode="off", interval_s=3600.0), ServiceLevel(tpot_slo_s=0.05))
        assert (planner.rules.mode, planner.level.tpot_slo_s) == ("off", 0.05)
        planner.use(RoleRules(interval_s=0.001), ServiceLevel())
        async with asyncio.timeout(60):
            while not setup.plans():  # noqa: ASYNC110 - plans signal nothing
                await asyncio.sleep(0.005)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert setup.plans()[-1].roles == {"w2:80": "prefill"}


class Engine:
    """Gives every request the same answer, or none."""

    def __init__(self, status: int = 200, answer: object = None) -> None:
        self.status, self.answer = status, answer
        self.asked: list[tuple[str, str, object]] = []

    def handle(self, request: httpx.Request) -> httpx.Response:
        self.asked.append((request.method, str(request.url), json.loads(request.content)))
        if not self.status:
            raise httpx.ConnectError("refused")
        if isinstance(self.answer, str):
            return httpx.Response(self.status, text=self.answer)
        return httpx.Response(self.status, json=self.answer)

    async def asks(self, engine: str = "sglang") -> Switched:
        async with httpx.AsyncClient(transport=httpx.MockTransport(self.handle)) as client:
            return await switch_role(client, "http://w:30000", engine, "decode")


async def test_sglang_is_asked_and_has_lost_its_cache_then() -> None:
    engine = Engine(200, {"success": True, "message": "ok", "old_role": "prefill", "new_role": "decode"})
    assert await engine.asks() is Switched.EMPTIED
    assert engine.asked == [("POST", "http://w:30000/pd_role_switch", {"new_role": "decode"})]


@pytest.mark.parametrize("name", ["vllm", ""])
async def test_others_are_not_asked_and_keep_their_cache(name: str) -> None:
    engine = Engine(404)
    assert await engine.asks(name) is Switched.DONE
    assert engine.asked == []


@pytest.mark.parametrize(
    ("status", "answer", "outcome"),
    [
        (400, {"success": False, "message": "instance is not idle", "safe_to_restore": True}, Switched.LATER),
        (400, {"success": False, "message": "a switch is in progress"}, Switched.LATER),
        (400, {"success": False, "message": "started without --enable-pd-role-switch"}, Switched.REFUSED),
        (400, {"success": False, "message": "instance unhealthy, restart required"}, Switched.BROKEN),
        (400, {"success": False, "message": "no", "safe_to_restore": False}, Switched.BROKEN),
        (400, {"success": True}, Switched.REFUSED),
        (404, {"detail": "Not Found"}, Switched.REFUSED),
        (200, "OK", Switched.REFUSED),
        (200, ["odd"], Switched.REFUSED),
        (404, "", Switched.REFUSED),
        (503, {"message": 7}, Switched.LATER),
        (0, None, Switched.LATER),
    ],
)
async def test_what_else_an_engine_may_say(status: int, answer: object, outcome: Switched) -> None:
    assert await Engine(status, answer).asks() is outcome


NEEDS_GRAPHS = {
    "success": False,
    "message": "decode_cuda_graph_memory_gb is required",
    "safe_to_restore": True,
}


class Pair:
    """An engine that expects fields about CUDA graphs, and others that decode already."""

    def __init__(self, *infos: object) -> None:
        self.infos = {f"peer{number}": info for number, info in enumerate(infos)}
        self.bodies: list[dict[str, object]] = []

    def handle(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/get_server_info":
            return httpx.Response(200, json=self.infos[request.url.host])
        self.bodies.append(json.loads(request.content))
        if "decode_cuda_graph_memory_gb" not in self.bodies[-1]:
            return httpx.Response(400, json=NEEDS_GRAPHS)
        return httpx.Response(200, json={"success": True})

    async def asks(self) -> Switched:
        peers = [f"http://{name}" for name in self.infos]
        async with httpx.AsyncClient(transport=httpx.MockTransport(self.handle)) as client:
            return await switch_role(client, "http://w", "sglang", "decode", peers)


async def test_an_engine_that_needs_to_know_of_graphs_is_told_what_others_have() -> None:
    states = [
        {"decode_cuda_graph_memory_gb": 1.5, "decode_cuda_graph_bs": [1, 2, 4]},
        {"decode_cuda_graph_memory_gb": 2.0, "decode_cuda_graph_bs": [1, 2, 4]},
    ]
    pair = Pair({"internal_states": [{}, 3]}, {"internal_states": states})
    assert await pair.asks() is Switched.EMPTIED
    told = {"decode_cuda_graph_memory_gb": 2.0, "decode_cuda_graph_bs": [1, 2, 4]}
    assert pair.bodies == [{"new_role": "decode"}, {"new_role": "decode", **told}]
    bare = Pair({"internal_states": [{"decode_cuda_graph_memory_gb": 1.0}]})
    assert await bare.asks() is Switched.EMPTIED
    assert bare.bodies[-1] == {"new_role": "decode", "decode_cuda_graph_memory_gb": 1.0}


async def test_where_nobody_knows_of_graphs_the_engine_stays_what_it_is() -> None:
    for infos in ((), ([],), ({"internal_states": "?"},), ({"internal_states": [{}]},)):
        pair = Pair(*infos)
        assert await pair.asks() is Switched.REFUSED
        assert pair.bodies == [{"new_role": "decode"}]


@pytest.mark.parametrize(
    ("info", "role"),
    [
        (
            {"disaggregation_mode": "prefill", "internal_states": [{"disaggregation_mode": "decode"}]},
            "decode",
        ),
        ({"disaggregation_mode": "prefill", "internal_states": [{}]}, "prefill"),
        ({"disaggregation_mode": "null"}, ""),
        ({}, ""),
        (["odd"], ""),
    ],
)
async def test_the_role_of_an_engine_is_what_its_scheduler_says(info: object, role: str) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=info))
    async with httpx.AsyncClient(transport=transport) as client:
        assert await role_of(client, "http://w", "sglang") == role
    transport = httpx.MockTransport(lambda _: httpx.Response(404))
    async with httpx.AsyncClient(transport=transport) as client:
        assert await role_of(client, "http://w", "sglang") == ""
        assert await role_of(client, "http://w", "vllm") == ""
