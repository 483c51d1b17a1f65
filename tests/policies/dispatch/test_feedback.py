"""Lessons of answers, and conclusions that they do not allow.

Prompts of 16 KiB: 16 blocks of 1 KiB, 4,096 tokens at 4 bytes per token.
"""

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from fakes.gateway import FakeShared

from policies import (
    FULL_ATTENTION,
    Attempt,
    BareRequest,
    BytesPerToken,
    CachePool,
    CapacityLearned,
    Chosen,
    DecodeFitted,
    EarlyRatio,
    EndGone,
    EndReach,
    Feedback,
    FetchTime,
    FirstToken,
    Fitted,
    FleetRules,
    Forget,
    OpLog,
    Placed,
    ServiceModel,
    Tracked,
    Trim,
    Usage,
    WorkerPut,
)
from policies.dispatch.feedback import FITTED_MIN
from policies.estimates.decodes import OBSERVATIONS_MIN
from radix import AttentionProfile

NOW_US = 1_700_000_000_000_000
TOKENS_PER_BLOCK = 256.0


def path(blocks: int, branch: int = 0, common: int = 0) -> bytes:
    """Blocks of one branch behind a common start."""
    numbers = [*range(1, common + 1), *(1000 * (branch + 1) + n for n in range(common, blocks))]
    return b"".join(number.to_bytes(8, "little") for number in numbers)


def request(blocks: int = 16, **changes: Any) -> BareRequest:
    """A text prompt."""
    given = BareRequest("m", (path(blocks),), 1024 * blocks, 1, 1)
    return msgspec.structs.replace(given, **changes)


def attempt(matched_blocks: int = 0, blocks: int = 16, *, backlog_s: float = 0.0, **changes: Any) -> Attempt:
    """Placed on a worker that is idle, or has this to do first."""
    matched_tokens = round(TOKENS_PER_BLOCK * matched_blocks)
    uncached_tokens = round(TOKENS_PER_BLOCK * (blocks - matched_blocks))
    chosen = Chosen(0, matched_tokens, matched_tokens, uncached_tokens, 0.3, backlog_s + 0.3, "cold")
    given = Attempt("a1", "w:80", chosen, NOW_US, NOW_US, TOKENS_PER_BLOCK, 0.0)
    return msgspec.structs.replace(given, **changes)


class Setup:
    def __init__(self, rules: FleetRules | None = None) -> None:
        self.shared = FakeShared(rules)
        self.shared.publish(WorkerPut("w:80", NOW_US, "r1", "http://w:80"))
        self.feedback = Feedback(
            self.shared.fleet, OpLog("r1", self.shared.publish, lambda: NOW_US), bytes_per_token=4.0
        )
        self.now_us = NOW_US

    def answer(
        self,
        prompt_tokens: int = 4096,
        cached_tokens: int | None = None,
        *,
        ttft_s: float | None = None,
        decode: tuple[float, int] = (0.0, 1),
        asked: BareRequest | None = None,
        tried: Attempt | None = None,
    ) -> None:
        """One answer, two seconds after the one before."""
        self.now_us += 2_000_000
        usage = Usage(prompt_tokens, cached_tokens, decode[1])
        self.feedback.answered(asked or request(), tried or attempt(), usage, ttft_s, self.now_us, decode[0])

    def place(self, blocks: bytes, at_us: int, request_id: str = "a1") -> None:
        self.shared.publish(Placed(request_id, at_us, "w:80", "r1", 1, 1, 1, (blocks,)))

    def held(self, blocks: bytes) -> int:
        """Leading blocks that the tree believes the worker to hold."""
        return int(self.shared.fleet.tree.match(blocks, FULL_ATTENTION).matched[0])


@pytest.fixture
def setup() -> Setup:
    return Setup()


# Corrections of the tree.


WINDOWS = AttentionProfile("sliding_window", 128)


