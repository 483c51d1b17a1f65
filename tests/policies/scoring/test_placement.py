from collections import Counter
from collections.abc import Callable
from math import inf
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from policies import Candidates, Chosen, RequestView, Shed
from policies.pricing.views import Evictions, Pools, SlowColumns, Spills
from policies.scoring import POLICIES, Policy, make_policy
from policies.scoring.placement import NO_WORKER_RETRY_AFTER_S, Reason, cheapest_row, place

MakeRequest = Callable[..., RequestView]
MakeCandidates = Callable[..., Candidates]

NO_WORKER = Shed("no_worker", NO_WORKER_RETRY_AFTER_S)
DEFAULT = make_policy("expected_cost")


def columns_of(workers: Candidates) -> list[float | list[float]]:
    """All that policies read."""
    columns = (
        *(workers.matched_tokens, workers.safe_tokens, workers.backlog_s, workers.prefill_tokens),
        *(workers.inflight_requests, workers.inflight_tokens, workers.held_tokens),
        *(
            getattr(workers.slow, name)
            for name in SlowColumns.__struct_fields__
            if name not in ("pools", "spills", "evictions", "few")
        ),
        *(getattr(workers.slow.pools, name) for name in Pools.__struct_fields__ if workers.slow.pools),
        *(getattr(workers.slow.spills, name) for name in Spills.__struct_fields__ if workers.slow.spills),
        *(
            getattr(workers.slow.evictions, name)
            for name in Evictions.__struct_fields__
            if workers.slow.evictions
        ),
    )
    return [np.asarray(column).tolist() for column in columns]


SPILLS = ("steps", "visit_token_s", "middle_tokens")
"""Columns of workers of other length buckets."""


@st.composite
def fleets(draw: st.DrawFn, prompt_tokens: float = 4000.0) -> dict[str, list[float]]:
    """Columns of 1 to 6 workers, with values that tie often and backlogs that matter."""
    n = draw(st.integers(1, 6))

    def column(*values: float) -> list[float]:
        return draw(st.lists(st.sampled_from(values), min_size=n, max_size=n))

    steps = column(-1.0, 0.0, 1.0)
    return {
        "worker_hash": draw(st.lists(st.integers(0, 2**64 - 1), min_size=n, max_size=n, unique=True)),
        "safe_tokens": column(0.0, 1000.0, 3000.0, 3999.0, prompt_tokens),
        "backlog_s": column(0.0, 0.5, 3.0, 40.0),
        "prefill_tokens": column(0.0, 500.0, 30_000.0),
        "inflight_requests": column(0.0, 1.0, 2.0, 90.0),
        "inflight_tokens": column(0.0, 4000.0, 100_000.0),
        "held_tokens": column(0.0, 1e5, 1e6),
        "a_s": column(0.0, 0.02),
        "congestion_per_s": column(0.0, 1.0, 20.0),
        **({"transfer_s": column(0.0, 0.2)} if draw(st.booleans()) else {}),
        **(
            {
                "pooled_tokens": column(0.0, 1000.0, 3500.0),
                "base_s": column(0.0, 0.3),
                "token_s": column(0.0, 0.0001),
                "tokens_min": column(0.0, 1e9),
                "patience": column(0.0, 1.0, float("inf")),
            }
            if draw(st.booleans())
            else {}
        ),
        **(
            {
                "steps": steps,
                "visit_token_s": [1e-7 * abs(step) for step in steps],
                "middle_tokens": column(1000.0, 100_000.0),
            }
            if draw(st.booleans())
            else {}
        ),
        **(
            {"evict_token_s": column(0.0, 0.0005, 0.001), "free_tokens": column(0.0, 1500.0, 1e6)}
            if draw(st.booleans())
            else {}
        ),
    }


