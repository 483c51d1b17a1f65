"""The view of workers' roles."""

from typing import Any

import httpx
from fakes.gateway import Bench, FakeShared, VirtualTime, log_port, registry

from policies import DecodeFit, FleetRules, KvBytes, LengthBuckets, LinkRules, OffloadPlan, Placed
from policies.disaggregation import TURNING_LABEL, RoleRules
from policies.disaggregation.role_plan import NEVER_TOKENS
from router.admin.role_view import described, divided
from router.fleet import Core
from router.pairs import RolePlanner

RULES = FleetRules(
    site="dc1", links={"dc2>dc1": LinkRules(10.0)}, kv_bytes={"*": KvBytes(17_000.0, state_bytes=1.8e8)}
)


class Setup:
    def __init__(self, mode: Any = "recommend") -> None:
        self.time = VirtualTime()
        self.shared = FakeShared(RULES)
        self.registry = registry(self.shared, self.time)
        self.fit = DecodeFit()
        self.planner = RolePlanner(
            Core(self.shared.fleet, self.registry, log_port(self.shared, self.time)),
            httpx.AsyncClient(),
            decode_fit=lambda _: self.fit,
            rules=RoleRules(mode=mode),
            clock=self.time.time,
        )

    def add(self, name: str, role: str, **labels: str) -> None:
        given = {"convertible": "true", "max_running_requests": "16", **labels}
        local = self.registry.get(self.registry.add(f"http://{name}", role=role, labels=given))
        assert local is not None
        for _ in range(2):
            self.registry.probed(local, ok=True, refused=False, detail="")

    def busy(self) -> None:
        for number in range(100):
            self.fit.observe(1 + number % 20, 2.0, 101)
        for number in range(300):
            at_us = self.time.clock.now_us()
            op = Placed(
                f"q{number}", at_us, "p:80", "r1", 10**6, 60_000, 61_000, (b"",), home_uncached_tokens=60_000
            )
            self.shared.publish(op)

    def view(self) -> dict[str, Any]:
        return described(self.planner)


def fleet(mode: str = "recommend") -> Setup:
    setup = Setup(mode)
    setup.add("p", "prefill")
    for number in range(5):
        setup.add(f"d{number}", "decode")
    setup.add("far", "prefill", site="dc2")
    return setup


def test_without_prefill_and_decode_workers_there_is_nothing_to_say() -> None:
    setup = Setup()
    setup.add("w", "plain")
    assert setup.view() == {"mode": "recommend", "workers": []}


def test_workers_stages_and_what_the_loop_would_do_are_told() -> None:
    setup = fleet()
    setup.busy()
    view = setup.view()
    far, plain = view["workers"][-2], view["workers"][0]
    assert (far["worker_id"], far["site"], far["convertible"]) == ("far:80", "dc2", False)
    assert (plain["role"], plain["site"], plain["convertible"], plain["serves"]) == (
        "decode",
        None,
        True,
        True,
    )
    assert view["stages"]["links"] == {"dc2": round(0.9 * 1.25e9)}
    assert view["stages"]["prefill"]["backlog_s"] == 300
    assert view["stages"]["decode"]["requests_per_s_per_worker"]["default"] == 8.0
    assert sum(row["requests"] for row in view["histogram"]) == 300
    now = view["now"]
    assert now["roles"] == {"d0:80": "prefill"}
    assert now["reason"].startswith("1 should prefill: ")
    assert now["best"]["prefill"] + now["best"]["decode"] == 6
    assert now["best"]["requests_per_s"] > now["serves"]["requests_per_s"]
    assert now["serves"]["bound"] in ("prefill", "remote")
    assert view["plan"] is None


