"""What an operator reads of length buckets."""

from typing import Any

from fakes.gateway import FakeShared, VirtualTime, registry
from fakes.queue_ports import queue_ports

from policies import FleetRules, LengthBuckets, Placed
from router.admin.bucket_view import described


class Setup:
    def __init__(self, rules: FleetRules) -> None:
        self.time = VirtualTime()
        self.shared = FakeShared(rules)
        self.registry = registry(self.shared, self.time)

    def add(self, **labels: str) -> None:
        for name, label in labels.items():
            worker_id = self.registry.add(f"http://{name}", labels={"bucket": label} if label else {})
            local = self.registry.get(worker_id)
            assert local is not None
            self.registry.probed(local, ok=True, refused=False, detail="")

    def place(self, count: int, tokens: int, worker: str) -> None:
        for number in range(count):
            op = Placed(
                f"{worker}-{tokens}-{number}",
                self.time.clock.now_us(),
                f"{worker}:80",
                "r1",
                10**6,
                9,
                tokens,
                (b"",),
            )
            self.shared.publish(op)

    def view(self) -> dict[str, Any]:
        return described(queue_ports(self.shared, self.registry, self.time))


def test_without_buckets_there_is_nothing_to_say() -> None:
    assert Setup(FleetRules()).view() == {"mode": "off"}


def test_labels_show_workers_load_and_spills() -> None:
    setup = Setup(FleetRules(buckets=LengthBuckets()))
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
    setup = Setup(FleetRules(buckets=LengthBuckets()))
    setup.add(a="", b="")
    view = setup.view()
    assert (view["in_use"], view["spilled"], view["histogram"]["rows"]) == (False, {"up": 0, "down": 0}, [])
    assert [one["load"] for one in view["buckets"]] == [None] * 3