def test_the_choice_says_what_to_expect(make_request: MakeRequest, make_candidates: MakeCandidates) -> None:
    """3,000 of 4,000 tokens at 1,000/s: 1 s of prefill, 1.5 + 1 + 0.25 s to the first token."""
    workers = make_candidates(
        slots=[11, 12],
        matched_tokens=[0, 3200],
        safe_tokens=[0, 3000],
        backlog_s=[0, 1.5],
        transfer_s=[0, 0.25],
    )

    assert place(make_request(4000), workers, DEFAULT) == Chosen(
        slot=12,
        matched_tokens=3200,
        safe_tokens=3000,
        uncached_tokens=1000,
        service_s=1.0,
        estimated_ttft_s=2.75,
        reason=Reason.AFFINITY,
        queue_s=1.5,
        transfer_s=0.25,
    )


def test_the_choice_holds_plain_numbers(make_request: MakeRequest, make_candidates: MakeCandidates) -> None:
    """They go into msgpack, JSON and logs, which refuse numpy's."""
    chosen = place(make_request(4000.4), make_candidates(safe_tokens=[0.6, 1.0]), DEFAULT)

    assert isinstance(chosen, Chosen)
    assert [type(getattr(chosen, name)) for name in Chosen.__struct_fields__] == [
        int,
        int,
        int,
        int,
        float,
        float,
        Reason,
        int,
        *(float,) * 5,
    ]


def test_a_prefix_match_is_worth_exactly_the_prefill_it_saves(
    make_request: MakeRequest, make_candidates: MakeCandidates
) -> None:
    """3,000 matched tokens at 1,000 tokens/s outweigh a queue of up to three seconds."""
    policy = make_policy("min_ttft")

    warm = place(make_request(4000), make_candidates(safe_tokens=[0, 3000], backlog_s=[0, 2.999]), policy)
    busy = place(make_request(4000), make_candidates(safe_tokens=[0, 3000], backlog_s=[0, 3.001]), policy)

    assert isinstance(warm, Chosen)
    assert isinstance(busy, Chosen)
    assert (warm.slot, busy.slot) == (1, 0)


@pytest.mark.parametrize(
    ("safe", "backlog", "reason"),
    [
        ([0], [0], Reason.ONLY),
        ([3000], [0], Reason.ONLY),
        ([0, 0], [0, 5], Reason.COLD),
        ([3000, 0], [1, 0], Reason.AFFINITY),
        ([3000, 3000], [1, 9], Reason.AFFINITY),
        ([3000, 0], [9, 0], Reason.BALANCED),
        ([3000, 2000], [9, 0], Reason.BALANCED),
    ],
)
def test_the_reason_compares_the_match_of_the_chosen_with_the_longest(
    make_request: MakeRequest,
    make_candidates: MakeCandidates,
    safe: list[float],
    backlog: list[float],
    reason: Reason,
) -> None:
    workers = make_candidates(safe_tokens=safe, backlog_s=backlog)

    chosen = place(make_request(4000), workers, DEFAULT)

    assert isinstance(chosen, Chosen)
    assert chosen.slot == 0 or reason is Reason.BALANCED
    assert chosen.reason == reason


def test_without_a_candidate_it_is_shed(make_request: MakeRequest, make_candidates: MakeCandidates) -> None:
    assert place(make_request(), None, DEFAULT) == NO_WORKER
    assert place(make_request(), make_candidates(slots=[]), DEFAULT) == NO_WORKER


def test_when_the_policy_considers_nobody_it_is_shed(
    make_request: MakeRequest, make_candidates: MakeCandidates
) -> None:
    nobody = Policy("nobody", lambda _, workers: np.full(len(workers), inf), uses_cache=False)

    assert place(make_request(), make_candidates(slots=[0, 1]), nobody) == NO_WORKER