def test_the_plan_and_who_is_turning_are_told() -> None:
    setup = fleet()
    now_us = setup.time.clock.now_us()
    setup.shared.publish(
        OffloadPlan(now_us, "r2", 19_400, 3, 3, {"d1:80": "prefill"}, 0.5, "why", 3.2, 0.5, 1e9, now_us)
    )
    setup.registry.change("d1:80", draining=True, labels={TURNING_LABEL: "prefill"})
    setup.time.advance(3.0)
    view = setup.view()
    assert view["plan"]["threshold_tokens"] == 19_400
    assert view["plan"]["roles"] == {"d1:80": "prefill"}
    assert view["plan"]["changed_unix_s"] == view["plan"]["at_unix_s"] == now_us / 1e6
    (turning,) = [worker for worker in view["workers"] if "turning_to" in worker]
    assert (turning["worker_id"], turning["turning_s"], turning["serves"]) == ("d1:80", 3.0, False)
    assert view["now"]["serves"] is None
    setup.shared.publish(OffloadPlan(now_us + 1, "r2", NEVER_TOKENS))
    told = setup.view()["plan"]
    assert (told["threshold_tokens"], told["nothing_remote"], told["prefill"]) == (None, True, None)


def test_changes_of_roles_are_remembered_and_a_plan_that_changes_nothing_is_none() -> None:
    setup = fleet()
    now_us = setup.time.clock.now_us()
    for at_us, changed_us, role in ((1, 1, "decode"), (2, 1, "decode"), (3, now_us, "prefill")):
        setup.shared.publish(OffloadPlan(at_us, "r2", changed_us=changed_us, turned={"d1:80": role}))
    changes = setup.view()["changes"]
    assert [change["turned"] for change in changes] == [{"d1:80": "prefill"}, {"d1:80": "decode"}]
    assert (changes[0]["at_unix_s"], changes[0]["replica"]) == (now_us / 1e6, "r2")


def test_a_loop_that_is_off_decides_nothing() -> None:
    view = fleet("off").view()
    assert (view["mode"], view["now"]["reason"]) == ("off", "roles.mode is off")


class Buckets:
    def __init__(self, buckets: LengthBuckets | None) -> None:
        self.bench = Bench(workers=0, rules=FleetRules(buckets=buckets))

    def add(self, **labels: str) -> None:
        for name, label in labels.items():
            self.bench.add(f"{name}:80")
            self.bench.registry.change(f"{name}:80", labels={"bucket": label} if label else {})

    def place(self, count: int, tokens: int, worker: str) -> None:
        for number in range(count):
            op = Placed(
                f"{worker}-{tokens}-{number}",
                self.bench.time.clock.now_us(),
                f"{worker}:80",
                "r1",
                10**6,
                9,
                tokens,
                (b"",),
            )
            self.bench.shared.publish(op)

    def view(self) -> dict[str, Any]:
        return divided(self.bench.gateway)


def test_without_buckets_there_is_nothing_to_say() -> None:
    assert Buckets(None).view() == {"mode": "off"}


def test_labels_show_workers_load_and_spills() -> None:
    setup = Buckets(LengthBuckets())
    setup.add(a="0-64K", b="1", c="256K-1M", d="", e="long")
    setup.place(3, 1_000, "a")
    setup.place(1, 1_000, "b")
    setup.place(2, 300_000, "a")
    setup.place(1, 300_000, "d")
    view = setup.view()
    assert (view["mode"], view["in_use"]) == ("labels", True)
    assert [(one["name"], one["workers"]) for one in view["buckets"]] == [
        ("0-64K", ["a:80"]),
        ("64K-256K", ["b:80"]),
        ("256K-1M", ["c:80"]),
    ]
    short, middle, long = view["buckets"]
    assert (short["requests"], middle["requests"], long["requests"]) == (4, 0, 3)
    assert (short["backlog_s"], short["inflight_requests"]) == (5.0, 5)
    assert round(short["load_share"], 2) == 0.57, "4 of 7 s"
    assert short["placed"] == {"0-64K": 3, "64K-256K": 1}
    assert long["placed"] == {"0-64K": 2, "any_length": 1}
    assert view["spilled"] == {"up": 1, "down": 2}
    assert (view["any_length"], view["unknown_labels"]) == (["d:80", "e:80"], {"e:80": "long"})
    assert [(row["tokens_max"], row["requests"]) for row in view["histogram"]["rows"]] == [
        (1_024, 4),
        (327_680, 3),
    ]


def test_until_a_worker_is_labelled_nothing_is_in_use() -> None:
    setup = Buckets(LengthBuckets())
    setup.add(a="", b="")
    view = setup.view()
    assert (view["in_use"], view["spilled"], view["histogram"]["rows"]) == (False, {"up": 0, "down": 0}, [])
    assert [one["load"] for one in view["buckets"]] == [None] * 3
