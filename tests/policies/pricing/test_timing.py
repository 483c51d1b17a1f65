"""Predicted times of a worker: one assembly for numbers and columns, by terms and by properties."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from policies import Candidates, FleetState, QueueView, Waiting, WorkerPut
from policies.pricing.timing import Timing

MakeCandidates = Callable[..., Candidates]

PROMPT_TOKENS = 4_000.0


def queue(*tickets: tuple[int, int, int], workers: int = 1, committed_s: float = 0.5) -> QueueView:
    """A request with the key 0 + k·x, k = 1, and tickets: worker or -1, key in ms, work in ms."""
    fleet = FleetState()
    for slot in range(workers):
        fleet.apply(WorkerPut(f"w{slot}", 1, "r", f"http://w{slot}"))
    for number, (slot, key_ms, work_ms) in enumerate(tickets):
        worker = f"w{slot}" if slot >= 0 else ""
        fleet.apply(
            Waiting(
                *(f"t{number}", 1, "r", 1, 1000 * key_ms, "m|", worker, "normal/", 1000 * work_ms, 1, 1),
            )
        )
    return QueueView(fleet.tickets if tickets else None, "m|", workers, 0, 1.0, committed_s)


def one(workers: Candidates, view: QueueView | None = None) -> Timing[float]:
    (timing,) = structs.replace(workers, queue=view).timings(PROMPT_TOKENS, workers.slow.few)
    return timing


def test_without_a_queue_everybody_who_comes_later_stays_behind(make_candidates: MakeCandidates) -> None:
    timing = one(make_candidates(backlog_s=[3.0], safe_tokens=[1_000.0], transfer_s=[0.5]))
    assert (timing.ready_s, timing.settled_s, timing.behind) == (3.0, 3.0, 0.0)
    assert (timing.service_s, timing.work_s, timing.transfer_s, timing.safe_tokens) == (
        3.0,
        3.5,
        0.5,
        1_000.0,
    )


@pytest.mark.parametrize(("backlog_s", "settled_s"), [(3.0, 0.5), (0.2, 0.2), (0.0, 0.0)])
def test_with_a_queue_they_stay_behind_only_what_is_in_the_engine(
    backlog_s: float, settled_s: float, make_candidates: MakeCandidates
) -> None:
    assert one(make_candidates(backlog_s=[backlog_s]), queue()).settled_s == settled_s


def test_tickets_ahead_add_to_the_wait_and_those_behind_are_counted(make_candidates: MakeCandidates) -> None:
    """4 s of work: the key is at 4 s. Two tickets go first, and one that is the same is neither."""
    view = queue((0, 3_999, 1_000), (-1, 1_000, 250), (0, 4_000, 7), (0, 4_001, 70), (-1, 9_000, 700))
    timing = one(make_candidates(backlog_s=[1.0]), view)
    assert (timing.ready_s, timing.behind, timing.settled_s) == (pytest.approx(2.25), 2.0, 0.5)


def test_a_fetch_overlaps_what_the_engine_has_and_not_the_tickets_that_go_first(
    make_candidates: MakeCandidates,
) -> None:
    """3,000 of 4,000 tokens within 2 s, of which half a second of the engine's backlog hides 0.5 s."""
    workers = make_candidates(backlog_s=[1.0], pooled_tokens=[3_000.0], base_s=[2.0])
    assert (one(workers).ready_s, one(workers).fetch_s) == (2.0, 2.0)
    timing = one(workers, queue((0, 0, 4_000)))
    assert (timing.ready_s, timing.service_s, timing.fetched_tokens, timing.safe_tokens) == (
        6.5,
        1.0,
        3_000,
        3_000,
    )
    assert one(workers, queue((0, 0, 4_000), committed_s=9.0)).ready_s == 5.0