def test_sglangs_answer_tells_where_the_next_prompt_can_go_on(setup: Setup) -> None:
    """4,100 tokens and an answer of 700 end in the third block behind the 16 of the prompt."""
    setup.answer(4100, 0, tried=attempt(windowed=True, sglang=WINDOWS), decode=(1.0, 701))

    (told,) = setup.shared.said(EndReach)
    assert (told.worker, told.path, told.blocks) == ("w:80", path(16)[-8:], 2)
    tree = setup.shared.fleet.tree
    setup.place(path(16), NOW_US)
    assert tree.match(path(20), WINDOWS).safe.tolist() == [18]


def test_a_worker_that_only_prefilled_keeps_no_answer(setup: Setup) -> None:
    usage = Usage(4100, 0, 701)
    tried = attempt(windowed=True, sglang=WINDOWS)
    setup.feedback.answered(request(), tried, usage, None, NOW_US, decodes=False)

    assert [told.blocks for told in setup.shared.said(EndReach)] == [0]


def test_of_other_engines_and_of_one_that_tells_its_removals_no_reach_is_told(setup: Setup) -> None:
    setup.answer(4100, 0, tried=attempt(windowed=True), decode=(1.0, 701))
    setup.shared.publish(Tracked("w:80", NOW_US, "r1", exact=True))
    asked = request(prompt_bytes=0, prompt_token_ids=4100)
    setup.answer(4100, 0, asked=asked, tried=attempt(windowed=True, sglang=WINDOWS), decode=(1.0, 701))

    assert not setup.shared.said(EndReach)


def test_a_prediction_that_came_true_corrects_nothing(setup: Setup) -> None:
    setup.answer(4096, 4096, tried=attempt(16))
    setup.answer(4096, 4000, tried=attempt(15))
    assert not setup.shared.said(Trim)


def test_what_the_worker_no_longer_had_is_trimmed(setup: Setup) -> None:
    """1,024 of 4,096 tokens: four blocks, five with the slack; the sixth is the first that is gone."""
    setup.place(path(16), NOW_US - 10)
    setup.answer(4096, 1024, tried=attempt(16))
    (trim,) = setup.shared.said(Trim)
    assert (trim.worker, trim.path, trim.before_us) == ("w:80", path(16)[: 8 * 6], NOW_US)
    assert setup.held(path(16)) == 5


def test_of_a_worker_whose_engine_says_what_it_removes_nothing_is_trimmed(setup: Setup) -> None:
    """Its events name token ids: of text they say nothing."""
    ids = request(prompt_bytes=0, prompt_token_ids=4096)
    setup.shared.publish(Tracked("w:80", NOW_US, "r1", exact=True))
    setup.answer(4096, 1024, asked=ids, tried=attempt(16))
    assert not setup.shared.said(Trim)
    setup.answer(4096, 1024, tried=attempt(16))
    assert len(setup.shared.said(Trim)) == 1
    setup.shared.publish(Tracked("w:80", NOW_US + 1, "r1", exact=False))
    setup.answer(4096, 1024, asked=ids, tried=attempt(16))
    assert len(setup.shared.said(Trim)) == 2


def test_of_a_model_with_windows_only_the_ends_go_that_were_not_valid(setup: Setup) -> None:
    """All 16 blocks are there; the windows behind the fifth were missing, with the slack of text."""
    setup.place(path(20), NOW_US - 10)
    setup.answer(4096, 1024, tried=attempt(16, windowed=True))
    (gone,) = setup.shared.said(EndGone)
    assert (gone.path, gone.before_us, gone.ends) == (path(16), NOW_US, 11)
    assert not setup.shared.said(Trim)
    assert setup.held(path(20)) == 20


def test_token_ids_need_no_slack(setup: Setup) -> None:
    asked = request(prompt_bytes=0, prompt_token_ids=4096)
    setup.answer(4096, 1024, tried=attempt(16), asked=asked)
    (trim,) = setup.shared.said(Trim)
    assert trim.path == path(16)[: 8 * 5]


def test_a_shortfall_of_one_block_proves_nothing(setup: Setup) -> None:
    asked = request(prompt_bytes=0, prompt_token_ids=4096)
    setup.answer(4096, 3840, tried=attempt(16), asked=asked)
    setup.answer(4096, 3839, tried=attempt(16), asked=asked)
    assert len(setup.shared.said(Trim)) == 1


