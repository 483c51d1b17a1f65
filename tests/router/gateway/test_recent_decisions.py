"""The recent decisions of requests that ended, through the gateway that ends them."""

from fakes.gateway import Bench, chat
from hypothesis import given
from hypothesis import strategies as st

from router.gateway.recent_decisions import STAYS_MAX, TEXT_CHARS_MAX, RecentDecision, RecentDecisions

USAGE = (
    b'{"usage":{"prompt_tokens":1250,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":1024}}}'
)


def decision(number: int) -> RecentDecision:
    return RecentDecision(
        number, 0, 0.0, b"", None, "", "", 0, None, "", None, 0, 0.0, 0.0, 0.0, "no_worker", 503
    )


def only(bench: Bench) -> RecentDecision:
    (kept,), missed = bench.gateway.reports.decisions.since(0)
    assert missed == 0
    return kept


def test_a_completed_request_is_kept_with_what_its_engine_reports(bench: Bench) -> None:
    bench.start(chat(), headers=[(b"x-request-id", b"mine")])
    bench.time.advance(2)
    bench.upstream.answer(USAGE)

    kept = only(bench)
    assert (kept.request_id, kept.model, kept.outcome, kept.status) == (b"mine", "m", "completed", 200)
    assert (kept.endpoint, kept.attempts, kept.wait_s, kept.detail) == ("/v1/chat/completions", 1, 0.0, "")
    assert kept.attempt is not None
    assert kept.attempt.chosen.reason == "cold"
    assert kept.usage is not None
    assert kept.usage.cached_tokens == 1024
    assert kept.first_byte_s - kept.received_s == kept.ended_s - kept.received_s == 2.0


def test_a_rejected_request_is_kept_with_what_its_client_was_told() -> None:
    bench = Bench(workers=0)
    bench.start(chat())

    kept = only(bench)
    assert (kept.attempt, kept.attempts, kept.outcome, kept.status) == (None, 0, "no_worker_available", 503)
    assert kept.model == "m"
    assert "No worker" in kept.detail


def test_a_request_that_makes_no_sense_is_kept_too(bench: Bench) -> None:
    bench.start(b"{")
    kept = only(bench)
    assert (kept.outcome, kept.status, kept.model, kept.prefix_key) == ("invalid_json", 400, "", 0)


def test_a_failed_request_is_kept_once(bench: Bench) -> None:
    bench.start(chat())
    bench.upstream.answer(b'{"error":{}}', status=400)
    kept = only(bench)
    assert (kept.outcome, kept.status) == ("worker_refused", 400)
    assert kept.attempt is not None


def test_no_prompt_and_no_long_name_is_kept(bench: Bench) -> None:
    bench.start(chat("secret words " * 1000, model="m" * 256))
    bench.upstream.answer(USAGE)
    kept = only(bench)
    assert len(kept.model) == TEXT_CHARS_MAX
    assert "secret" not in repr(kept)


@given(st.integers(0, 30), st.integers(0, 35), st.integers(1, 12))
def test_who_asks_again_gets_what_is_new_and_how_much_was_lost(added: int, cursor: int, limit: int) -> None:
    decisions = RecentDecisions(kept_max=8)
    for _ in range(added):
        decisions.add(decision(decisions.next_number()))

    newest, missed = decisions.since(cursor, limit)

    numbers = [each.number for each in newest]
    assert len(numbers) == min(max(added - cursor, 0), limit, 8)
    assert numbers == list(range(added + 1 - len(numbers), added + 1))
    assert len(numbers) + missed == max(added - cursor, 0)
    assert decisions.cursor == added


def test_how_long_requests_stay_at_a_worker_is_known_of_those_that_were_completed_there(bench: Bench) -> None:
    for seconds in (1.0, 3.0):
        bench.start(chat())
        bench.time.advance(seconds)
        bench.upstream.answer(USAGE)
    (worker,) = {decision.attempt.worker_id for decision in bench.gateway.reports.decisions.since(0)[0]}
    bench.start(b"{")
    assert bench.gateway.reports.decisions.stay_s(worker) == 2.0
    assert bench.gateway.reports.decisions.stay_s({"another:80"}) is None


def test_only_the_newest_stays_count(bench: Bench) -> None:
    for seconds in (50.0, *[1.0] * STAYS_MAX):
        bench.start(chat())
        bench.time.advance(seconds)
        bench.upstream.answer(USAGE)
    assert (
        bench.gateway.reports.decisions.stay_s(
            bench.gateway.reports.decisions.since(0)[0][0].attempt.worker_id
        )
        == 1.0
    )