def test_a_fetch_that_no_queue_hides_is_left_when_computing_is_sooner(
    make_candidates: MakeCandidates,
) -> None:
    workers = make_candidates(backlog_s=[1.0], pooled_tokens=[3_000.0], base_s=[3.6])
    assert one(workers, queue((0, 0, 4_000), committed_s=4.0)).fetched_tokens == 3_000
    timing = one(workers, queue((0, 0, 4_000)))
    assert (timing.fetched_tokens, timing.fetch_s, timing.ready_s) == (0.0, 0.0, 5.0)


@pytest.mark.parametrize(
    ("token_s", "fetched_tokens", "fetch_s"),
    [(0.0001, 8_192, 0.8192), (0.0002, 8_192, 1.6384), (0.0005, 5_600, 2.8), (0.002, 1_400, 2.8)],
)
def test_of_a_fetch_that_the_engine_stops_only_the_part_that_came_counts(
    token_s: float, fetched_tokens: float, fetch_s: float, make_candidates: MakeCandidates
) -> None:
    """SGLang's ``timeout`` waits 2 s, and 0.1 s for each of 8 Ki tokens: 2.8 s."""
    workers = make_candidates(
        pooled_tokens=[8_192.0, 8_192.0], token_s=[token_s] * 2, patience=[1.0, float("inf")], b_s=[0.01] * 2
    )
    timing, patient = workers.timings(10_192.0, workers.slow.few)
    assert (timing.fetched_tokens, timing.fetch_s) == (pytest.approx(fetched_tokens), pytest.approx(fetch_s))
    assert timing.service_s == pytest.approx(0.01 * (10_192 - fetched_tokens))
    assert (patient.fetched_tokens, patient.fetch_s) == (8_192, pytest.approx(8_192 * token_s))


@pytest.mark.parametrize(
    ("patience", "committed_s", "fetched_tokens", "ready_s"),
    [
        (0.0, 0.0, 0.0, 3.0),
        (0.0, 0.5, 500.0, 3.0),
        (1.0, 0.5, 2_390.625, 4.890625),
        (1.0, 3.0, 3_000.0, 3.0),
        (float("inf"), 0.5, 4_000.0, 6.5),
    ],
)
def test_a_fetch_goes_on_for_as_long_as_the_request_waits_in_the_engine(
    patience: float,
    committed_s: float,
    fetched_tokens: float,
    ready_s: float,
    make_candidates: MakeCandidates,
) -> None:
    """A fetch of 4 s behind a backlog of 3 s, of which the engine has so much and the gateway the rest."""
    workers = make_candidates(
        backlog_s=[3.0], pooled_tokens=[4_000.0], token_s=[0.001], patience=[patience], b_s=[0.002]
    )
    timing = one(workers, queue(committed_s=committed_s))
    assert timing.fetched_tokens == pytest.approx(fetched_tokens)
    assert timing.ready_s == pytest.approx(ready_s)


@pytest.mark.parametrize(
    ("patience", "fetched_tokens", "ready_s"), [(0.0, 4_000.0, 4.0), (1.0, 2_390.625, 3.0)]
)
def test_without_a_queue_no_predicted_backlog_counts_as_time_for_a_fetch(
    patience: float, fetched_tokens: float, ready_s: float, make_candidates: MakeCandidates
) -> None:
    """The learned factor alone stands for the tokens that ``best_effort`` fetches in time."""
    workers = make_candidates(
        backlog_s=[3.0], pooled_tokens=[4_000.0], token_s=[0.001], patience=[patience], b_s=[0.002]
    )
    timing = one(workers)
    assert timing.fetched_tokens == pytest.approx(fetched_tokens)
    assert timing.ready_s == ready_s


def test_no_fetch_is_waited_for_longer_than_half_a_minute(make_candidates: MakeCandidates) -> None:
    workers = make_candidates(pooled_tokens=[1e6], token_s=[0.001], patience=[1.0], b_s=[0.01])
    (timing,) = workers.timings(1e6, workers.slow.few)
    assert (timing.fetched_tokens, timing.fetch_s) == (pytest.approx(30_000), 30.0)