def test_a_wrong_estimate_of_tokens_is_no_shortfall(setup: Setup) -> None:
    """The worker had all 15 blocks that were predicted; they have 5 bytes per token, not 4."""
    setup.answer(3277, 3072, tried=attempt(15))
    assert not setup.shared.said(Trim)


def test_a_start_denser_than_the_rest_is_no_shortfall(setup: Setup) -> None:
    """Twelve blocks of prose at 4.5 bytes per token, four of code at 3: all of the prose was cached."""
    cached = round(12 * 1024 / 4.5)
    setup.answer(cached + round(4 * 1024 / 3), cached, tried=attempt(12))
    assert not setup.shared.said(Trim)


def test_branches_used_since_survive_a_correction(setup: Setup) -> None:
    """A prompt placed after the oldest unfinished prefill may simply not be computed yet."""
    old, new = path(16, 1, common=8), path(16, 2, common=8)
    setup.place(old, NOW_US - 10, "old")
    setup.place(new, NOW_US - 2, "new")
    setup.place(path(16, 3, common=8), NOW_US, "a1")
    asked = request(paths=(path(16, 3, common=8),))
    setup.answer(4096, 256, tried=attempt(8, guard_us=NOW_US - 5), asked=asked)
    assert setup.held(old) == 8  # the request's own path holds the common start again
    assert setup.held(new) == 16
    assert setup.held(path(16, 3, common=8)) == 16


@pytest.fixture
def pooled() -> Setup:
    """The worker shares a pool that holds 16 blocks; it was believed to hold 4 of them, and to fetch 12."""
    shared = Setup(FleetRules(pools={"*": CachePool()}))
    shared.place(path(16), NOW_US - 10)
    shared.shared.publish(FirstToken("a1", NOW_US - 5))
    return shared


def fetching(own_blocks: int = 4) -> Attempt:
    tried = attempt(16)
    fetched_tokens = round(TOKENS_PER_BLOCK * (16 - own_blocks))
    return msgspec.structs.replace(
        tried, chosen=msgspec.structs.replace(tried.chosen, fetched_tokens=fetched_tokens)
    )


def test_a_fetch_that_brought_nothing_corrects_the_pool(pooled: Setup) -> None:
    pooled.answer(4096, 1024, tried=fetching(), asked=request(prompt_bytes=0))
    (trim,) = pooled.shared.said(Trim)
    assert (trim.worker, trim.path) == ("pool/*", path(16)[: 8 * 5])


def test_a_fetch_that_was_cut_short_says_nothing_about_the_pool(pooled: Setup) -> None:
    pooled.answer(4096, 2048, tried=fetching(), asked=request(prompt_bytes=0))
    assert not pooled.shared.said(Trim)


def test_a_worker_that_lacks_its_own_part_is_corrected_and_not_its_pool(pooled: Setup) -> None:
    pooled.answer(4096, 0, tried=fetching(), asked=request(prompt_bytes=0))
    (trim,) = pooled.shared.said(Trim)
    assert trim.worker == "w:80"


@pytest.mark.parametrize("paths", [(), (path(16), path(8))])
def test_an_answer_to_no_prompt_or_several_teaches_nothing(setup: Setup, paths: tuple[bytes, ...]) -> None:
    """The engine's counts are those of the last prompt of a batch, or of all: it does not say."""
    for _ in range(9):
        setup.answer(512, 0, ttft_s=9.0, tried=attempt(16), asked=request(paths=paths))
    assert len(setup.shared.ops) == 1


# Abandoned placements.


def test_an_abandoned_placement_takes_back_what_it_inserted_and_no_more(setup: Setup) -> None:
    setup.place(path(4), NOW_US - 10, "before")
    setup.place(path(16), NOW_US)
    setup.feedback.abandoned(request(), attempt(4))
    (trim,) = setup.shared.said(Trim)
    assert trim.path == path(16)[: 8 * 5]
    assert setup.held(path(16)) == 4


