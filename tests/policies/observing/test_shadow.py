"""The choice of a second policy; nothing depends on it."""

from collections.abc import Callable

import numpy as np
import pytest

from policies import (
    ANY_BUCKET,
    Candidates,
    FleetState,
    Policy,
    RequestView,
    ScoredRequest,
    Shed,
    make_policy,
    place,
)
from policies.observing.shadow import MODELS_MAX, NEWEST, OTHERS, Comparison, Judged, Shadow

MakeRequest = Callable[..., RequestView]
MakeCandidates = Callable[..., Candidates]

ACTIVE = make_policy("expected_cost")


def weighed(view: RequestView, workers: Candidates, model: str = "m") -> ScoredRequest:
    first = place(view, workers, ACTIVE)
    return ScoredRequest(model, view, workers, workers, ACTIVE, first, ANY_BUCKET)


def shadow(policy: str, ratio: float = 1.0, told: Callable[[Judged | None], None] = lambda _: None) -> Shadow:
    return Shadow(make_policy(policy), FleetState(), ratio, told)


def test_both_choices_are_judged_in_predicted_seconds_and_cached_tokens(
    make_request: MakeRequest, make_candidates: MakeCandidates
) -> None:
    """The active one waits 0.5 s for 3,000 of 4,000 tokens; the least loaded would prefill all 4 s of it."""
    workers = make_candidates(safe_tokens=[3000, 0], backlog_s=[0.5, 0], inflight_requests=[3, 0])
    heard: list[Judged | None] = []
    watching = shadow("least_load", told=heard.append)

    watching.weighed(weighed(make_request(4000), workers))

    assert heard == [Judged(agreed=False, ttft_s=2.5, cached_tokens=-3000.0)]
    found = watching.models["m"]
    assert (found.judged, found.agreed, found.ttft_s, found.cached_tokens) == (1, 0, 2.5, -3000.0)


def test_the_same_policy_always_agrees(make_request: MakeRequest, make_candidates: MakeCandidates) -> None:
    watching = shadow("expected_cost")
    for key in range(50):
        watching.weighed(
            weighed(
                make_request(4000, key=key), make_candidates(safe_tokens=[0, 500, 3000], backlog_s=[0, 1, 3])
            )
        )
    found = watching.models["m"]
    assert (found.judged, found.agreed, found.ttft_s, found.cached_tokens) == (50, 50, 0.0, 0.0)


def test_asking_a_policy_that_takes_turns_moves_nobodys_turn(
    make_request: MakeRequest, make_candidates: MakeCandidates
) -> None:
    """It is asked twice about the turn that the active policy counts, and says the same."""
    heard: list[Judged | None] = []
    watching, workers = shadow("round_robin", told=heard.append), make_candidates(backlog_s=[0, 1, 2])
    for _ in range(2):
        watching.weighed(weighed(make_request(4000, sequence=1), workers))
    assert heard == [Judged(agreed=False, ttft_s=1.0, cached_tokens=0.0)] * 2


@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.5, 1.0])
def test_a_share_of_the_prompts_is_asked_about_and_always_the_same_ones(ratio: float) -> None:
    """For 4,000 prompts four standard deviations of a binomial are at most 127."""
    one, other = shadow("random", ratio), shadow("least_load", ratio)
    asked = [key for key in range(4000) if one.samples(key)]
    assert asked == [key for key in range(4000) if other.samples(key)]
    assert abs(len(asked) - 4000 * ratio) <= 127
    assert ratio not in (0.0, 1.0) or len(asked) == 4000 * ratio


def test_a_request_that_nobody_takes_is_nothing_to_compare(
    make_request: MakeRequest, make_candidates: MakeCandidates
) -> None:
    workers, watching = make_candidates(backlog_s=[0]), shadow("least_load")
    watching.weighed(
        ScoredRequest("m", make_request(4000), workers, workers, ACTIVE, Shed("no_worker", 1.0), ANY_BUCKET)
    )
    assert not watching.models


def test_what_the_second_policy_gives_to_nobody_is_counted_apart(
    make_request: MakeRequest, make_candidates: MakeCandidates
) -> None:
    refusing = Policy("refusing", lambda _, workers: np.full(len(workers), np.inf), uses_cache=False)
    heard: list[Judged | None] = []
    watching = Shadow(refusing, FleetState(), 1.0, heard.append)
    watching.weighed(weighed(make_request(4000), make_candidates(backlog_s=[0, 1])))
    assert (heard, watching.models["m"].unplaced, watching.models["m"].judged) == ([None], 1, 0)


def test_models_that_clients_invent_share_one_line(
    make_request: MakeRequest, make_candidates: MakeCandidates
) -> None:
    watching, workers = shadow("least_load"), make_candidates(backlog_s=[0, 1])
    for number in range(MODELS_MAX + 50):
        watching.weighed(weighed(make_request(4000), workers, f"m{number}"))
    assert len(watching.models) == MODELS_MAX + 1
    assert watching.models[OTHERS].judged == 50


def test_quantiles_are_of_the_newest_and_means_of_all() -> None:
    comparison = Comparison()
    for number in range(NEWEST + 100):
        comparison.add(Judged(agreed=True, ttft_s=float(number >= 100), cached_tokens=-float(number)))
    assert comparison.ttft_s == NEWEST
    assert comparison.quantiles((0.0, 0.5, 1.0)) == ([1.0, 1.0, 1.0], [-1099.0, -599.0, -100.0])
    assert Comparison().quantiles((0.5, 0.9)) == ([0.0, 0.0], [0.0, 0.0])
