from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from policies import Candidates, FleetState, QueueView, RequestView, Waiting, WorkerPut
from policies.scoring import make_policy

MakeRequest = Callable[..., RequestView]
MakeCandidates = Callable[..., Candidates]

seconds = st.floats(0.0, 1e3)


def test_a_match_saves_its_prefill_and_what_that_prefill_takes_from_others(
    make_request: MakeRequest, make_candidates: MakeCandidates
) -> None:
    """4,000 tokens at 1,000/s, kappa 0.5.

    warm: x = 1, V' = 2: 2 + 1 + 0.5·1·2.5 = 4.25.     idle: x = 4, V' = 0: 4 + 0.5·4·2 = 8.
    Without kappa they would be 3 and 4.
    """
    workers = make_candidates(safe_tokens=[3000, 0], backlog_s=[2, 0], congestion_per_s=[0.5, 0.5])

    assert make_policy("expected_cost").costs(make_request(4000), workers).tolist() == [4.25, 8.0]


def test_a_fetch_overlaps_the_backlog_and_a_transfer_adds_to_the_work(
    make_request: MakeRequest, make_candidates: MakeCandidates
) -> None:
    """With kappa 0.5 and 3,000 of 4,000 in the pool of the first two: s = 1 behind the fetch.

    F = 2 over V = 1:  V' = 2, x = 1: 3 + 0.5·1·2.5 = 4.25.     V = 2 over F = 1: the same.
    X = 1:             V' = 0, x = 2: 2 + 0.5·2·1 = 3.
    """
    workers = make_candidates(
        safe_tokens=[0, 0, 3000],
        pooled_tokens=[3000, 3000, 0],
        base_s=[2, 1, 0],
        backlog_s=[1, 2, 0],
        transfer_s=[0, 0, 1],
        congestion_per_s=[0.5, 0.5, 0.5],
    )

    assert make_policy("expected_cost").costs(make_request(4000), workers).tolist() == [4.25, 4.25, 3.0]


def test_a_fetch_is_taken_only_where_it_answers_sooner_and_is_not_too_small(
    make_request: MakeRequest, make_candidates: MakeCandidates
) -> None:
    """1,000 of 4,000 held and kappa 0: 3 s.

    1,000 more from the pool at 1 ms each save nothing, at 0.5 ms half a second on an idle worker and all of
    it behind a backlog of 5 s; 255 tokens are not fetched.
    """
    workers = make_candidates(
        safe_tokens=[1000, 1000, 1000, 1000],
        pooled_tokens=[2000, 2000, 2000, 1255],
        token_s=[0.001, 0.0005, 0.0005, 0],
        tokens_min=[256, 256, 256, 256],
        backlog_s=[0, 0, 5, 0],
    )

    assert make_policy("expected_cost").costs(make_request(4000), workers).tolist() == [3.0, 2.5, 7.0, 3.0]


def test_a_token_behind_a_long_context_costs_more(
    make_request: MakeRequest, make_candidates: MakeCandidates
) -> None:
    """c0 = 1,000, c = 1,000, u = 2,000, a = 0.5: s = 0.5 + 2·(1 + 2000/1000) = 6.5."""
    workers = make_candidates(safe_tokens=[1000], a_s=[0.5], c0_tokens=[1000])

    assert make_policy("expected_cost").costs(make_request(3000), workers).tolist() == [6.5]


@given(st.lists(st.tuples(st.floats(0.0, 4000.0), seconds, seconds, seconds), min_size=1, max_size=8))
def test_where_nobody_else_waits_it_is_the_time_to_first_token(
    make_request: MakeRequest,
    make_candidates: MakeCandidates,
    rows: list[tuple[float, float, float, float]],
) -> None:
    safe, backlog, fetch, transfer = zip(*rows, strict=True)
    workers = make_candidates(
        safe_tokens=safe,
        pooled_tokens=[4000.0] * len(rows),
        base_s=fetch,
        backlog_s=backlog,
        transfer_s=transfer,
    )

    np.testing.assert_allclose(
        make_policy("expected_cost").costs(make_request(), workers),
        make_policy("min_ttft").costs(make_request(), workers),
        rtol=1e-12,
    )


def test_who_comes_later_is_delayed_only_by_what_is_in_the_engine(
    make_request: MakeRequest, make_candidates: MakeCandidates
) -> None:
    """4 s of work behind 3 s, kappa 0.5 and a target of 0.5 s: 3 + 4 + 0.5·4·(0.5 + 2) = 12, without 17."""
    workers = make_candidates(backlog_s=[3], congestion_per_s=[0.5])
    policy, queue = make_policy("expected_cost"), QueueView(None, "m|", 1, 0, 4.0, 0.5)
    assert policy.costs(make_request(4000), workers).tolist() == [17.0]
    assert policy.costs(make_request(4000), structs.replace(workers, queue=queue)).tolist() == [12.0]


def test_each_ticket_that_is_overtaken_is_delayed_by_the_work(
    make_request: MakeRequest, make_candidates: MakeCandidates
) -> None:
    """4 s of work: 4 + 2·4, and the ticket ahead adds its own second."""
    fleet = FleetState()
    fleet.apply(WorkerPut("w", 1, "r", "http://w"))
    for number, key_us in enumerate((1, 10_000_000, 20_000_000)):
        fleet.apply(Waiting(f"t{number}", 1, "r", 1, key_us, "m|", "w", "normal/", 1_000_000, 1, 1))
    queue = QueueView(fleet.tickets, "m|", 1, 0, 1.0, 0.5)
    workers = structs.replace(make_candidates(backlog_s=[0]), queue=queue)
    assert make_policy("expected_cost").costs(make_request(4000), workers).tolist() == [13.0]


def test_what_is_pushed_out_of_a_cache_is_paid_for(
    make_request: MakeRequest, make_candidates: MakeCandidates
) -> None:
    """3,000 of 4,000 tokens do not fit: 3 s of work, wanted again with a chance of a half."""
    workers = make_candidates(evict_token_s=[0.0005, 0.0005, 0], free_tokens=[1000, 4000, 0])
    assert make_policy("expected_cost").costs(make_request(4000), workers).tolist() == [5.5, 4.0, 4.0]