@pytest.mark.parametrize(
    ("costs", "rows"),
    [
        ([3.0, 3.0 + 1e-9, 3.1], {0, 1}),
        ([3.0, 3.0 + 1e-8, 3.1], {0}),
        ([-3.0, -3.0 + 1e-9, 1.0], {0, 1}),
        ([0.0, 1e-12, 0.0], {0, 2}),
        ([inf, 2.0, 2.0], {1, 2}),
    ],
)
def test_costs_a_billionth_apart_are_a_tie(
    make_candidates: MakeCandidates, costs: list[float], rows: set[int]
) -> None:
    workers = make_candidates(slots=[0, 1, 2])

    hashes = workers.worker_hash

    for columns in (costs, np.array(costs)):
        assert {cheapest_row(key, hashes, columns) for key in range(100)} == rows


@pytest.mark.no_cover
@pytest.mark.parametrize("name", [name for name in POLICIES if name != "round_robin"])
def test_ties_spread_evenly_over_workers(
    make_request: MakeRequest, make_candidates: MakeCandidates, name: str
) -> None:
    """1,000 prompts over 8 equal workers: 125 each, give or take 5 standard deviations (10.5)."""
    workers, policy = make_candidates(slots=range(8)), make_policy(name)

    wins = Counter(
        chosen.slot
        for key in range(1000)
        if isinstance(chosen := place(make_request(key=key, prefix_key=key), workers, policy), Chosen)
    )

    assert len(wins) == 8
    assert all(abs(count - 125) < 53 for count in wins.values())


@given(
    columns=fleets(),
    name=st.sampled_from([name for name in POLICIES if name != "round_robin"]),
    key=st.integers(0, 2**64 - 1),
    shuffle=st.randoms(use_true_random=False),
)
def test_the_order_of_the_candidates_does_not_matter(
    make_request: MakeRequest,
    make_candidates: MakeCandidates,
    columns: dict[str, list[float]],
    name: str,
    key: int,
    shuffle: Random,
) -> None:
    order = list(range(len(columns["a_s"])))
    shuffle.shuffle(order)
    shuffled = {column: [values[row] for row in order] for column, values in columns.items()}
    request, policy = make_request(key=key, prefix_key=key), make_policy(name)

    assert place(request, make_candidates(slots=order, **shuffled), policy) == place(
        request, make_candidates(**columns), policy
    )


@given(
    columns=fleets(),
    name=st.sampled_from([name for name in POLICIES if make_policy(name).uses_cache]),
    more=st.floats(1.0, 4000.0),
)
def test_a_longer_match_never_takes_a_request_away(
    make_request: MakeRequest,
    make_candidates: MakeCandidates,
    columns: dict[str, list[float]],
    name: str,
    more: float,
) -> None:
    policy = make_policy(name)
    if policy.price is None:  # its view of other buckets depends on the matches in its own
        columns = {key: values for key, values in columns.items() if key not in SPILLS}
    before = place(make_request(), make_candidates(**columns), policy)
    assert isinstance(before, Chosen)
    safe = list(columns["safe_tokens"])
    safe[before.slot] = min(safe[before.slot] + more, 4000.0)

    after = place(make_request(), make_candidates(**{**columns, "safe_tokens": safe}), policy)

    assert isinstance(after, Chosen)
    assert after.slot == before.slot
    assert after.estimated_ttft_s <= before.estimated_ttft_s


@given(columns=fleets(), name=st.sampled_from(list(POLICIES)), sequence=st.integers(0, 2**40))
def test_a_decision_changes_nothing_it_looked_at(
    make_request: MakeRequest,
    make_candidates: MakeCandidates,
    columns: dict[str, list[float]],
    name: str,
    sequence: int,
) -> None:
    workers = make_candidates(**columns)
    seen = columns_of(workers)

    place(make_request(sequence=sequence), workers, make_policy(name))

    assert columns_of(workers) == seen


def in_columns(workers: Candidates) -> Candidates:
    return structs.replace(workers, slow=structs.replace(workers.slow, few=[], plain=None))