def test_an_abandoned_placement_spares_what_another_request_uses_too(setup: Setup) -> None:
    setup.place(path(16), NOW_US)
    setup.place(path(16), NOW_US + 1, "other")
    setup.feedback.abandoned(request(), attempt(0))
    assert setup.held(path(16)) == 16


def test_an_abandoned_placement_that_inserted_nothing_takes_nothing_back(setup: Setup) -> None:
    setup.feedback.abandoned(request(), attempt(16))
    setup.feedback.abandoned(request(paths=()), attempt())
    setup.feedback.abandoned(request(paths=(b"",)), attempt())
    setup.feedback.abandoned(request(paths=(path(16), path(8))), attempt())
    assert not setup.shared.said(Trim)


# Bytes per token.


def test_bytes_per_token_are_learned_from_answers(setup: Setup) -> None:
    """Sixteen KiB in 8,192 tokens are two bytes per token."""
    for _ in range(60):
        setup.answer(8192)
    assert setup.feedback.bytes_per_token("m") == pytest.approx(2.0, rel=0.03)
    assert setup.feedback.bytes_per_token("another") == 4.0


def test_the_first_odd_answer_does_not_overturn_the_estimate(setup: Setup) -> None:
    """A short question is mostly chat template: 1 byte per token. It weighs 20 tokens of 1,020."""
    setup.answer(20, asked=request(paths=(b"",), prompt_bytes=20))
    assert setup.feedback.bytes_per_token("m") == pytest.approx(4.0, rel=0.05)


def test_short_prompts_do_not_outvote_long_ones(setup: Setup) -> None:
    for _ in range(20):
        setup.answer(5461)  # 3 bytes per token
    for _ in range(300):
        setup.answer(20, asked=request(paths=(b"",), prompt_bytes=20))
    assert setup.feedback.bytes_per_token("m") == pytest.approx(3.0, rel=0.07)


@pytest.mark.parametrize("prompt_tokens", [200, 100_000])
def test_counts_of_something_else_than_the_text_are_not_learned(setup: Setup, prompt_tokens: int) -> None:
    """82 bytes per token: the engine cut the input; 0.16: it counted images."""
    for _ in range(9):
        setup.answer(prompt_tokens)
    assert not setup.shared.said(BytesPerToken)


def test_token_ids_teach_nothing_about_bytes(setup: Setup) -> None:
    setup.answer(4096, asked=request(prompt_bytes=0, prompt_token_ids=4096))
    assert not setup.shared.said(BytesPerToken)


def test_a_learned_value_is_told_once_a_second_and_only_if_it_changed(setup: Setup) -> None:
    """The first answers move it by more than 2 %, later ones do not."""
    for answers in range(1, 101):
        usage = Usage(8192, None, 1)
        setup.feedback.answered(request(), attempt(), usage, None, NOW_US + 100_000 * answers)
    said = setup.shared.said(BytesPerToken)
    assert 1 < len(said) <= 10
    assert all(later.at_us - earlier.at_us >= 1_000_000 for earlier, later in pairwise(said))
    told = len(said)
    for _ in range(50):
        setup.answer(8192)
    assert len(setup.shared.said(BytesPerToken)) <= told + 1


@pytest.mark.no_cover
def test_models_that_come_and_go_do_not_pile_up(setup: Setup) -> None:
    for number in range(2500):
        setup.answer(8192, asked=request(model=f"m{number}"))
    assert len(setup.feedback._seen) <= 1000
    assert len(setup.feedback._said_us) <= 2000


# Service times.

TRUE = ServiceModel(a_s=0.04, b_s=1 / 7500, c0_tokens=140_000)


