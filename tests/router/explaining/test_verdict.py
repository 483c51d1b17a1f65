"""Why a request is placed, waits or is turned away: one sentence for each cause."""

from typing import Any

import pytest
from fakes.gateway import Bench
from fakes.handover import PairBench
from fakes.rehearsals import explained, parsed_text

from policies import FirstToken, Placed, Waiting
from router.explaining.explanation import Explanation

PROMPT = parsed_text((1, 2, 3, 4))
"""4.6 KB: 1,149 tokens, 97 ms for a worker without measurements."""


def place(bench: Bench, worker: str, service_us: int, request_id: str, **more: Any) -> None:
    now_us = bench.time.clock.now_us()
    bench.shared.publish(Placed(request_id, now_us, worker, "r2", service_us, 500, 2000, **more))


def busy(bench: Bench, *workers: str, service_us: int = 800_000) -> None:
    for worker in workers:
        place(bench, worker, service_us, f"busy-{worker}")


def verdict(found: Explanation) -> tuple[str, str]:
    return found.verdict.word, found.verdict.reason


def test_the_place_and_the_runner_up_are_named() -> None:
    bench = Bench(workers=2)
    place(bench, "w0:80", 1000, "known", paths=PROMPT.paths)
    bench.shared.publish(FirstToken("known", bench.time.clock.now_us()))
    found = explained(bench, PROMPT)
    assert verdict(found) == ("place", "affinity")
    assert found.verdict.why.startswith(
        "w0:80 is the policy's choice, and has the longest start of the prompt cached: "
        "28.4 ms to the first token, "
        "0 s of queue and 28.4 ms to prefill 125 of 1,149 tokens. Next, w1:80: it would "
    )


def test_no_room_is_said_in_seconds() -> None:
    bench = Bench(workers=1)
    busy(bench, "w0:80")
    found = explained(bench, PROMPT)
    assert verdict(found) == ("wait", "no_room")
    assert "w0:80 has 0.80 s of prefill before it, and gets more below 0.50 s" in found.verdict.why
    assert not found.verdict.queue_full


def test_no_room_is_said_in_requests() -> None:
    bench = Bench(workers=1, admission={"worker_running_max": 1})
    busy(bench, "w0:80", service_us=1000)
    found = explained(bench, PROMPT)
    assert verdict(found) == ("wait", "no_room")
    assert "w0:80 has 1 requests in flight, of 1" in found.verdict.why


def test_what_waits_in_the_lane_is_counted() -> None:
    bench = Bench(workers=1)
    busy(bench, "w0:80")
    now_us = bench.time.clock.now_us()
    bench.shared.publish(
        Waiting("t", now_us, "r2", now_us - 9_000_000, now_us - 9_000_000, "m|", "", "normal/", 700_000, 9, 9)
    )
    found = explained(bench, PROMPT)
    assert ". 1 wait in its lane, 0.70 s of prefill before it." in found.verdict.why


def test_a_full_queue_is_said() -> None:
    bench = Bench(workers=1, queue={"size": 1})
    busy(bench, "w0:80")
    now_us = bench.time.clock.now_us()
    bench.shared.publish(Waiting("t", now_us, "r2", now_us, now_us + 1, "m|", "", "normal/", 700_000, 9, 9))
    found = explained(bench, PROMPT)
    assert found.verdict.queue_full
    assert found.verdict.why.endswith("The queue is full: it is rejected, unless it displaces a lesser one.")


def test_who_came_before_goes_before() -> None:
    """The worker has room, but another request already waits for it."""
    bench = Bench(workers=1)
    busy(bench, "w0:80", service_us=100_000)
    now_us = bench.time.clock.now_us()
    bench.shared.publish(
        Waiting("t", now_us, "r2", now_us - 9_000_000, now_us - 9_000_000, "m|", "w0:80", "normal/", 9, 9, 9)
    )
    bench.gateway.placing.room._lanes.follow(bench.shared.fleet.tickets.lane_totals())
    found = explained(bench, PROMPT)
    assert verdict(found) == ("wait", "others_first")


def test_whose_start_is_just_prefilled_follows_it() -> None:
    """SGLang finds what a step computed when that is over (`policies.dispatch.followers`)."""
    bench = Bench(workers=1)
    leader = parsed_text(tuple(range(20)))
    bench.local("w0:80").step_tokens = 8192
    place(bench, "w0:80", 200_000, "ahead")
    place(bench, "w0:80", 250_000, "leader", paths=leader.paths)
    found = explained(bench, parsed_text((*range(20), 77)))
    assert verdict(found) == ("wait", "follows")
    assert found.verdict.worker_id == "w0:80"


def test_work_waits_for_the_best_at_its_caps_if_an_idle_worker_costs_more() -> None:
    """The best one holds all of a long prompt, and runs as many requests as it may."""
    bench = Bench(workers=2, admission={"worker_running_max": 1})
    prompt = parsed_text(tuple(range(30)))
    place(bench, "w0:80", 100_000, "known", paths=prompt.paths)
    found = explained(bench, prompt)
    assert verdict(found) == ("wait", "no_room")
    assert (found.verdict.worker_id, found.verdict.preferred) == ("w0:80", "w0:80")
    assert found.verdict.why == "It would wait for w0:80: w0:80 has 1 requests in flight, of 1."


def test_pairs_without_room_to_decode_wait_for_that() -> None:
    bench = PairBench(1, 1, admission={"worker_running_max": 1})
    found = explained(bench, PROMPT)
    assert verdict(found) == ("wait", "no_room_to_decode")
    assert "no decode worker has room for its KV" in found.verdict.why


def test_a_pair_names_both() -> None:
    found = explained(PairBench(1, 2), PROMPT)
    assert verdict(found)[0] == "place"
    assert found.verdict.worker_id == "p0:80"
    assert f"; {found.verdict.decode_worker_id} decodes" in found.verdict.why
    assert [one.rank for one in found.decoders] == [1, 2]
    assert found.decoders[1].lost_because == (
        f"it costs the same; hashing of the prompt gave it to {found.verdict.decode_worker_id}"
    )


def test_what_is_promised_and_would_be_broken_is_said() -> None:
    bench = Bench(workers=1, admission={"ttft_slo_s": 0.2})
    busy(bench, "w0:80", service_us=5_000_000)
    found = explained(bench, PROMPT)
    assert verdict(found) == ("reject", "slo_unreachable")
    assert found.verdict.why.startswith("It would miss its service level: ttft of ")


@pytest.mark.parametrize("workers", [0, 1])
def test_where_nobody_may_take_it_the_clients_error_is_the_reason(workers: int) -> None:
    bench = Bench(workers=workers)
    if workers:
        bench.registry.change("w0:80", draining=True)
    found = explained(bench, PROMPT)
    assert verdict(found) == ("reject", "no_worker_available")
    assert found.verdict.why == "No worker for the model 'm' can take a request now."
    assert found.candidates == []