@given(
    columns=fleets(),
    name=st.sampled_from([name for name in POLICIES if make_policy(name).price]),
    key=st.integers(0, 2**64 - 1),
    home=st.integers(-1, 6),
)
def test_a_few_workers_priced_one_by_one_are_priced_as_in_columns(
    make_request: MakeRequest,
    make_candidates: MakeCandidates,
    columns: dict[str, list[float]],
    name: str,
    key: int,
    home: int,
) -> None:
    workers, policy = make_candidates(**columns), make_policy(name)
    request = structs.replace(make_request(key=key), home=home)
    assert policy.price is not None
    timings = workers.timings(request.prompt_tokens, workers.slow.few)
    one_by_one = [policy.price(timing) for timing in timings]

    assert one_by_one == policy.costs(request, workers).tolist()
    assert place(request, workers, policy) == place(request, in_columns(workers), policy)


# Length buckets.

NEAR_AND_FAR = {"steps": [0, 1], "visit_token_s": [0.0, 2.5e-7], "middle_tokens": [2_000.0, 6_000.0]}
"""4,000 tokens are a tenth of their own work more beside others behind 6,000: 2.5e-7·4,000·4,000 = 4 s."""


@pytest.mark.parametrize("name", ["expected_cost", "min_ttft"])
@pytest.mark.parametrize(("backlog_s", "slot"), [(3.9, 0), (4.1, 1)])
def test_a_request_leaves_its_bucket_when_waiting_at_home_costs_more_than_the_price(
    name: str, backlog_s: float, slot: int, make_request: MakeRequest, make_candidates: MakeCandidates
) -> None:
    workers = make_candidates(backlog_s=[backlog_s, 0.0], **NEAR_AND_FAR)
    chosen = place(make_request(4000), workers, make_policy(name))
    assert isinstance(chosen, Chosen)
    assert (chosen.slot, chosen.reason == Reason.SPILLED_UP) == (slot, slot == 1)
    assert chosen.service_s == 4.0, "the price is no part of the prefill"
    assert chosen.estimated_ttft_s == (7.9 if slot == 0 else 4.0), "nor of the time to first token"


def test_a_spill_says_in_which_direction_it_goes(
    make_request: MakeRequest, make_candidates: MakeCandidates
) -> None:
    workers = make_candidates(
        steps=[-1, 0], visit_token_s=[1e-9, 0.0], middle_tokens=[9.0, 9.0], backlog_s=[0.0, 9.0]
    )
    chosen = place(make_request(), workers, DEFAULT)
    assert isinstance(chosen, Chosen)
    assert (chosen.slot, chosen.reason) == (0, Reason.SPILLED_DOWN)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_keeps_to_the_bucket_while_it_is_sooner_there(
    name: str, make_request: MakeRequest, make_candidates: MakeCandidates
) -> None:
    """Three idle neighbours with all that the hashing and counting policies could wish for, at a price."""
    workers = make_candidates(
        worker_hash=[1, 2, 3, 4],
        safe_tokens=[0.0, 3_000.0, 3_000.0, 3_000.0],
        inflight_requests=[9.0, 0.0, 0.0, 0.0],
        backlog_s=[1.0, 0.0, 0.0, 0.0],
        steps=[0, 1, -1, 2],
        visit_token_s=[0.0, 1e-4, 1e-4, 1e-4],
        middle_tokens=[2_000.0, 50_000.0, 1.0, 90_000.0],
    )
    for sequence in range(8):
        chosen = place(make_request(4000, key=sequence, sequence=sequence), workers, make_policy(name))
        assert isinstance(chosen, Chosen)
        assert chosen.slot == 0


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_leaves_a_bucket_that_has_nobody(
    name: str, make_request: MakeRequest, make_candidates: MakeCandidates
) -> None:
    workers = make_candidates(
        safe_tokens=[0.0, 0.0], steps=[1, 1], visit_token_s=[1e-4, 1e-4], middle_tokens=[50_000.0, 50_000.0]
    )
    chosen = place(make_request(4000), workers, make_policy(name))
    assert isinstance(chosen, Chosen)
    assert chosen.reason == Reason.SPILLED_UP