def test_service_times_are_learned_from_streams_on_an_idle_worker(setup: Setup) -> None:
    """A machine of half the speed; lengths and caches differ."""
    for _ in range(60):
        for cached in (0, 1024, 3072):
            setup.answer(
                4096, cached, ttft_s=TRUE.service_s(4096 - cached, cached), tried=attempt(cached // 256)
            )
    model = setup.shared.fleet.service_model("default")
    assert model.service_s(3000, 500) == pytest.approx(TRUE.service_s(3000, 500), rel=0.1)
    assert setup.shared.said(Fitted)


@pytest.mark.parametrize(
    ("ttft_s", "changes"),
    [(None, {}), (0.6, {"backlog_s": 0.5})],
    ids=["not streamed", "behind other prefills"],
)
def test_a_first_byte_that_is_no_clean_prefill_teaches_nothing(
    setup: Setup, ttft_s: float | None, changes: dict[str, Any]
) -> None:
    for _ in range(60):
        setup.answer(4096, 0, ttft_s=ttft_s, tried=attempt(0, **changes))
    assert not setup.shared.said(Fitted)


def test_prefills_are_known_after_enough_of_them_and_not_of_prompts_much_longer(setup: Setup) -> None:
    for _ in range(FITTED_MIN - 1):
        setup.answer(ttft_s=0.3)
    assert not setup.feedback.knows_prefills("default", 100)
    setup.answer(ttft_s=0.3)
    assert setup.feedback.knows_prefills("default", 8_192)
    assert not setup.feedback.knows_prefills("default", 8_193)
    assert not setup.feedback.knows_prefills("other", 100)


# Times of fetches from a pool.


def test_fetches_that_are_cut_off_make_the_pool_slower_for_all_replicas(pooled: Setup) -> None:
    tried = fetching()
    for _ in range(10):
        pooled.answer(4096, 1024, tried=tried)
    said = pooled.shared.said(FetchTime)
    assert {op.pool for op in said} == {"pool/*"}
    assert [op.factor for op in said] == sorted(op.factor for op in said)
    assert said[-1].factor == pytest.approx(1.1**10, rel=0.11)
    pooled.shared.publish(FetchTime("pool/*", pooled.now_us + 1, "r2", 8.0))
    pooled.answer(4096, 1024, tried=tried)
    for _ in range(10):
        pooled.answer(4096, 4096, tried=tried)
    assert pooled.shared.said(FetchTime)[-1].factor == pytest.approx(8.0 * 1.1 * 0.98**10, rel=0.11)


@pytest.mark.parametrize("cached_tokens", [4096, 0, 1_000])
def test_a_whole_fetch_and_one_behind_blocks_that_are_gone_make_no_pool_slower(
    pooled: Setup, cached_tokens: int
) -> None:
    for _ in range(10):
        pooled.answer(4096, cached_tokens, tried=fetching())
    assert not pooled.shared.said(FetchTime)


def test_nothing_is_learned_of_fetches_without_a_pool(setup: Setup) -> None:
    for _ in range(10):
        setup.answer(4096, 1024, tried=fetching())
    assert not setup.shared.said(FetchTime)


# How much a worker keeps.


def lost(setup: Setup, **changes: Any) -> Attempt:
    """16 predicted blocks, last used at the time 10 s ago, since when another 32 were."""
    used_us = NOW_US - 10_000_000
    setup.place(path(16), used_us, "old")
    for branch in (1, 2):
        setup.place(path(16, branch), NOW_US - 5_000_000, f"other{branch}")
    return attempt(16, used_us=used_us, **changes)


def test_a_shortfall_says_how_much_a_worker_keeps(setup: Setup) -> None:
    """None of 48 blocks used since then is cached: it keeps fewer, by half of the lost blocks."""
    tried = lost(setup)
    setup.answer(4096, 0, tried=tried)
    (said,) = setup.shared.said(CapacityLearned)
    assert (said.worker, said.replica, said.tokens) == ("w:80", "r1", 256 * (48 - 8))
    worker = setup.shared.fleet.worker("w:80")
    assert worker is not None
    assert setup.shared.fleet.cache_tokens(worker) == said.tokens


@pytest.mark.parametrize("cached_tokens", [4096, 3_700])
def test_what_is_cached_as_predicted_says_nothing_of_it(setup: Setup, cached_tokens: int) -> None:
    setup.answer(4096, cached_tokens, tried=lost(setup))
    assert not setup.shared.said(CapacityLearned)


def test_blocks_used_too_lately_to_be_computed_say_nothing_of_it(setup: Setup) -> None:
    setup.answer(4096, 0, tried=lost(setup, guard_us=NOW_US - 10_000_000))
    assert not setup.shared.said(CapacityLearned)


def test_a_model_with_windows_and_an_engine_that_says_what_it_removes_say_nothing_of_it(setup: Setup) -> None:
    setup.answer(4096, 0, tried=lost(setup, windowed=True))
    setup.shared.publish(Tracked("w:80", NOW_US, "r1", exact=True))
    setup.answer(4096, 0, tried=lost(setup))
    assert not setup.shared.said(CapacityLearned)


def test_more_than_predicted_raises_it_again_but_never_above_what_the_worker_says(setup: Setup) -> None:
    """The rule also holds if all of the prompt was believed to be evicted."""
    setup.shared.publish(WorkerPut("w:80", NOW_US + 1, "r1", "http://w:80", capacity_tokens=256 * 50))
    setup.shared.publish(CapacityLearned("w:80", NOW_US + 1, "r2", 256 * 40))
    for _ in range(20):
        setup.answer(4096, 4096, tried=attempt(0))
    said = [op.tokens for op in setup.shared.said(CapacityLearned)[1:]]
    assert said[0] == pytest.approx(256 * 40 * 1.03, rel=0.01)
    assert said == sorted(said)
    assert said[-1] <= 256 * 50
    assert setup.feedback._capacities["w:80"][1] == 50.0


def test_a_worker_that_says_its_size_is_known_by_that(setup: Setup) -> None:
    """A step below it, since one loss at a distance of 48 blocks may have another reason."""
    setup.shared.publish(WorkerPut("w:80", NOW_US + 1, "r1", "http://w:80", capacity_tokens=256 * 100))
    setup.answer(4096, 0, tried=lost(setup))
    (said,) = setup.shared.said(CapacityLearned)
    assert said.tokens == 256 * 85


def test_a_newer_word_of_another_replica_is_where_it_goes_on_from(setup: Setup) -> None:
    setup.answer(4096, 0, tried=lost(setup))
    setup.shared.publish(CapacityLearned("w:80", setup.now_us + 1, "r2", 256 * 1_000))
    setup.answer(4096, 4096, tried=attempt(0))
    assert setup.shared.said(CapacityLearned)[-1].tokens == 256 * 1_030


def test_how_early_queues_end_is_learned_from_streams_behind_a_backlog(setup: Setup) -> None:
    """0.8 s were predicted. An idle worker, or an answer that is not streamed, says nothing of queues."""
    for _ in range(10):
        setup.answer(4096, 0, ttft_s=0.1)
        setup.answer(4096, 0, ttft_s=None, tried=attempt(backlog_s=0.5))
    assert not setup.shared.said(EarlyRatio)
    for _ in range(300):
        setup.answer(4096, 0, ttft_s=0.4, tried=attempt(backlog_s=0.5))
    said = setup.shared.said(EarlyRatio)
    assert said[-1].worker_class == "default"
    assert said[-1].ratio == pytest.approx(0.5, rel=0.06)
    assert len(said) < 20, "a small change is not worth a word"
    assert setup.shared.fleet.early_ratio("default") == said[-1].ratio


def test_queues_that_end_as_predicted_are_not_worth_a_word(setup: Setup) -> None:
    for _ in range(60):
        setup.answer(4096, 0, ttft_s=0.9, tried=attempt(backlog_s=0.5))
    assert not setup.shared.said(EarlyRatio)


def test_what_decoding_costs_is_learned_from_streams_by_how_many_decode_together(setup: Setup) -> None:
    """10 ms a token, and 1 ms more for each other request that decodes; those that prefill do not count."""
    setup.answer(decode=(50.0, 101), ttft_s=0.3)
    fit = setup.feedback.learn_decodes("default")
    for number in range(50):
        setup.place(path(1, number), NOW_US, f"r{number}")
        setup.answer(decode=(1.0 + 0.1 * number, 101), ttft_s=0.3)
        setup.answer(decode=(9.0, 101), ttft_s=None)
        setup.shared.publish(FirstToken(f"r{number}", NOW_US))
    assert fit is setup.feedback.learn_decodes("default")
    assert fit.tpot_s(1) == pytest.approx(0.01, rel=0.1)
    assert fit.tpot_s(41) == pytest.approx(0.05, rel=0.1)


def test_what_decoding_costs_is_told_when_it_is_known_and_when_it_changes(setup: Setup) -> None:
    """The rule also holds for answers that another worker prefilled."""
    setup.feedback.learn_decodes("default")
    for number in range(100):
        setup.answer(decode=(1.0, 101), ttft_s=0.3)
        assert len(setup.shared.said(DecodeFitted)) == (number >= OBSERVATIONS_MIN - 1)
    (told,) = setup.shared.said(DecodeFitted)
    assert (told.worker_class, told.replica, told.decode_s) == ("default", "r1", pytest.approx(1.0))
    assert setup.shared.fleet.decode_fit("default").tpot_s(1.0) == pytest.approx(0.01)
    for _ in range(100):
        setup.now_us += 2_000_000
        setup.feedback.decoded("w:80", 2.0, 101, setup.now_us)
    said = setup.shared.said(DecodeFitted)
    assert 3 <= len(said) <= 20
    assert said[-1].decode_s == pytest.approx(setup.feedback.learn_decodes("default").decode_s, rel=0.05)


def test_without_a_report_of_the_cache_the_prediction_stands_in(setup: Setup) -> None:
    """All but one block predicted and as fast as that: nothing new."""
    profile = setup.shared.fleet.service_model("default")
    for _ in range(30):
        setup.answer(4096, None, ttft_s=profile.service_s(256, 3840), tried=attempt(15))
    assert not setup.shared.said(Fitted)


# Usage as workers mean it.


def test_a_missing_count_means_zero_only_from_a_worker_that_counts(setup: Setup) -> None:
    silent = Usage(10, None, 1)
    understood = setup.feedback.understood
    assert understood("w:80", silent) == silent
    assert understood("w:80", Usage(10, 4, 1)) == Usage(10, 4, 1)
    assert understood("w:80", silent) == Usage(10, 0, 1)
    assert understood("v:80", silent) == silent


def test_workers_that_come_and_go_do_not_pile_up(setup: Setup) -> None:
    for number in range(12_000):
        setup.feedback.understood(f"w{number}:80", Usage(10, 4, 1))
    assert len(setup.feedback._reporting) <= 10_000


def test_counts_that_cannot_be_teach_nothing() -> None:
    """They do not even teach that the worker reports its cached tokens."""
    setup = Setup()
    odd = Usage(4096, None, 8, possible=False)
    setup.place(path(16), NOW_US)
    before = len(setup.shared.ops)
    assert setup.feedback.understood("w:80", odd) == odd
    setup.feedback.understood("w:80", Usage(10, 4, 1))
    assert setup.feedback.understood("w:80", odd) == odd
    for _ in range(40):
        setup.now_us += 2_000_000
        setup.feedback.answered(request(), attempt(16), odd, 60.0, setup.now_us, 5.0)
    assert len(setup.shared.ops) == before
    assert setup.held(path(16)) == 16


# A cache that was flushed.


class Worker:
    """One that answers prompts one after the other, each half a second after it was sent."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.now_us = NOW_US
        self.setup.feedback.understood("w:80", Usage(1, 1, 1))

    def answers(
        self,
        branch: int,
        cached_blocks: int,
        predicted_blocks: int = 16,
        *,
        busy: bool = False,
        sent_us: int = 0,
        computes_all: bool = False,
    ) -> bool:
        """Answer one prompt; return True if the worker is now believed to have lost everything."""
        before = len(self.setup.shared.said(Forget))
        self.now_us += 1_000_000
        placed_us = sent_us or self.now_us
        blocks = path(16, branch)
        self.setup.place(blocks, placed_us, f"a{self.now_us}")
        asked = request(paths=(blocks,), prompt_bytes=0, prompt_token_ids=4096, computes_all=computes_all)
        tried = attempt(predicted_blocks, placed_us=placed_us, guard_us=placed_us - busy)
        usage = Usage(4096, 256 * cached_blocks, 1)
        flushed = self.setup.feedback.answered(asked, tried, usage, None, self.now_us + 500_000)
        assert flushed == (len(self.setup.shared.said(Forget)) > before)
        return flushed


@pytest.fixture
def worker(setup: Setup) -> Worker:
    """A worker that has just answered four sessions, and reuses its blocks."""
    worker = Worker(setup)
    for branch in range(4):
        worker.answers(branch, 0, 0)
    worker.answers(0, 16)
    return worker


def test_three_complete_failures_in_a_row_are_a_flush(worker: Worker) -> None:
    """Prompts placed since the first of them are held again."""
    assert [worker.answers(branch, 0) for branch in (1, 2, 3)] == [False, False, True]
    assert [worker.setup.held(path(16, branch)) for branch in range(4)] == [0, 16, 16, 16]
    assert [worker.answers(branch, 0) for branch in (1, 2, 3)] == [False] * 3


def test_an_engine_that_would_say_so_is_not_taken_to_be_flushed(worker: Worker) -> None:
    worker.setup.shared.publish(Tracked("w:80", NOW_US, "r1", exact=True))
    assert not any(worker.answers(branch, 0) for branch in (1, 2, 3, 1, 2, 3))


def test_an_engine_that_must_compute_whole_prompts_was_not_flushed(setup: Setup) -> None:
    """Evaluations ask for the log probabilities of prompts: nothing is read from the cache for them."""
    setup.place(path(16), NOW_US - 10)
    worker = Worker(setup)
    for branch in range(4):
        worker.answers(branch, 0, 0)
    worker.answers(0, 16)
    assert not any(worker.answers(branch, 0, computes_all=True) for branch in (1, 2, 3, 1, 2, 3))
    assert not setup.shared.said(Trim)
    assert setup.feedback.hits("w:80") == (5 * 4096, 4096)


def test_failures_that_are_not_in_a_row_are_no_flush(worker: Worker) -> None:
    for _ in range(3):
        assert not worker.answers(1, 0)
        assert not worker.answers(2, 0)
        assert not worker.answers(3, 1)


@pytest.mark.parametrize(
    "failing",
    [{"predicted_blocks": 3}, {"busy": True}],
    ids=["too short a prediction", "a prefill was under way"],
)
def test_failures_that_prove_nothing_are_no_flush(worker: Worker, failing: dict[str, Any]) -> None:
    assert not worker.answers(0, 0)
    assert not any(worker.answers(branch, 0, **failing) for branch in (1, 2, 3) * 2)


def test_what_failed_together_counts_once(worker: Worker) -> None:
    sent_us = worker.now_us + 800_000
    assert not any(worker.answers(branch, 0, sent_us=sent_us) for branch in (1, 2, 3, 0))
    assert not worker.answers(1, 0)
    assert worker.answers(2, 0)


def test_what_was_not_used_for_long_may_have_been_evicted(worker: Worker) -> None:
    worker.now_us += 11_000_000
    assert not any(worker.answers(branch, 0) for branch in (1, 2, 3, 4, 5, 6))


def test_an_engine_that_reuses_nothing_was_not_flushed(setup: Setup) -> None:
    worker = Worker(setup)
    assert not any(worker.answers(branch, 0) for branch in (1, 1, 1, 1, 2, 2, 2))


def test_an_engine_that_reports_nothing_was_not_flushed(setup: Setup) -> None:
    for _ in range(9):
        setup.answer(4096, None, tried=attempt(16))
    assert not setup.shared.said(Forget)


def test_starts_of_prompts_do_not_pile_up(worker: Worker) -> None:
    for branch in range(200):
        worker.answers(branch, 0, 0)
    assert len(worker.setup.feedback._reporting["w:80"].fresh) == 64
