"""Shares of a model's requests: equal at all replicas, faithful to a conversation, and no obstacle."""

from typing import Any

import numpy as np
import orjson
import pytest
from fakes.gateway import Bench, chat

from router.gateway.endpoints import Endpoint
from router.gateway.parsing import ParsedRequest
from router.model_rules import Split
from router.models.labels import LabelIndex
from router.models.splits import Drawn, Splits
from router.tenant import Tenant


class Stage:
    """One split of the model m; the second of two workers is the canary's."""

    def __init__(self, **split: Any) -> None:
        self.bench = Bench(workers=1)
        self.bench.registry.add("http://v2:1", labels={"version": "v2"})
        self.hasher = self.bench.gateway.reader.hasher
        self.counted: list[tuple[str, str]] = []
        self.use(**split)

    def use(self, **split: Any) -> None:
        core, labels = self.bench.core, LabelIndex(self.bench.core)
        rules = {"m": Split(**{"label": "version=v2", **split})}
        self.splits = Splits(rules, core, self.hasher, labels, lambda *counted: self.counted.append(counted))

    def parsed(self, text: str, tenant: str = "", **more: Any) -> ParsedRequest:
        body = orjson.dumps(chat(text, **more))
        return self.bench.gateway.reader.parse(Endpoint.CHAT, body, Tenant(tenant))

    def drawn(self, text: str, tenant: str = "", session: str = "", **more: Any) -> Drawn:
        drawn = self.splits.drawn(self.parsed(text, tenant, **more), session)
        assert drawn is not None
        return drawn


def test_shares_are_as_wide_as_they_say_and_only_grow() -> None:
    stage = Stage(ratio=0.2)
    texts = [f"{number} " * 800 for number in range(400)]
    few = {text for text in texts if stage.drawn(text).part == "canary"}
    assert 50 <= len(few) <= 110
    stage.use(ratio=0.4)
    assert few < {text for text in texts if stage.drawn(text).part == "canary"}
    stage.use(ratio=0.0)
    assert {stage.drawn(text).part for text in texts} == {"rest"}


def test_a_conversation_stays_where_it_began() -> None:
    stage = Stage(ratio=0.5)
    for number in range(50):
        text = f"{number} " * 800
        assert stage.drawn(text + "and so on " * 500).part == stage.drawn(text).part


def test_what_begins_alike_is_told_apart_further_on_or_by_its_session() -> None:
    stage = Stage(ratio=0.5)
    system = "the same system prompt " * 200
    assert len({stage.drawn(system + str(number) * 3000).part for number in range(30)}) == 1
    assert len({stage.drawn(system, session=str(number)).part for number in range(30)}) == 2
    stage.use(ratio=0.5, stick_tokens=1800)
    assert len({stage.drawn(system + str(number) * 3000).part for number in range(30)}) == 2


def test_a_session_stays_in_its_part_whatever_its_prompts() -> None:
    stage = Stage(ratio=0.5)
    for number in range(30):
        texts = [f"{number} {turn} " * 900 for turn in range(4)]
        assert len({stage.drawn(text, "t", f"s-{number}").part for text in texts}) == 1
    assert stage.drawn("x", "t", "s").why.startswith("the hash of its session")
    drawn = {(tenant, stage.drawn("x", tenant, "s").part) for tenant in map(str, range(30))}
    assert len({part for _, part in drawn}) == 2, "a session of another tenant is another session"


@pytest.mark.parametrize(("stick", "tenants", "texts"), [("tenant", 2, 1), ("none", 1, 2), ("prefix", 1, 2)])
def test_requests_stick_by_what_a_split_says(stick: str, tenants: int, texts: int) -> None:
    stage = Stage(ratio=0.5, stick=stick)
    assert len({stage.drawn("x", f"t{number}").part for number in range(30)}) >= tenants
    assert len({stage.drawn(f"{number} " * 1000, "t").part for number in range(30)}) == texts


def test_each_part_has_workers_of_its_own_and_takes_others_where_it_has_none() -> None:
    stage = Stage(ratio=1.0)
    workers = sorted(stage.bench.registry.all(), key=lambda local: len(local.worker.labels))
    old, new = (local.slots[0] for local in workers)
    both = np.array([old, new])
    canary = stage.drawn("x")
    assert canary.among(both).tolist() == [new]
    assert canary.among(np.array([old])).tolist() == [old]
    stage.use(ratio=0.0)
    rest = stage.drawn("x")
    assert rest.among(both).tolist() == [old]
    assert rest.among(np.array([new])).tolist() == [new]
    for drawn, slot in ((canary, new), (canary, old), (rest, old), (rest, new), (canary, -1)):
        drawn.ended(slot)
    parts = ["canary", "canary_elsewhere", "rest", "rest_elsewhere", "canary"]
    assert stage.counted == [("m", part) for part in parts]


def test_a_model_without_a_split_is_not_drawn() -> None:
    stage = Stage(ratio=1.0)
    assert stage.splits.drawn(stage.parsed("x", model="other")) is None


def test_the_reason_is_told() -> None:
    told = Stage(ratio=1.0).drawn("x" * 3000).told()
    assert told["split"] == "canary"
    assert told["split_why"].startswith("the hash of its first 1 blocks is 0.")
