"""``GET /shadow``, and the setting behind it."""

from typing import Any

from fakes.gateway import Bench, chat
from fakes.insight import client_of

from router.settings import Settings


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
