"""The recent decisions of requests that ended, through the gateway that ends them."""

from fakes.gateway import Bench, chat
from hypothesis import given
from hypothesis import strategies as st

from router.errors import StreamBroken
from router.gateway.endpoints import Endpoint
from router.gateway.parsing import ParsedRequest
from router.gateway.recent_decisions import (
    SHORT_BYTES_MAX,
    STAYS_MAX,
    TEXT_CHARS_MAX,
    RecentDecision,
    RecentDecisions,
    _Packed,
)

USAGE = (
    b'{"usage":{"prompt_tokens":1250,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":1024}}}'
)


def decision(blocks: int | None = None, prompts: int = 1) -> RecentDecision:
    """Return one whose prompts have so many blocks each, or none."""
    if blocks is None:
        return RecentDecision(b"", "", 0.0, 0)
    paths = (bytes(8 * blocks),) * prompts
    parsed = ParsedRequest(Endpoint.CHAT, "m", False, None, 1, 0, "", "", paths, 0, 256 * blocks, 1, 1)
    return RecentDecision(b"", "", 0.0, 0, parsed=parsed)


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
    assert kept.answered_s - kept.received_s == kept.ended_s - kept.received_s == 2.0


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


def test_no_prompt_and_no_long_text_is_kept() -> None:
    bench = Bench(reliability={"disable_retries": True})
    bench.start(chat("secret words " * 1000, model="m" * 256))
    bench.upstream.fail(StreamBroken("long " * 1000))
    kept = only(bench)
    assert (len(kept.model), len(kept.detail)) == (256, TEXT_CHARS_MAX)
    assert "secret" not in repr(kept)


@given(st.integers(0, 30), st.integers(0, 35), st.integers(1, 12))
def test_who_asks_again_gets_what_is_new_and_how_much_was_lost(added: int, cursor: int, limit: int) -> None:
    decisions = RecentDecisions(kept_max=8)
    for _ in range(added):
        decisions.add(decision())

    newest, missed = decisions.since(cursor, limit)

    numbers = [each.number for each in newest]
    assert len(numbers) == min(max(added - cursor, 0), limit, 8)
    assert numbers == list(range(added + 1 - len(numbers), added + 1))
    assert len(numbers) + missed == max(added - cursor, 0)
    assert decisions.cursor == added


@given(st.lists(st.tuples(st.integers(0, 600), st.integers(1, 3)), max_size=40), st.integers(1, 12))
def test_the_hashes_of_the_newest_long_prompts_are_kept_within_their_bound(
    prompts: list[tuple[int, int]], kilobytes: int
) -> None:
    decisions = RecentDecisions(hashes_bytes_max=kilobytes * 1024)
    for blocks, count in prompts:
        decisions.add(decision(blocks, count))

    long_bytes = 0
    for (blocks, count), kept in zip(reversed(prompts), reversed(decisions.since(0)[0]), strict=True):
        assert kept.parsed is not None
        assert (kept.model, kept.prefix_key) == ("m", 1)
        if count == 1 and 8 * blocks <= SHORT_BYTES_MAX:
            assert kept.parsed.paths
            continue
        long_bytes += 8 * blocks * count
        assert bool(kept.parsed.paths) is (long_bytes <= kilobytes * 1024)


def test_the_newest_are_unpacked_one_by_one(bench: Bench) -> None:
    for number in range(3):
        bench.start(chat(), headers=[(b"x-request-id", b"%d" % number)])
        bench.upstream.answer(USAGE)
    decisions = bench.gateway.reports.decisions
    decisions._ring[0] = b"is not looked at"
    newest, left_out = decisions.latest(0)
    assert ([next(newest).request_id for _ in range(2)], left_out) == ([b"2", b"1"], 0)


def test_a_packed_decision_has_the_first_fields_of_one() -> None:
    packed = _Packed.__struct_fields__
    assert RecentDecision.__struct_fields__[: len(packed)] == packed


def test_what_left_the_ring_is_not_kept_for_its_few_hashes() -> None:
    decisions = RecentDecisions(kept_max=8)
    for _ in range(100):
        decisions.add(decision(blocks=1, prompts=2))
    assert len(decisions._long) == 8
    assert all(kept.parsed is not None and kept.parsed.paths for kept in decisions.since(0)[0])


def test_the_end_of_a_long_path_is_not_kept() -> None:
    decisions = RecentDecisions()
    decisions.add(RecentDecision(b"/more/" + b"x" * 30_000, "", 0.0, 0))
    assert len(decisions.since(0)[0][0].path) == TEXT_CHARS_MAX


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


def test_a_packed_decision_says_what_the_request_said(bench: Bench) -> None:
    """Its tenant is a name only; large hashes and all kinds of counts come back."""
    ended: list[RecentDecision] = []
    decisions = bench.gateway.reports.decisions
    add = decisions.add
    decisions.add = lambda each: (ended.append(each), add(each))[1]  # type: ignore[method-assign]
    bench.start(chat("long enough for a block " * 100), headers=[(b"x-request-id", b"mine")])
    bench.upstream.answer(USAGE)
    assert isinstance(decisions._ring[-1], bytes)
    kept, record = only(bench), ended[0]
    for name in RecentDecision.__struct_fields__:
        if name != "tenant":
            assert getattr(kept, name) == getattr(record, name), name
    assert kept.tenant.name == record.tenant.name
    mine = decisions.newest_of("mine")
    assert mine is not None
    assert mine.number == kept.number
    assert decisions.newest_of("another") is None


def test_rare_decisions_and_long_prompts_stay_objects() -> None:
    decisions = RecentDecisions()
    rare = decision(2)
    rare.model_choice = {"asked": "a"}
    for each in (rare, decision(SHORT_BYTES_MAX), decision(2, prompts=2), decision()):
        decisions.add(each)
    assert decisions.since(0)[0] == list(decisions._ring)


def test_a_decision_that_cannot_be_packed_stays_an_object(bench: Bench) -> None:
    """A policy of one's own may return numbers of another type, or too large ones."""
    bench.start(chat())
    bench.upstream.answer(USAGE)
    decisions, kept = RecentDecisions(), only(bench)
    for odd in (2**80, object()):
        kept.ended_us = odd  # type: ignore[assignment]
        decisions.add(kept)
        assert decisions._ring[-1] is kept
