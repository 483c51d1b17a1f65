"""Contents of a decision; deciding changes nothing."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from fakes.gateway import FakeShared

from policies import (
    ANY_LENGTH,
    FULL_ATTENTION,
    SLO_UNREACHABLE,
    Admission,
    AdmissionRules,
    BareRequest,
    BytesPerToken,
    Decider,
    DeciderParts,
    Decision,
    DecisionInput,
    DecisionRules,
    EarlyRejection,
    Feedback,
    FirstToken,
    Lanes,
    LengthClass,
    OpLog,
    Placed,
    Policy,
    Queued,
    QueueOrder,
    ServiceLevel,
    Shed,
    WorkerPut,
    make_policy,
    owner_of,
)
from radix import HASH_BYTES, AttentionProfile, Dialect

NOW_US = 1_700_000_000_000_000
PATH = b"".join(number.to_bytes(8, "little") for number in range(1, 17))
TEXT = BareRequest("m", (PATH,), 16384, 1, 1)


def beyond(tokens: int) -> LengthClass:
    return LengthClass(exceeds_tokens=tokens)


class Setup:
    """Two workers; prompts of 16 blocks of 1 KiB."""

    def __init__(
        self,
        limits: Callable[[str | None], Sequence[int]] = lambda _model: (),
        dialect: Callable[[int], Dialect | None] = lambda _slot: None,
    ) -> None:
        self.shared = FakeShared()
        for worker in ("a:80", "b:80"):
            self.shared.publish(WorkerPut(worker, NOW_US, "r1", f"http://{worker}"))
        self.decider = Decider(
            DeciderParts(
                self.shared.fleet,
                Feedback(
                    self.shared.fleet, OpLog("r1", self.shared.publish, lambda: NOW_US), bytes_per_token=4.0
                ),
                "r1",
                iter(("a1", "a2", "a3")).__next__,
                limits,
                dialect,
            ),
            DecisionRules(make_policy("expected_cost"), 256, 1024, 100),
        )

    def decide(self, profile: AttentionProfile = FULL_ATTENTION, **changes: Any) -> Decision:
        parsed = msgspec.structs.replace(TEXT, **changes)
        length = self.decider.length_of(parsed)
        decided = self.decider.decide(DecisionInput(parsed, profile, np.arange(2), NOW_US + 1, 5.0, length))
        assert isinstance(decided, Decision)
        return decided


def test_a_decision_says_the_same_to_the_log_and_to_its_replica() -> None:
    decision = Setup().decide()

    attempt, placed = decision.attempt, decision.placed
    assert placed.request_id == attempt.request_id == "a1"
    assert placed.worker == attempt.worker_id
    assert placed.at_us == attempt.placed_us == NOW_US + 1
    assert placed.replica == "r1"
    assert placed.uncached_tokens == attempt.chosen.uncached_tokens == 4096
    assert placed.service_us == round(attempt.chosen.service_s * 1e6) > 0
    assert placed.context_tokens == 4096 + 100
    assert placed.paths == (PATH,)
    assert attempt.started_s == 5.0


@pytest.mark.parametrize(
    ("changes", "length"),
    [
        ({"prompt_bytes": 0, "prompt_token_ids": 999}, ANY_LENGTH),  # and one of the answer
        ({"prompt_bytes": 0, "prompt_token_ids": 1000}, beyond(1000)),
        ({"prompt_bytes": 0, "prompt_token_ids": 900, "output_tokens_max": 100}, ANY_LENGTH),
        (
            {"prompt_bytes": 0, "prompt_token_ids": 900, "output_tokens_max": 101},
            beyond(1000),
        ),
        ({"prompt_bytes": 0, "prompt_token_ids": 10_000}, beyond(4000)),
        ({"prompt_bytes": 3000}, ANY_LENGTH),  # 750 tokens, if it is like the others
        ({"prompt_bytes": 3300}, beyond(1000)),  # 825, and 1,031 if it is not
        ({"prompt_bytes": 0, "prompt_token_ids": 1800, "paths": (PATH, PATH)}, ANY_LENGTH),  # 900 each
    ],
)
def test_a_prompt_that_some_engines_would_refuse_is_for_the_others(
    changes: dict[str, Any], length: LengthClass
) -> None:
    """Some hold 1,000 tokens, some 4,000, some more."""
    setup = Setup(limits=lambda model: (1000, 4000) if model == "m" else ())
    assert setup.decider.length_of(msgspec.structs.replace(TEXT, **changes)) == length
    other = msgspec.structs.replace(TEXT, model="other", prompt_token_ids=10**6)
    assert setup.decider.length_of(other) == ANY_LENGTH


def test_a_placement_says_whose_blocks_it_brings_while_any_tenant_has_a_quota() -> None:
    setup = Setup()
    assert setup.decide(tenant="acme").placed.owner == 0
    setup.shared.fleet.quotas.share_of = {"acme": 0.5, "other": 1.0}.get
    assert setup.decide(tenant="acme").placed.owner == owner_of("acme") > 0
    assert setup.decide(tenant="other").placed.owner == owner_of("other")


def test_a_batch_may_have_more_cached_than_its_first_prompt_has_blocks() -> None:
    """The batch has the first 4 blocks of a cached prompt, and as another prompt the first 8."""
    setup = Setup()
    setup.shared.publish(setup.decide().placed)
    setup.shared.publish(FirstToken("a1", NOW_US + 1))

    decision = setup.decide(paths=(PATH[: 4 * HASH_BYTES], PATH[: 8 * HASH_BYTES]), prompt_bytes=12 * 1024)

    assert decision.placed.safe_blocks == 12
    assert decision.attempt.used_us == 0, "nothing is learned from the answer to a batch"


def test_nothing_is_reserved_by_deciding() -> None:
    setup = Setup()
    said = len(setup.shared.ops)

    setup.decide()

    assert len(setup.shared.ops) == said
    assert not setup.shared.fleet.loads.requests


def test_what_a_worker_holds_is_predicted_and_guarded_by_its_oldest_prefill() -> None:
    setup = Setup()
    setup.shared.publish(Placed("other", NOW_US - 5, "b:80", "r2", 1, 1, 4096, (PATH,)))

    attempt = setup.decide().attempt

    assert (attempt.worker_id, attempt.chosen.safe_tokens, attempt.guard_us) == ("b:80", 4096, NOW_US - 5)


@pytest.mark.parametrize(
    ("changes", "context_tokens"),
    [
        ({"output_tokens_max": 7}, 4096 + 7),
        ({"output_tokens_max": 7, "n": 3}, 4096 + 21),
        ({"output_tokens_max": 10_000}, 4096 + 100),
        ({"prompt_bytes": 0, "prompt_token_ids": 5000}, 5100),
        ({"prompt_bytes": 0, "paths": ()}, 101),
    ],
)
def test_context_is_the_prompt_and_what_may_be_answered(changes: Any, context_tokens: int) -> None:
    assert Setup().decide(**changes).placed.context_tokens == context_tokens


def test_text_is_measured_in_learned_bytes_per_token() -> None:
    setup = Setup()
    setup.shared.publish(BytesPerToken("m", NOW_US, "r2", 2.0))

    text, ids = setup.decide(), setup.decide(prompt_bytes=0, prompt_token_ids=4096)

    assert text.placed.uncached_tokens == 8192
    assert text.attempt.tokens_per_block == 512
    assert ids.attempt.tokens_per_block == 256


def test_a_request_without_a_prompt_is_an_arrival_all_the_same() -> None:
    assert Setup().decide(paths=(), prompt_bytes=0).placed.paths == (b"",)


def test_ends_count_for_models_with_windows() -> None:
    setup = Setup()
    assert not setup.decide().placed.ends
    assert setup.decide(AttentionProfile("sliding_window", 128)).placed.ends


@pytest.mark.parametrize(
    ("profile", "paths", "junction_blocks"),
    [
        (AttentionProfile("sliding_window", 128), (PATH[:24] + b"elsewhere, 16 b.",), 3),
        (AttentionProfile("linear"), (PATH,), 16),
        (AttentionProfile("sliding_window", 128), (b"elsewhere, 16 b.",), 0),
        (AttentionProfile("sliding_window", 128), (PATH, PATH), 0),
        (FULL_ATTENTION, (PATH,), 0),
    ],
)
def test_the_log_hears_where_a_prompt_leaves_what_a_worker_with_windows_holds(
    profile: AttentionProfile, paths: tuple[bytes, ...], junction_blocks: int
) -> None:
    """Both workers hold one prompt of 16 blocks; for a batch, the place is unknown."""
    setup = Setup()
    for worker in ("a:80", "b:80"):
        setup.shared.publish(Placed(worker, NOW_US - 5, worker, "r2", 1, 1, 4096, (PATH,)))

    decision = setup.decide(profile, paths=paths)

    assert decision.placed.junction_blocks == junction_blocks


@pytest.mark.parametrize(
    ("prompt_bytes", "leaves", "ends"),
    [
        (16 * 1024, False, True),
        (16 * 1024 + 4 * 63, False, True),
        (16 * 1024 + 4 * 64, False, False),  # its window is a page behind its last block
        (16 * 1024, True, False),  # its window comes with its answer
    ],
)
def test_of_sglang_only_a_prompt_of_whole_blocks_that_leaves_nothing_ends_there(
    prompt_bytes: int, leaves: bool, ends: bool
) -> None:
    """Either the setting of the model or the worker says that the engine is SGLang."""
    windows = AttentionProfile("sliding_window", 128)
    for profile, told in ((replace(windows, dialect="sglang"), None), (windows, "sglang")):
        setup = Setup(dialect=lambda _slot, told=told: told)
        if leaves:
            for worker in ("a:80", "b:80"):
                setup.shared.publish(
                    Placed(worker, NOW_US - 5, worker, "r2", 1, 1, 4096, (PATH,), ends=False)
                )
        decision = setup.decide(profile, prompt_bytes=prompt_bytes)

        assert decision.placed.ends is ends
        assert decision.placed.junction_blocks == (16 if leaves else 0)
        assert decision.attempt.sglang == profile


def test_a_vllm_worker_keeps_its_rule_beside_sglang() -> None:
    setup = Setup(dialect=lambda _slot: "vllm")
    decision = setup.decide(AttentionProfile("linear"), prompt_bytes=16 * 1024 + 400)

    assert decision.placed.ends
    assert decision.attempt.sglang is None
    assert Setup(dialect=lambda _slot: "sglang").decide().attempt.sglang is None  # full attention


def test_if_the_policy_considers_nobody_nothing_is_counted() -> None:
    setup = Setup()
    setup.decider.policy = Policy("nobody", lambda _, candidates: np.full(len(candidates), np.inf), False)

    decided = setup.decider.decide(DecisionInput(TEXT, FULL_ATTENTION, np.arange(2), NOW_US, 0.0))

    assert isinstance(decided, Shed)
    assert setup.decider.placed_count == 0


def test_placed_requests_are_counted_for_policies_that_take_turns() -> None:
    setup = Setup()
    setup.decider.policy = make_policy("round_robin")

    workers = [setup.decide().attempt.worker_id for _ in range(3)]

    assert workers == ["a:80", "b:80", "a:80"]


# Followers and promises.


class Ordered(Setup):
    """One worker, whose engine prefills 2,048 tokens in a step and publishes them only afterwards."""

    def __init__(self, *, step_tokens: int = 2048, level: ServiceLevel | None = None) -> None:
        super().__init__()
        fleet, slots = self.shared.fleet, np.arange(1)
        feedback = Feedback(fleet, OpLog("r1", self.shared.publish, lambda: NOW_US), bytes_per_token=4.0)
        admission = Admission(AdmissionRules(backlog_target_s=100.0, backlog_target_s_max=100.0), fleet)
        self.ids = itertools.count()
        self.decider = Decider(
            DeciderParts(fleet, feedback, "r1", lambda: f"a{next(self.ids)}"),
            DecisionRules(
                make_policy("expected_cost"),
                256,
                1024,
                100,
                order=QueueOrder(
                    admission,
                    Lanes(lambda _: slots),
                    4.0,
                    lambda _: step_tokens,
                    None if level is None else EarlyRejection(level, fleet, feedback.learn_decodes),
                ),
            ),
        )

    def ask(
        self, parsed: BareRequest = TEXT, *, ticket_id: str = "", waited_s: float = 0.0, again: bool = False
    ) -> Decision | Queued | Shed:
        now_us = NOW_US + 1
        return self.decider.decide(
            DecisionInput(
                *(parsed, FULL_ATTENTION, np.arange(1), now_us, 5.0),
                arrived_us=now_us - round(waited_s * 1e6),
                flow="normal/",
                ticket_id=ticket_id,
                again=again,
            )
        )

    def go(self, parsed: BareRequest = TEXT) -> Placed:
        decided = self.ask(parsed)
        assert isinstance(decided, Decision)
        self.shared.publish(decided.placed)
        return decided.placed


def test_a_follower_waits_for_its_leader_and_goes_with_its_first_token() -> None:
    """4,096 tokens are two steps: a request that joins the second step computes half of them again."""
    setup = Ordered()
    leader = setup.go()
    held = setup.ask()
    assert isinstance(held, Queued)
    assert held.waiting.worker == "a:80"
    still = setup.ask(ticket_id=held.waiting.request_id)
    assert isinstance(still, Queued)
    setup.shared.publish(FirstToken(leader.request_id, NOW_US + 1))
    went = setup.ask(ticket_id=held.waiting.request_id)
    assert isinstance(went, Decision)
    assert (went.placed.request_id, went.placed.safe_blocks) == (held.waiting.request_id, 16)


def test_a_follower_goes_at_once_where_it_finds_what_is_being_prefilled() -> None:
    setup = Ordered(step_tokens=0)
    setup.go()
    assert isinstance(setup.ask(), Decision)


def test_who_has_another_beginning_follows_nobody() -> None:
    setup = Ordered()
    setup.go()
    other = msgspec.structs.replace(TEXT, paths=(PATH[8:],))
    assert isinstance(setup.ask(other), Decision)


def test_a_request_that_would_miss_what_is_promised_is_rejected_and_told_why() -> None:
    """0.3 s of its own behind 3 s: with 2 s of a promise it would be more than a second late."""
    setup = Ordered(level=ServiceLevel(ttft_slo_s=2.0))
    assert isinstance(setup.ask(), Decision)
    setup.shared.publish(Placed("other", NOW_US + 1, "a:80", "r2", 3_000_000, 1, 1))
    shed = setup.ask()
    assert isinstance(shed, Shed)
    assert shed.reason == SLO_UNREACHABLE
    assert shed.retry_after_s == pytest.approx(1.3, abs=0.1)
    assert shed.detail == "ttft of 3.3 s predicted, 2 s promised"


def test_who_waited_too_long_is_rejected_too_but_not_who_was_dispatched_before() -> None:
    setup = Ordered(level=ServiceLevel(ttft_slo_s=2.0))
    assert isinstance(setup.ask(ticket_id="t", waited_s=1.0), Decision)
    assert isinstance(setup.ask(ticket_id="t", waited_s=1.9), Shed)
    assert isinstance(setup.ask(waited_s=1.9, again=True), Decision)


def labelled() -> Setup:
    setup = Setup()
    for worker, bucket in (("a:80", "0"), ("b:80", "2")):
        setup.shared.publish(
            WorkerPut(worker, NOW_US + 1, "r1", f"http://{worker}", labels={"bucket": bucket})
        )
    return setup


@pytest.mark.parametrize(
    ("changes", "bucket"),
    [
        ({}, 0),
        ({"prompt_bytes": 4 * 65_436}, 0),
        ({"prompt_bytes": 4 * 65_437}, 1),
        ({"prompt_bytes": 4 * 65_437, "output_tokens_max": 99}, 0),
        ({"prompt_bytes": 4 * 65_437, "output_tokens_max": 99, "n": 50}, 0),
        ({"prompt_bytes": 0, "prompt_token_ids": 300_000}, 2),
        ({"prompt_bytes": 8 * 10**6}, 3),
        ({"prompt_bytes": 4 * 100_000, "paths": (PATH, PATH)}, 0),
        ({"prompt_bytes": 4 * 100_000, "paths": (PATH, PATH[:8])}, 1),
        ({"prompt_bytes": 0, "paths": ()}, 0),
    ],
)
def test_the_bucket_is_that_of_one_prompt_and_its_answer(changes: Any, bucket: int) -> None:
    """In a batch the longest prompt counts, and one of several answers: none sees the tokens of another."""
    parsed = msgspec.structs.replace(TEXT, **changes)
    assert labelled().decider.length_of(parsed) == LengthClass(bucket)
    assert Setup().decider.length_of(parsed) == ANY_LENGTH


def test_a_request_begins_in_its_bucket_although_all_are_idle() -> None:
    for key in range(20):
        short = labelled().decide(key=key)
        long = labelled().decide(key=key, prompt_bytes=0, prompt_token_ids=300_000)
        assert (short.attempt.worker_id, long.attempt.worker_id) == ("a:80", "b:80")


def test_a_request_leaves_its_bucket_when_the_wait_there_exceeds_the_price() -> None:
    setup = labelled()
    setup.shared.publish(Placed("other", NOW_US, "a:80", "r2", 60_000_000, 1, 4096, (b"",)))
    attempt = setup.decide().attempt
    assert (attempt.worker_id, attempt.chosen.reason) == ("b:80", "spilled_up")
