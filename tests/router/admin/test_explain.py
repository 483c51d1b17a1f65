"""``POST /explain``: what may be asked, and that asking leaves no trace."""

from typing import Any

import orjson
import pytest
from fakes.admin import code
from fakes.gateway import Bench, chat
from fakes.insight import client_of
from fakes.rehearsals import digest

from policies import Placed
from radix import chain_bytes
from router.engines import Description
from router.fleet import HealthRules
from router.gateway.endpoints import Endpoint
from router.gateway.large import LARGE_BODY_BYTES
from router.tenant import ANONYMOUS


async def ask(bench: Bench, question: Any, status: int = 200) -> dict[str, Any]:
    """Ask, and see that nothing has changed."""
    before = digest(bench)
    body = question if isinstance(question, bytes) else orjson.dumps(question)
    async with client_of(bench) as client:
        answer = await client.post("/explain", content=body)
    assert digest(bench) == before
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    if status != 200:
        found["code"] = code(answer)
    return found


async def test_a_request_is_explained_and_then_goes_there() -> None:
    bench = Bench(workers=3)
    found = await ask(bench, {"request": chat()})
    bench.start(chat())
    (placed,) = bench.shared.said(Placed)
    assert found["decision"]["worker"] == placed.worker
    assert found["decision"]["outcome"] == "place"
    assert (found["policy"], found["replica"]) == (
        {"name": "expected_cost", "unit": "seconds", "lowest_wins": True},
        "r1",
    )
    assert [one["rank"] for one in found["candidates"]] == [1, 2, 3]
    assert found["candidates"][0]["worker"] == placed.worker
    assert found["request"]["blocks"] == 4
    bench.upstream.answer()
    bench.check()


async def test_another_policy_and_its_options_can_be_asked() -> None:
    found = await ask(
        Bench(workers=2),
        {"request": chat(), "policy": "prefix_hash", "policy_options": {"load_factor": 2}},
    )
    assert found["policy"] == {
        "name": "prefix_hash",
        "unit": "rank of the worker for this hash",
        "lowest_wins": True,
    }


async def test_a_large_body_gives_the_same_answer_as_a_small_one_would() -> None:
    """Beyond 256 KiB both the question and its request are taken apart in steps."""
    bench = Bench(workers=2)
    text = "word " * (LARGE_BODY_BYTES // 4)
    found = await ask(bench, {"limit": 1, "request": chat(text), "policy": "least_load"})
    whole = bench.gateway.reader.parse(Endpoint.CHAT, orjson.dumps(chat(text)), ANONYMOUS)
    assert found["request"]["blocks"] == len(whole.paths[0]) // 8
    assert found["request"]["prefix"] == f"{whole.prefix_key:016x}"
    assert (len(found["candidates"]), found["candidates_omitted"]["count"]) == (1, 1)


async def test_token_ids_may_be_many() -> None:
    ids = list(range(60_000))
    found = await ask(
        Bench(workers=1), {"endpoint": "/v1/completions", "request": {"model": "m", "prompt": ids}}
    )
    assert (found["request"]["prompt_tokens"], found["request"]["blocks"]) == (60_000, 60_000 // 256)


async def test_of_many_the_first_are_listed_and_the_rest_summed_up() -> None:
    bench = Bench(workers=30)
    for number in range(5):
        bench.registry.change(f"w{number}:80", draining=True)
    found = await ask(bench, {"request": chat(), "limit": 2})
    assert len(found["candidates"]) == len(found["not_candidates"]) == 2
    omitted = found["candidates_omitted"]
    assert omitted["count"] == 23
    assert omitted["cost_min"] == omitted["cost_max"] == found["candidates"][0]["cost"]
    assert found["not_candidates_omitted"] == {"draining": 3}


async def test_a_model_that_nobody_serves_is_a_decision_too() -> None:
    bench = Bench(workers=1)
    bench.registry.described(bench.local("w0:80"), (), Description("vllm", 0))
    found = await ask(bench, {"request": chat()})
    assert (found["decision"]["outcome"], found["decision"]["reason"]) == ("reject", "model_not_found")
    assert found["not_candidates"][0]["reason"] == "other_model"


@pytest.mark.parametrize(
    ("question", "why"),
    [
        (b"{", "invalid_json"),
        (b'"text"', "invalid_value"),
        (b'{"request":' + b"[" * 100_000, "invalid_json"),
        ({}, "invalid_value"),
        ({"request": {"model": "m"}, "block_hashes": [1]}, "invalid_value"),
        ({"request": {"messages": []}}, "missing_model"),
        ({"request": "text"}, "not_an_object"),
        ({"request": {"model": "m"}, "endpoint": "/nowhere"}, "invalid_value"),
        ({"request": {"model": "m"}, "policy": "mine"}, "invalid_value"),
        ({"request": {"model": "m"}, "policy_options": {"a": 1}}, "invalid_value"),
        ({"request": {"model": "m"}, "limit": 0}, "invalid_value"),
        ({"request": {"model": "m"}, "polcy": "least_load"}, "invalid_value"),
        ({"request": {"model": "m"}, "tenant": "t" * 300_000}, "invalid_value"),
        ({"tenant": "t" * 10, "tenants": [1] * 200_000}, "invalid_value"),
    ],
)
async def test_what_makes_no_sense_is_refused_with_a_reason(question: Any, why: str) -> None:
    bench = Bench(workers=1)
    bench.registry.rules = HealthRules(unlisted_models="refuse")
    found = await ask(bench, question, 400)
    assert found["code"] == why
    assert len(found["error"]["message"]) < 1000


async def test_a_body_longer_than_clients_may_send_is_refused() -> None:
    found = await ask(Bench(workers=1, server={"body_bytes_max": 1024}), b" " * 1025, 413)
    assert found["code"] == "body_too_large"


async def test_what_has_no_price_is_null_and_the_answer_plain_json() -> None:
    bench = Bench(workers=3)
    now_us = bench.time.clock.now_us()
    for number in range(4):
        path = chain_bytes(bytes([number]), 1, 1)
        bench.shared.publish(Placed(f"p{number}", now_us, "w0:80", "r2", 1, 1, 1, (path,)))
    found = await ask(bench, {"request": chat(), "policy": "prefix_hash"})
    assert [one["cost"] for one in found["candidates"] if one["worker"] == "w0:80"] == [None]


async def test_a_tenants_own_cache_is_its_own() -> None:
    """A tenant that a header names has a namespace, so its prompts have other hashes."""
    bench = Bench(workers=1)
    one, other = [
        (await ask(bench, {"request": chat(), "tenant": tenant}))["request"] for tenant in ("", "team-a")
    ]
    assert (one["tenant"], other["tenant"]) == (None, "team-a")
    assert one["prefix"] != other["prefix"]


@pytest.mark.parametrize(
    "question",
    [{}, {"request_id": "a", "request": chat()}, {"request_id": "a", "tenant": "t"}, {"request_id": ""}],
)
async def test_a_question_has_either_a_body_or_the_id_of_a_past_request(question: Any) -> None:
    assert (await ask(Bench(workers=1), question, 400))["code"] == "invalid_value"
