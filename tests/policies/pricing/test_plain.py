"""The loop over a few workers without options, against the assembly of all terms."""

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from policies import Candidates, Chosen, Policy, QueueView, RequestView, make_policy
from policies.disaggregation.ships import Ships
from policies.pricing.plain import plain_rows
from policies.pricing.timing import Prices
from policies.pricing.views import Copying
from policies.scoring.placement import place
from radix import Match

MakeCandidates = Callable[..., Candidates]
MakeRequest = Callable[..., RequestView]

PROMPT_TOKENS = 4_000.0

POLICIES = [make_policy("expected_cost"), make_policy("min_ttft")]


@pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
@pytest.mark.parametrize("alike", [False, True], ids=["different", "alike"])
@given(data=st.data(), policy=st.sampled_from(POLICIES))
def test_the_numbers_are_those_of_the_assembly_bit_for_bit(
    make_candidates: MakeCandidates, data: st.DataObject, policy: Policy, *, alike: bool, split: bool
) -> None:
    n = data.draw(st.integers(1, 5))

    def column(low: float, high: float) -> list[float]:
        return data.draw(st.lists(st.floats(low, high), min_size=n, max_size=n))

    if not alike:
        safe_tokens = column(0.0, PROMPT_TOKENS)
        models = [column(0.0, 1.0), column(1e-6, 1e-3), column(1e3, 1e6)]
    else:  # workers in a row have model and match in common
        two = st.sampled_from([(0.01, 1e-4, 1e4), (0.02, 1e-5, 1e4)])
        safe_tokens = data.draw(st.lists(st.sampled_from([0.0, 512.0]), min_size=n, max_size=n))
        models = list(map(list, zip(*data.draw(st.lists(two, min_size=n, max_size=n)), strict=True)))
    workers = make_candidates(
        safe_tokens=safe_tokens,
        backlog_s=column(0.0, 9.0),
        a_s=models[0],
        b_s=models[1],
        c0_tokens=models[2],
        congestion_per_s=column(0.0, 20.0),
        evict_token_s=data.draw(st.lists(st.sampled_from([0.0, 1e-4]), min_size=n, max_size=n)),
        free_tokens=column(0.0, 2 * PROMPT_TOKENS),
    )
    if split:
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
    plain = workers.slow.plain
    assert plain is not None
    groups = plain.by_match(
        workers.matches, workers.tokens_per_block, workers.prompt_tokens, windowed=workers.windowed
    )
    offers = plain.offers(
        groups,
        PROMPT_TOKENS,
        workers.loads,
        workers.now_us,
        inf if committed_s is None else committed_s,
        None if workers.ships is None else partial(workers.ships.at, workers.loads),
        counts_others=policy.counts_others,
    )

    timings = zip(workers.worker_hash.tolist(), workers.timings(PROMPT_TOKENS, workers.slow.few), strict=True)
    assert offers == [
        (
            policy.price(timing),
            worker_hash,
            timing.slot,
            timing.safe_tokens,
            timing.ready_s,
            timing.work_s,
            timing.service_s,
        )
        for worker_hash, timing in timings
    ]
    assert plain.slots == [offer[2] for offer in offers]


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
    assert make_candidates(backlog_s=[1.0, 2.0]).slow.plain is not None
    assert make_candidates(backlog_s=[1.0, 2.0], **option).slow.plain is None


@pytest.mark.parametrize(
    ("option", "expected"),
    [({}, 0), ({"loads_s": {0: 20.0}}, 1), ({"copying": Copying(400.0, 5.0)}, 1)],
    ids=["none", "host memory", "a hot prefix"],
)
def test_options_of_a_request_count_in_its_placement(
    make_candidates: MakeCandidates, make_request: MakeRequest, option: dict[str, Any], expected: int
) -> None:
    workers = make_candidates(backlog_s=[1.0, 2.0], safe_tokens=[500.0, 0.0])
    workers = structs.replace(workers, **option)

    chosen = place(make_request(prompt_tokens=PROMPT_TOKENS), workers, POLICIES[0])

    assert isinstance(chosen, Chosen)
    assert chosen.slot == expected


SLOTS = (0, 3, 4, 70)
ELSEWHERE = (1, 2, 90)


@given(depths=st.dictionaries(st.sampled_from(SLOTS + ELSEWHERE), st.integers(1, 4)))
def test_each_worker_has_the_match_of_the_set_that_it_is_in(depths: dict[int, int]) -> None:
    sets = [
        (sum(1 << slot for slot, depth in depths.items() if depth == each), each)
        for each in sorted(set(depths.values()))
    ]
    match = Match(4, 128, sets)
    plain = plain_rows([Prices(slot, 0.0, 1.0, 1.0, 0.0) for slot in SLOTS], range(4))
    assert plain is not None

    tokens = np.minimum(match.safe[list(SLOTS)] * 100.0, 350.0).tolist()

    groups = plain.by_match([match], 100.0, 350.0, windowed=False)
    found = {row[1]: safe_tokens for safe_tokens, rows in groups for row in rows}
    assert found == dict(zip(SLOTS, tokens, strict=True))
    assert sum(len(rows) for _, rows in groups) == len(SLOTS)
