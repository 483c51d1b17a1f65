"""``GET /decisions``."""

from typing import Any

from fakes.gateway import Bench, chat
from fakes.insight import client_of

from router.settings import Settings

USAGE = (
    b'{"usage":{"prompt_tokens":1250,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":1024}}}'
)


async def listed(bench: Bench, query: str = "") -> dict[str, Any]:
    async with client_of(bench) as client:
        answer = await client.get(f"/decisions{query}")
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


async def test_the_newest_comes_first_with_reason_prediction_and_what_came_true() -> None:
    bench = Bench(workers=1)
    bench.start(chat(stream=True), headers=[(b"x-request-id", b"first")])
    bench.time.advance(0.5)
    bench.upstream.answer(USAGE)
    bench.start(b"{", headers=[(b"x-request-id", b"second")])

    found = await listed(bench)

    assert (found["replica"], found["cursor"]) == ("r1", 2)
    second, first = found["decisions"]
    assert (second["request_id"], second["outcome"], second["status"]) == ("second", "invalid_json", 400)
    assert second["detail"].startswith("The body is not valid JSON")
    assert (second["worker"], second["reason"], second["why"]) == (None, None, None)
    assert (first["worker"], first["reason"]) == ("w0:80", "only")
    assert first["why"] == "w0:80 is the only candidate"
    assert (first["ttft_s"], first["ttft_since_arrival_s"], first["duration_s"]) == (0.5, 0.5, 0.5)
    assert (first["predicted_cached_tokens"], first["reported_cached_tokens"]) == (0, 1024)
    assert first["prompt_tokens"] == 1250
    assert 0 < first["predicted_ttft_s"] < 1
    assert "word" not in str(found)


async def test_they_can_be_asked_for_by_what_they_are_about() -> None:
    bench = Bench(workers=2)
    for model in ("a", "b", "a"):
        bench.start(chat(model=model))
        bench.upstream.answer()
    worker = (await listed(bench))["decisions"][0]["worker"]

    assert len((await listed(bench, "?model=a"))["decisions"]) == 2
    assert len((await listed(bench, "?outcome=completed&limit=1"))["decisions"]) == 1
    assert (await listed(bench, "?outcome=no_worker_available"))["decisions"] == []
    assert {each["worker"] for each in (await listed(bench, f"?worker={worker}"))["decisions"]} == {worker}
    assert [each["number"] for each in (await listed(bench, "?after=2"))["decisions"]] == [3]
    assert (await listed(bench, "?tenant=nobody"))["decisions"] == []


async def test_a_request_is_found_by_the_clients_id_and_by_ours() -> None:
    bench = Bench()
    for name in (b"first", b"second"):
        bench.start(chat(), headers=[(b"x-request-id", name)])
        bench.upstreams[-1].answer()
    (found,) = (await listed(bench, "?request_id=second"))["decisions"]
    ours = dict(bench.upstreams[-1].sent["headers"])[b"x-request-id"].decode()
    assert found["worker_request_id"] == ours
    assert (await listed(bench, f"?request_id={ours}"))["decisions"] == [found]


async def test_limits_are_kept() -> None:
    async with client_of(Bench()) as client:
        for query in ("?limit=0", "?limit=501", "?after=-1"):
            assert (await client.get(f"/decisions{query}")).status_code == 400


async def seen(bench: Bench) -> dict[str, Any]:
    async with client_of(bench) as client:
        answer = await client.get("/shadow")
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def counted(bench: Bench) -> dict[str, float]:
    prefix = "cacheway_shadow_decisions_total{"
    lines = bench.metrics.exposition()[0].decode().splitlines()
    return {line.split('"')[1]: float(line.split()[-1]) for line in lines if line.startswith(prefix)}


async def test_without_a_shadow_nobody_is_asked() -> None:
    bench = Bench()
    assert bench.gateway.placing.decider.shadow is None
    assert await seen(bench) == {"replica": "r1", "enabled": False, "active_policy": "expected_cost"}


async def test_what_it_would_have_chosen_is_told_and_counted_and_changes_nothing() -> None:
    """Six requests of one prompt: the active policy stays where it is cached, round robin would not."""
    plain = Bench(workers=2)
    watched = Bench(workers=2, placement={"shadow_policy": "round_robin", "shadow_ratio": 1.0})
    for bench in (plain, watched):
        for _ in range(6):
            bench.start(chat())
            bench.upstream.answer()
    went = [
        [
            decision.attempt and decision.attempt.worker_id
            for decision in bench.gateway.reports.decisions.since(0)[0]
        ]
        for bench in (plain, watched)
    ]
    assert went[0] == went[1]

    found = await seen(watched)

    assert (found["enabled"], found["shadow_policy"], found["ratio"]) == (True, "round_robin", 1.0)
    model = found["models"]["m"]
    assert (model["judged"], model["agreement_ratio"], model["unplaced"]) == (6, 0.5, 0)
    assert model["ttft_s"]["mean"] > 0
    assert model["ttft_s"]["p10"] == 0.0 < model["ttft_s"]["p90"]
    assert model["cached_tokens"]["p10"] == -1024
    assert counted(watched) == {"agreed": 3.0, "differed": 3.0}


async def test_it_may_change_while_the_gateway_serves_and_keeps_what_it_found_if_it_does_not() -> None:
    bench = Bench(placement={"shadow_policy": "least_load", "shadow_ratio": 1.0})
    first = bench.gateway.placing.decider.shadow

    def use(**placement: Any) -> None:
        bench.gateway.use(Settings.model_validate({"placement": placement}))

    use(shadow_policy="least_load", shadow_ratio=1.0, congestion_max=1.0)
    assert bench.gateway.placing.decider.shadow is first
    use(shadow_policy="least_load", shadow_ratio=0.5)
    assert bench.gateway.placing.decider.shadow is not first
    use()
    assert bench.gateway.placing.decider.shadow is None