def test_an_engine_that_waits_less_than_the_pool_takes_to_answer_fetches_nothing(
    make_candidates: MakeCandidates,
) -> None:
    workers = make_candidates(
        pooled_tokens=[3_000.0], base_s=[2.5], token_s=[1e-6], tokens_min=[256.0], patience=[1.0]
    )
    timing = one(workers)
    assert (timing.fetched_tokens, timing.fetch_s, timing.service_s) == (0.0, 0.0, 4.0)


@pytest.mark.parametrize(
    ("safe_tokens", "free_tokens", "evict_s"),
    [(0, 0, 2.0), (0, 1_500, 1.25), (3_000, 1_000, 0.0), (3_000, 400, 0.3)],
)
def test_only_what_does_not_fit_beside_its_own_match_is_pushed_out(
    safe_tokens: float, free_tokens: float, evict_s: float, make_candidates: MakeCandidates
) -> None:
    workers = make_candidates(safe_tokens=[safe_tokens], evict_token_s=[0.0005], free_tokens=[free_tokens])
    timing = one(workers)
    assert timing.evict_s == pytest.approx(evict_s)
    assert timing.work_s == timing.service_s, "what is pushed out is no part of the work"


def test_a_worker_of_which_no_cache_is_known_pushes_nothing_out(make_candidates: MakeCandidates) -> None:
    few = make_candidates(evict_token_s=[0.0, 0.0005], free_tokens=[0.0, 0.0])
    assert [each.evicting is None for each in few.slow.few] == [True, False]
    assert [each.evict_s for each in few.timings(PROMPT_TOKENS, few.slow.few)] == [0.0, 2.0]


@pytest.mark.parametrize(("load_s", "service_s"), [(0.5, 3.0), (3.5, 3.5)])
def test_loading_from_host_memory_runs_beside_the_prefill(
    load_s: float, service_s: float, make_candidates: MakeCandidates
) -> None:
    workers = make_candidates(safe_tokens=[1_000.0, 1_000.0], transfer_s=[0.5, 0.5])
    loading, not_loading = structs.replace(workers, loads_s={0: load_s}).timings(
        PROMPT_TOKENS, workers.slow.few
    )
    assert (loading.service_s, loading.work_s) == (service_s, service_s + 0.5)
    assert not_loading.service_s == 3.0


@given(st.data())
def test_numbers_and_columns_are_the_same(make_candidates: MakeCandidates, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 4))

    def column(*values: float) -> list[float]:
        return data.draw(st.lists(st.sampled_from(values), min_size=n, max_size=n))

    columns: dict[str, Any] = {
        "safe_tokens": column(0.0, 1_000.0, 3_999.0),
        "backlog_s": column(0.0, 0.3, 3.0),
        "congestion_per_s": column(0.0, 2.0),
        **({"transfer_s": column(0.0, 0.2)} if data.draw(st.booleans()) else {}),
    }
    if data.draw(st.booleans()):
        columns |= {
            "pooled_tokens": column(0.0, 2_000.0, 3_999.0),
            "base_s": column(0.0, 0.3),
            "token_s": column(0.0, 0.0002),
        }
    if data.draw(st.booleans()):
        columns |= {"evict_token_s": column(0.0, 0.001), "free_tokens": column(0.0, 2_500.0)}
    ticket = st.tuples(st.integers(-1, n - 1), st.integers(0, 6_000), st.integers(1, 900))
    tickets = data.draw(st.none() | st.lists(ticket, max_size=10))
    view = None if tickets is None else queue(*tickets, workers=n)
    loads_s = data.draw(st.dictionaries(st.integers(0, n - 1), st.sampled_from([0.1, 9.0])))
    workers = structs.replace(make_candidates(**columns), queue=view, loads_s=loads_s)

    times = workers.times(PROMPT_TOKENS)
    for row, timing in enumerate(workers.timings(PROMPT_TOKENS, workers.slow.few)):
        assert timing.slot == row
        for name in Timing.__struct_fields__[1:]:
            of_row = np.broadcast_to(np.asarray(getattr(times, name), dtype=np.float64), n)[row]
            assert of_row == pytest.approx(getattr(timing, name)), name
