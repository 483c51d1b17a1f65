"""The loop over a few workers without options, against the assembly of all terms."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from policies import Candidates, Policy, QueueView, make_policy
from policies.disaggregation.ships import Ships
from policies.pricing.plain import plain_rows
from policies.pricing.timing import Prices
from radix import Match

MakeCandidates = Callable[..., Candidates]

PROMPT_TOKENS = 4_000.0

POLICIES = [make_policy("expected_cost"), make_policy("min_ttft")]


@given(data=st.data(), policy=st.sampled_from(POLICIES))
def test_the_numbers_are_those_of_the_assembly_bit_for_bit(
    make_candidates: MakeCandidates, data: st.DataObject, policy: Policy
) -> None:
    n = data.draw(st.integers(1, 5))

    def column(low: float, high: float) -> list[float]:
        return data.draw(st.lists(st.floats(low, high), min_size=n, max_size=n))

    workers = make_candidates(
        safe_tokens=column(0.0, PROMPT_TOKENS),
        backlog_s=column(0.0, 9.0),
        a_s=column(0.0, 1.0),
        b_s=column(1e-6, 1e-3),
        c0_tokens=column(1e3, 1e6),
        congestion_per_s=column(0.0, 20.0),
        evict_token_s=data.draw(st.lists(st.sampled_from([0.0, 1e-4]), min_size=n, max_size=n)),
        free_tokens=column(0.0, 2 * PROMPT_TOKENS),
    )
    if data.draw(st.booleans()):
        routes, seconds = (
            np.array(data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))),
            st.floats(0, 9),
        )
        prices = [np.array([0.0, data.draw(seconds), data.draw(seconds)]) for _ in range(4)]
        ships = Ships(routes, *prices, splits=(routes > 0) * 1.0)
        workers.loads.inflight_requests[:n] = data.draw(st.integers(0, 9))
        workers = structs.replace(workers, ships=ships)
    committed_s = data.draw(st.none() | st.floats(0.1, 4.0))
    if committed_s is not None:
        workers = structs.replace(workers, queue=QueueView(None, "m|", n, 0, 1.0, committed_s))

    assert policy.price is not None
    assert policy.counts_others is not None
    times = workers.plain_times(PROMPT_TOKENS, counts_others=policy.counts_others)

    assert times is not None
    timings = workers.timings(PROMPT_TOKENS, workers.few)
    assert times.costs == [policy.price(timing) for timing in timings]
    for name, numbers in (
        ("slot", times.slots),
        ("safe_tokens", times.safe_tokens),
        ("ready_s", times.readies_s),
        ("work_s", times.works_s),
        ("service_s", times.services_s),
    ):
        assert numbers == [getattr(timing, name) for timing in timings]


@pytest.mark.parametrize(
    "option",
    [
        {"pooled_tokens": [0.0, 10.0]},
        {"steps": [0, 1], "visit_token_s": [0.0, 1e-7], "middle_tokens": [1e3, 1e5]},
    ],
)
def test_workers_with_an_option_are_left_to_the_assembly(
    make_candidates: MakeCandidates, option: dict[str, list[float]]
) -> None:
    assert make_candidates(backlog_s=[1.0, 2.0]).plain_times(PROMPT_TOKENS, counts_others=True) is not None
    workers = make_candidates(backlog_s=[1.0, 2.0], **option)
    assert workers.plain_times(PROMPT_TOKENS, counts_others=True) is None


def test_a_prompt_in_host_memory_is_left_to_the_assembly(make_candidates: MakeCandidates) -> None:
    workers = structs.replace(make_candidates(backlog_s=[1.0, 2.0]), loads_s={1: 0.5})
    assert workers.plain_times(PROMPT_TOKENS, counts_others=True) is None


SLOTS = (0, 3, 4, 70)
ELSEWHERE = (1, 2, 90)


@given(depths=st.dictionaries(st.sampled_from(SLOTS + ELSEWHERE), st.integers(1, 4)))
def test_each_worker_has_the_match_of_the_set_that_it_is_in(depths: dict[int, int]) -> None:
    sets = [
        (sum(1 << slot for slot, depth in depths.items() if depth == each), each)
        for each in sorted(set(depths.values()))
    ]
    match = Match(4, 128, [workers for workers, _ in sets], [depth for _, depth in sets])
    rows = plain_rows([Prices(slot, 0.0, 1.0, 1.0, 0.0) for slot in SLOTS])
    assert rows is not None

    tokens = np.minimum(match.safe[list(SLOTS)] * 100.0, 350.0)

    assert rows.matched_tokens(match, 100.0, 350.0) == tokens.tolist()