def test_a_policy_that_does_not_count_seconds_takes_a_neighbour_that_is_sooner(
    make_request: MakeRequest, make_candidates: MakeCandidates
) -> None:
    """Only one of two neighbours with the same load, the one worth its price, is considered."""
    workers = make_candidates(
        backlog_s=[30.0, 0.0, 0.0],
        inflight_requests=[5.0, 1.0, 0.0],
        steps=[0, 1, 1],
        visit_token_s=[0.0, 1e-7, 1e-3],
        middle_tokens=[2_000.0, 6_000.0, 600_000.0],
    )
    chosen = place(make_request(4000), workers, make_policy("least_load"))
    assert isinstance(chosen, Chosen)
    assert (chosen.slot, chosen.reason) == (1, Reason.SPILLED_UP)


@pytest.mark.parametrize("n", [3, 40])
@pytest.mark.parametrize(
    ("safe", "backlog", "home", "reason"),
    [
        ([0, 0, 0], [0, 0, 0], True, Reason.SESSION),
        ([0, 0, 0], [0, 0, 0.3], True, Reason.SESSION),
        ([0, 0, 0], [0, 0, 0.5], False, Reason.COLD),
        ([3000, 0, 3000], [0, 9, 0.09], True, Reason.SESSION),
        ([3000, 0, 3000], [0, 9, 0.2], False, Reason.AFFINITY),
        ([3000, 0, 2999], [0, 9, 0], False, Reason.AFFINITY),
        ([3000, 0, 0], [0, 9, 0], False, Reason.AFFINITY),
        ([2999, 0, 3000], [0, 9, 0], True, Reason.AFFINITY),
    ],
)
def test_the_last_worker_of_a_session_is_preferred_among_equals(
    make_request: MakeRequest,
    make_candidates: MakeCandidates,
    n: int,
    safe: list[float],
    backlog: list[float],
    home: bool,
    reason: Reason,
) -> None:
    """It never beats a better cache, nor a tenth of the request's own work."""
    more = n - 3
    workers = make_candidates(
        slots=[*range(5, 5 + n)],
        worker_hash=[*range(10, 10 + n)],
        safe_tokens=[*safe, *[0.0] * more],
        backlog_s=[*backlog, *[90.0] * more],
    )
    if n > 3:
        workers = in_columns(workers)
    for key in range(20):
        chosen = place(structs.replace(make_request(4000, key=key), home=7), workers, DEFAULT)
        assert isinstance(chosen, Chosen)
        assert (chosen.slot == 7) is home
        assert chosen.reason in ((reason, Reason.COLD, Reason.AFFINITY) if home else (reason,))
        unknown = place(structs.replace(make_request(4000, key=key), home=99), workers, DEFAULT)
        assert unknown == place(make_request(4000, key=key), workers, DEFAULT)


@given(fleet=fleets(), name=st.sampled_from(sorted(POLICIES)), key=st.integers(0, 2**64 - 1))
def test_a_session_changes_a_choice_among_near_equals_only(
    make_request: MakeRequest,
    make_candidates: MakeCandidates,
    fleet: dict[str, list[float]],
    name: str,
    key: int,
) -> None:
    workers, policy = make_candidates(**fleet), make_policy(name)
    without = place(make_request(4000, key=key), workers, policy)
    for home in workers.slots.tolist():
        chosen = place(structs.replace(make_request(4000, key=key), home=home), workers, policy)
        if chosen != without:
            assert isinstance(chosen, Chosen)
            assert isinstance(without, Chosen)
            assert (chosen.slot, chosen.reason) == (home, Reason.SESSION)
            assert chosen.safe_tokens >= without.safe_tokens
