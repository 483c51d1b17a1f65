"""The fold: any order, any repetition, a snapshot in between: the same fleet."""

import itertools
from collections.abc import Iterator
from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import (
    ANY_BUCKET,
    FULL_ATTENTION,
    PROFILES,
    AttentionProfile,
    BytesPerToken,
    Candidates,
    CapacityLearned,
    Chosen,
    Circuit,
    CircuitSet,
    DecodeFitted,
    EndGone,
    Finished,
    FirstToken,
    Fitted,
    FleetRules,
    FleetState,
    Forget,
    HostMemory,
    Insert,
    KvBytes,
    Left,
    LengthBuckets,
    OffloadPlan,
    Op,
    Placed,
    Reported,
    RequestView,
    ServiceModel,
    SlowdownLearned,
    Started,
    Tracked,
    Trim,
    Waiting,
    WorkerGone,
    WorkerPut,
    make_policy,
    place,
)
from policies.estimates.host_memory import HOST_TOKEN_S
from policies.estimates.length_histogram import row_of
from policies.estimates.slowdowns import KEPT_US
from policies.fleet.fleet import GONE_MAX, LOADS_MAX
from policies.scoring.placement import Reason
from radix import WORKERS_MAX, chain_bytes
from radix.invariants import check

SECOND = 1_000_000
START = 1_000 * SECOND


def path(*blocks: int) -> bytes:
    """The path of a prompt made of these blocks; equal beginnings are equal prefixes."""
    return chain_bytes(b"".join(bytes([block]) * 1024 for block in blocks), 7)


def put(worker: str, at_us: int = 1, **more: object) -> WorkerPut:
    return WorkerPut(worker, at_us, "static", f"http://{worker}", **more)  # type: ignore[arg-type]


def placed(
    request_id: str,
    worker: str,
    prompt: bytes,
    at_us: int = START,
    *,
    replica: str = "one",
    ends: bool = False,
    flow: str = "",
) -> Placed:
    return Placed(request_id, at_us, worker, replica, 100_000, 300, 500, (prompt,), ends, flow)


def fleet_after(*ops: Op, rules: FleetRules | None = None) -> FleetState:
    fleet = FleetState(rules or FleetRules())
    for op in ops:
        fleet.apply(op)
    return fleet


def candidates(
    fleet: FleetState,
    prompt: bytes,
    now_us: int = START,
    profile: AttentionProfile = FULL_ATTENTION,
) -> Candidates:
    slots = np.array(sorted(worker.slot for worker in fleet.workers()), dtype=np.intp)
    return fleet.candidates(slots, (prompt,), profile, len(prompt) * 32.0, 256.0, now_us)


def seen(fleet: FleetState, prompts: list[bytes], now_us: int = START) -> dict[str, object]:
    """Everything a decision can see, by worker id, so that slots do not matter."""
    rows: dict[str, object] = {}
    for worker in fleet.workers():
        view = fleet.candidates(
            np.array([worker.slot]),
            tuple(prompts),
            AttentionProfile("sliding_window", 128),
            1e6,
            256.0,
            now_us,
        )
        rows[worker.worker_id] = (
            worker.url,
            worker.draining,
            worker.capacity_tokens,
            worker.labels,
            [float(getattr(view, name)[0]) for name in ("matched_tokens", "safe_tokens", "backlog_s")],
            [float(getattr(view, name)[0]) for name in ("inflight_requests", "inflight_tokens")],
            [float(getattr(view.slow, name)[0]) for name in ("a_s", "b_s", "c0_tokens", "congestion_per_s")],
            float(view.held_tokens[0]),
            [fleet.tree.match(prompt).matched[worker.slot : worker.slot + 1].tolist() for prompt in prompts],
            fleet.circuits.get(worker.worker_id),
            fleet.circuits.tripped.get(worker.slot),
            fleet.started(worker.worker_id),
        )
    rows["offload_plan"] = fleet.offload_plan
    rows["decode"] = list(fleet.decode_fit("default").line())
    rows["bytes_per_token"] = fleet.bytes_per_token("tiny", 4.0)
    return rows


def test_a_placed_prompt_is_matched_at_once_and_its_load_is_seen() -> None:
    """Four blocks of 256 tokens; 100 ms reserved; the other worker has neither."""
    fleet = fleet_after(put("a:1"), put("b:1"), placed("r", "a:1", path(1, 2, 3, 4)))
    view = candidates(fleet, path(1, 2, 3, 9))
    assert view.matched_tokens.tolist() == [768.0, 0.0]
    assert view.backlog_s.tolist() == [0.1, 0.0]
    assert view.inflight_tokens.tolist() == [500.0, 0.0]
    assert fleet.at_slot(int(view.slots[0])).worker_id == "a:1"


def test_the_match_is_never_longer_than_the_prompt() -> None:
    fleet = fleet_after(put("a:1"), placed("r", "a:1", path(1, 2)))
    view = fleet.candidates(np.array([0]), (path(1, 2),), FULL_ATTENTION, 400.0, 256.0, START)
    assert view.matched_tokens.tolist() == [400.0]


def test_a_batch_matches_with_all_its_prompts() -> None:
    fleet = fleet_after(put("a:1"), put("b:1"), placed("r", "a:1", path(1, 2)), placed("s", "b:1", path(3)))
    view = fleet.candidates(np.array([0, 1]), (path(1, 2), path(3)), FULL_ATTENTION, 1e6, 256.0, START)
    assert view.matched_tokens.tolist() == [512.0, 256.0]


@pytest.mark.parametrize(
    ("slots", "reason"),
    [
        ([0, 1, 2], Reason.AFFINITY),
        ([1, 2], Reason.AFFINITY),
        ([2, 3], Reason.COLD),
        ([0, 4], Reason.BALANCED),
    ],
)
def test_why_a_worker_is_chosen_is_judged_among_the_candidates(slots: list[int], reason: Reason) -> None:
    """Workers 0, 1 and 4 hold 4, 2 and 1 blocks of the prompt, and 0 is busy for a minute if 4 is there."""
    busy = Placed("busy", START, "w0", "one", 60 * SECOND, 300, 500, (b"",)) if 4 in slots else put("w0")
    held = [
        placed(f"r{slot}", f"w{slot}", path(*range(n)), START - 1) for slot, n in ((0, 4), (1, 2), (4, 1))
    ]
    ended = [Finished(op.request_id, START) for op in held]
    fleet = fleet_after(*(put(f"w{slot}") for slot in range(5)), *held, *ended, busy)
    view = fleet.candidates(np.array(slots), (path(0, 1, 2, 3, 9),), FULL_ATTENTION, 1280.0, 256.0, START)

    chosen = place(RequestView(1, 1, 1280.0, 100.0, 0), view, make_policy("min_ttft"))

    assert isinstance(chosen, Chosen)
    assert chosen.reason == reason


def test_a_worker_the_tree_has_not_met_matches_nothing() -> None:
    fleet = fleet_after(put("a:1"), placed("r", "a:1", path(1)), put("b:1"))
    assert candidates(fleet, path(1)).matched_tokens.tolist() == [256.0, 0.0]


def test_window_models_reuse_only_up_to_where_a_request_ended() -> None:
    """A prompt that leaves the earlier one after two of four blocks finds no valid window there."""
    window = AttentionProfile("sliding_window", 128)
    fleet = fleet_after(put("a:1"), placed("r", "a:1", path(1, 2, 3, 4), ends=True))
    fork = candidates(fleet, path(1, 2, 9, 9), profile=window)
    assert (fork.matched_tokens[0], fork.safe_tokens[0]) == (512.0, 0.0)
    more = candidates(fleet, path(1, 2, 3, 4, 5), profile=window)
    assert (more.matched_tokens[0], more.safe_tokens[0]) == (1024.0, 1024.0)


def test_window_models_reuse_where_an_earlier_prompt_left_what_was_held() -> None:
    """Three prompts share two of four blocks: the first to leave makes a junction that the next one finds."""
    window = AttentionProfile("sliding_window", 128)
    fleet = fleet_after(put("a:1"), placed("r", "a:1", path(1, 2, 3, 4), ends=True))
    left = placed("s", "a:1", path(1, 2, 9, 9), START + 1, ends=True)
    fleet.apply(msgspec.structs.replace(left, junction_blocks=2))

    again = candidates(fleet, path(1, 2, 7), profile=window)

    assert (again.matched_tokens[0], again.safe_tokens[0]) == (512.0, 512.0)
    assert candidates(fleet, path(1, 9), profile=window).safe_tokens[0] == 0.0


def test_trim_and_forget_correct_what_a_worker_holds() -> None:
    fleet = fleet_after(put("a:1"), Insert("a:1", path(1, 2, 3), START, False))
    fleet.apply(Trim("a:1", path(1, 2), START + 1))
    assert candidates(fleet, path(1, 2, 3)).matched_tokens.tolist() == [256.0]
    fleet.apply(Forget("a:1", START + 1))
    assert candidates(fleet, path(1, 2, 3)).matched_tokens.tolist() == [0.0]


def test_the_newest_word_about_a_worker_wins_whole() -> None:
    newer, older = put("a:1", 20, draining=True, labels={"zone": "x"}), put("a:1", 10, capacity_tokens=5)
    for order in ((newer, older), (older, newer)):
        worker = fleet_after(*order).worker("a:1")
        assert worker is not None
        assert (worker.draining, worker.capacity_tokens, worker.labels) == (True, 0, {"zone": "x"})


def test_a_removed_worker_stays_removed_until_somebody_adds_it_later() -> None:
    """Workers in the settings have log time 1: removal through the API is newer and survives a restart."""
    fleet = fleet_after(put("a:1"), WorkerGone("a:1", START, "one"), put("a:1"))
    assert fleet.workers() == []
    assert fleet.worker("a:1") is None
    fleet.apply(put("a:1", START + 1))
    assert [worker.worker_id for worker in fleet.workers()] == ["a:1"]


def test_a_removal_outlives_the_workers_row_and_a_snapshot() -> None:
    """A replica that restarts a day later still names it in its settings, at log time 1."""
    fleet = fleet_after(put("a:1"), WorkerGone("a:1", START, "one"))
    fleet.collect(START + 86_400 * SECOND)
    restarted = fleet_after(put("a:1"))
    restarted.restore(fleet.snapshot())
    for replica in (fleet, restarted):
        replica.apply(put("a:1"))
        assert replica.workers() == []
        replica.apply(put("a:1", START + 1))
        assert len(replica.workers()) == 1


def test_an_older_removal_that_comes_late_does_not_replace_a_newer_one() -> None:
    fleet = fleet_after(put("a:1"), WorkerGone("a:1", START + 10, "one"))
    fleet.collect(START + 100 * SECOND)
    fleet.apply(WorkerGone("a:1", START, "one"))
    fleet.collect(START + 200 * SECOND)
    fleet.apply(put("a:1", START + 5))
    assert fleet.workers() == []
    fleet.apply(put("a:1", START + 11))
    assert len(fleet.workers()) == 1


def test_remembered_removals_are_bounded_and_the_oldest_go_first() -> None:
    fleet = fleet_after(*(WorkerGone(f"w:{n}", START + n, "one") for n in range(GONE_MAX + 1)))
    fleet.collect(START + 100 * SECOND)
    fleet.apply(put("w:0"))
    fleet.apply(put("w:1"))
    assert [worker.worker_id for worker in fleet.workers()] == ["w:0"]


def test_a_removed_worker_is_forgotten_and_its_row_used_again() -> None:
    fleet = fleet_after(put("a:1"), placed("r", "a:1", path(1)), WorkerGone("a:1", START + 1, "one"))
    fleet.collect(START + 100 * SECOND)
    assert fleet.tree.held_blocks(0) == 0
    fleet.apply(put("b:1", START + 100 * SECOND))
    assert fleet.worker("b:1") is not None
    assert fleet.worker("b:1").slot == 1  # type: ignore[union-attr] # a request is still in flight on row 0
    fleet.apply(Finished("r", START + 100 * SECOND))
    fleet.collect(START + 101 * SECOND)
    fleet.apply(put("c:1", START + 101 * SECOND))
    assert fleet.worker("c:1").slot == 0  # type: ignore[union-attr]
    assert candidates(fleet, path(1)).matched_tokens.tolist() == [0.0, 0.0]


def test_capacity_bounds_what_a_worker_is_believed_to_hold() -> None:
    """1,024 tokens are four blocks: the older prompt loses its tail."""
    fleet = fleet_after(
        put("a:1", capacity_tokens=1024),
        Insert("a:1", path(1, 2, 3), START, False),
        Insert("a:1", path(5, 6, 7), START + 1, False),
    )
    assert candidates(fleet, path(1, 2, 3)).matched_tokens.tolist() == [256.0]
    assert candidates(fleet, path(5, 6, 7)).matched_tokens.tolist() == [768.0]
    assert candidates(fleet, path(5)).held_tokens.tolist() == [1024.0]


def ejected(worker: str, at_us: int, state: Circuit = Circuit.OPEN) -> CircuitSet:
    return CircuitSet(worker, at_us, "one", state, at_us + 60 * SECOND)


def test_a_circuit_is_known_by_slot_while_it_is_not_closed_and_its_worker_returns_with_it() -> None:
    fleet = fleet_after(put("a:1"), put("b:1"), ejected("b:1", START))
    assert fleet.circuits.tripped == {1: ejected("b:1", START)}
    assert fleet.last_return_us == 0
    fleet.apply(ejected("b:1", START + 5, Circuit.CLOSED))
    fleet.apply(ejected("b:1", START + 4))
    assert fleet.circuits.tripped == {}
    assert (fleet.returned_us[:2].tolist(), fleet.last_return_us) == ([0, START + 5], START + 5)


def test_what_was_said_of_a_worker_that_nobody_added_goes_with_its_row_whatever_its_time() -> None:
    """Log time of the far future would keep the row's next worker ejected, full, and exact."""
    fleet = fleet_after()
    later_us = 2**53 - 1
    fleet.apply(Tracked("evil:1", later_us, "evil", exact=True))
    fleet.apply(CircuitSet("evil:1", later_us, "evil", Circuit.OPEN, 1, later_us))
    fleet.apply(Reported("evil:1", later_us, "evil", 5, 5, 5))
    fleet.collect(START + 86_400 * SECOND)
    fleet.apply(WorkerPut("a:80", START, "r1", "http://a:80"))
    assert [fleet.at_slot(slot) for slot in fleet.evidence.exact] == []
    assert not fleet.tracks("a:80")
    assert not fleet.circuits.tripped
    assert not [*fleet.circuits]
    assert not [*fleet.reports]


@pytest.mark.parametrize("collected", [False, True], ids=["at once", "when its row was freed"])
def test_a_removed_worker_that_is_added_again_starts_with_a_closed_circuit(collected: bool) -> None:
    """The rule also holds if an old word about it comes late, and after a snapshot."""
    fleet = fleet_after(put("a:1"), ejected("a:1", START), WorkerGone("a:1", START + 1, "one"))
    assert fleet.circuits.tripped == {}
    if collected:
        fleet.collect(START + 100 * SECOND)
    fleet.apply(ejected("a:1", START))
    fleet.apply(put("a:1", START + 200 * SECOND))
    newcomer = FleetState()
    newcomer.restore(fleet.snapshot())
    for replica in (fleet, newcomer):
        replica.apply(ejected("a:1", START))
        assert replica.circuits.get("a:1") is None
        replica.apply(ejected("a:1", START + 201 * SECOND))
        assert len(replica.circuits.tripped) == 1


def test_circuits_and_starts_do_not_outlive_their_worker() -> None:
    fleet = FleetState()
    for number in range(50):
        worker, at_us = f"w{number}:1", START + 200 * number * SECOND
        fleet.apply(put(worker, at_us))
        fleet.apply(ejected(worker, at_us + 1))
        fleet.apply(Started(worker, at_us + 1, "one", 5))
        fleet.apply(WorkerGone(worker, at_us + 2, "one"))
        fleet.apply(ejected(worker, at_us + 3))
        fleet.collect(at_us + 199 * SECOND)
    assert ([*fleet.circuits], fleet.circuits.tripped, [*fleet.registers.of(Started)]) == ([], {}, [])


def test_a_new_process_has_an_empty_cache_and_the_newest_word_about_it_wins() -> None:
    prompt = path(1, 2)
    fleet = fleet_after(put("a:1"), Started("a:1", 5, "one", 1000), placed("r", "a:1", prompt))
    assert candidates(fleet, prompt).matched_tokens.tolist() == [512.0]
    assert (fleet.last_return_us, fleet.forgot_us(0)) == (0, 0)
    again = Started("a:1", START + 10, "two", 2000, cold=True)
    for op in (again, Started("a:1", START + 5, "three", 1000), again):
        fleet.apply(op)
    assert candidates(fleet, prompt).matched_tokens.tolist() == [0.0]
    assert fleet.started("a:1") == again
    assert (fleet.last_return_us, fleet.forgot_us(0)) == (START + 10, START + 10)


def test_fits_and_token_ratios_are_shared_and_the_newest_wins() -> None:
    fleet = fleet_after(
        put("a:1"),
        put("b:1", labels={"worker_class": "slow"}),
        Fitted("slow", 20, "one", 0.5, 1e-3, 1e5),
        Fitted("slow", 10, "two", 9.0, 9e-3, 9e5),
        BytesPerToken("tiny", 20, "one", 3.0),
        BytesPerToken("tiny", 10, "two", 9.0),
    )
    view = candidates(fleet, path(1))
    default = PROFILES["default"]
    assert view.slow.a_s.tolist() == [default.a_s, 0.5]
    assert view.slow.b_s.tolist() == [default.b_s, 1e-3]
    assert fleet.service_model("slow") == ServiceModel(0.5, 1e-3, 1e5)
    assert fleet.service_model("unheard of") == fleet.profile("default")
    assert (fleet.bytes_per_token("tiny", 4.0), fleet.bytes_per_token("other", 4.0)) == (3.0, 4.0)


def test_what_nobody_finished_is_released_for_its_age() -> None:
    fleet = fleet_after(put("a:1"), placed("r", "a:1", path(1)), rules=FleetRules(lifetime_s_max=10))
    assert fleet.collect(START + 11 * SECOND) == 1
    assert candidates(fleet, path(1)).inflight_requests.tolist() == [0.0]


def test_a_snapshot_gives_a_newcomer_the_same_decisions() -> None:
    """Including work in flight, rates, fits and ends of requests."""
    fleet = fleet_after(
        put("a:1", capacity_tokens=10_000),
        put("b:1", draining=True),
        put("d:1"),
        WorkerGone("d:1", START, "one"),
        placed("r1", "a:1", path(1, 2, 3), ends=True),
        placed("r2", "b:1", path(1, 2, 4, 5), START + 5, replica="two", ends=True),
        FirstToken("r1", START + 10),
        Fitted("default", 20, "one", 0.5, 1e-3, 1e5),
        BytesPerToken("tiny", 20, "one", 3.0),
        Left("three", START),
        CircuitSet("a:1", START, "one", Circuit.HALF_OPEN, START + 9, 2),
        Started("b:1", START, "one", 1_700_000_000_000),
    )
    newcomer = FleetState(FleetRules())
    newcomer.apply(put("c:1"))
    fleet.apply(put("c:1"))
    prompts = [path(1, 2, 3, 9), path(1, 2, 4, 5, 6)]
    for _ in range(2):
        newcomer.restore(fleet.snapshot())
        assert seen(newcomer, prompts, START + 20) == seen(fleet, prompts, START + 20)
    for op in (Finished("r1", START + 30), FirstToken("r2", START + 30)):
        newcomer.apply(op)
        fleet.apply(op)
    assert seen(newcomer, prompts, START + 40) == seen(fleet, prompts, START + 40)
    assert chosen(newcomer, prompts[0]) == chosen(fleet, prompts[0])


def test_what_ended_in_a_part_of_the_log_that_was_missed_is_released_with_the_snapshot() -> None:
    """A replica knows its own requests better, and placements behind the snapshot come back."""
    late, missed, mine, next_ = (
        placed(name, "a:1", path(1), START + n, replica=replica)
        for n, (name, replica) in enumerate((("l", "one"), ("m", "one"), ("own", "two"), ("n", "one")))
    )
    writer = fleet_after(put("a:1"), late, missed, Finished("m", START + 9))
    fleet = fleet_after(put("a:1"), late, missed, mine, next_)
    fleet.restore(writer.snapshot(), "two", missed=True)
    assert set(fleet.loads.requests) == {"l", "own"}
    fleet.apply(next_)
    fleet.apply(Finished("m", START + 9))
    assert set(fleet.loads.requests) == {"l", "own", "n"}
    assert candidates(fleet, path(1)).inflight_requests.tolist() == [3.0]


def chosen(fleet: FleetState, prompt: bytes) -> str:
    """The worker that the default policy chooses."""
    view = RequestView(1, 1, 1024.0, 100.0, 0)
    outcome = place(view, candidates(fleet, prompt, START + 40), make_policy("expected_cost"))
    assert isinstance(outcome, Chosen)
    return fleet.at_slot(outcome.slot).worker_id


KINDS = [
    *("placed", "renewed", "first", "finished", "left", "put", "gone", "circuit", "started"),
    *("insert", "trim", "forget", "end gone", "fit", "bytes", "roles", "decode"),
]

operations = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.integers(0, 3),
        st.integers(0, 2),
        st.integers(0, 12),
    ),
    max_size=30,
)


def made(kind: str, number: int, which: int, tick: int) -> Op:
    """One operation; a replica says one thing about one subject at one time."""
    at_us = START + tick * SECOND
    worker, replica, request_id = f"w{which}:1", f"replica {number % 2}", f"r{number}-{which}-{tick}"
    prompt = path(*[(1, 2, 3), (1, 2, 4, 5), (1, 6), (7,)][number])
    made_of: dict[str, Op] = {
        "placed": msgspec.structs.replace(
            placed(request_id, worker, prompt, at_us, replica=replica, ends=True), junction_blocks=number
        ),
        "renewed": Placed(request_id, at_us + 3 * SECOND, worker, replica, 100_000, 300, 500),
        "first": FirstToken(request_id, at_us + SECOND),
        "finished": Finished(request_id, at_us + 2 * SECOND),
        "left": Left(replica, at_us),
        "put": WorkerPut(worker, at_us, replica, f"http://{worker}", labels={"by": replica}),
        "gone": WorkerGone(worker, at_us, replica),
        "circuit": CircuitSet(worker, at_us, replica, list(Circuit)[tick % 3], at_us + SECOND),
        "started": Started(worker, at_us, replica, tick, cold=tick % 2 > 0),
        "insert": Insert(worker, prompt, at_us),
        "trim": Trim(worker, prompt[:16], at_us),
        "forget": Forget(worker, at_us),
        "end gone": EndGone(worker, prompt, at_us),
        "fit": Fitted("default", at_us, replica, 0.01 * (number % 2 + 1), 1e-4, 1e5),
        "bytes": BytesPerToken("tiny", at_us, replica, 2.0 + number % 2),
        "decode": DecodeFitted("default", at_us, replica, 0.01, 0.001 * (number % 2), 5.0, 1.0),
        "roles": OffloadPlan(at_us, replica, 1_000 * (number % 2), 1, 2, {f"w{tick % 3}:1": "decode"}),
    }
    return made_of[kind]


@given(operations, st.randoms(use_true_random=False))
def test_any_order_and_any_repetition_give_the_same_fleet(
    drawn: list[tuple[str, int, int, int]], random: Random
) -> None:
    ops = [made(*arguments) for arguments in dict.fromkeys(drawn)]
    workers = [put(f"w{which}:1") for which in range(3)]
    shuffled = ops * 2
    random.shuffle(shuffled)
    prompts = [path(1, 2, 3), path(1, 2, 4, 5), path(1, 6), path(7)]
    now_us = START + 15 * SECOND
    expected = seen(fleet_after(*workers, *ops), prompts, now_us)
    assert seen(fleet_after(*shuffled, *workers), prompts, now_us) == expected

    half = len(shuffled) // 2
    middle, late = fleet_after(*shuffled[:half], *workers), FleetState()
    for op in shuffled[half:]:
        late.apply(op)
    late.restore(middle.snapshot())
    assert [w.worker_id for w in late.workers()] == [
        w.worker_id for w in fleet_after(*shuffled, *workers).workers()
    ]


@given(operations, operations, st.randoms(use_true_random=False))
def test_operations_between_the_steps_of_a_snapshot_and_of_its_restoring_are_not_lost(
    drawn: list[tuple[str, int, int, int]], later: list[tuple[str, int, int, int]], random: Random
) -> None:
    """A reader applies the operations since the start of the snapshot again, as the log does.

    A request is placed first, then renewed, but never after it has finished: its replica publishes these, and
    the log keeps the order of each replica.
    """
    later = [each for each in later if each[0] != "renewed" or ("finished", *each[1:]) not in drawn]
    known = [each for each in drawn if {("placed", *each[1:]), ("renewed", *each[1:])} & {*later}]
    drawn = [("placed", *each[1:]) for each in known] + drawn
    before = [put(f"w{which}:1") for which in range(3)] + [made(*each) for each in dict.fromkeys(drawn)]
    rest = [made(*each) for each in dict.fromkeys(later) if each not in drawn]
    writer, reader = fleet_after(*before), FleetState()
    during, meanwhile = iter(rest), iter(rest)
    pieces: list[bytes] = []
    for piece in writer.snapshot_steps():
        if piece is not None:
            pieces.append(piece)
        if random.random() < 0.5:
            apply_next(writer, during)
    for progress in reader.restore_steps(pieces):
        assert 0 <= progress <= 1
        if random.random() < 0.5:
            apply_next(reader, meanwhile)
    for fleet in (writer, reader):
        for op in rest:
            fleet.apply(op)
        check(fleet.tree)

    expected = fleet_after(*before, *rest)
    prompts = [path(1, 2, 3), path(1, 2, 4, 5), path(1, 6), path(7)]
    for fleet in (writer, reader):
        assert held(fleet, prompts) == held(expected, prompts)


def apply_next(fleet: FleetState, ops: Iterator[Op]) -> None:
    for op in ops:
        fleet.apply(op)
        return


def held(fleet: FleetState, prompts: list[bytes]) -> object:
    """Facts that decisions read, but congestion: its rates mix a reader's own requests with others'."""
    rows = seen(fleet, prompts, START + 15 * SECOND)
    columns = [(*row[:6], row[6][:3], *row[7:]) for row in rows.values() if isinstance(row, tuple)]
    return columns, rows["bytes_per_token"], sorted(fleet.loads.requests)


def waits(request_id: str, worker: str = "", *, replica: str = "one", at_us: int = START) -> Waiting:
    return Waiting(request_id, at_us, replica, START, START, "|", worker, "low/", 1000, 10, 20)


def fleet_of_two(*ops: Op) -> FleetState:
    fleet = FleetState()
    for op in (put("a:1"), put("b:1"), *ops):
        fleet.apply(op)
    return fleet


@pytest.mark.parametrize(
    "end",
    [
        placed("r", "a:1", path(1)),
        FirstToken("r", START + 1),
        Finished("r", START + 1),
        Left("one", START),
    ],
    ids=lambda op: type(op).__name__,
)
def test_what_ends_a_wait_ends_it_whichever_is_heard_first(end: Op) -> None:
    for ops in ((waits("r"), end), (end, waits("r"))):
        assert list(fleet_of_two(*ops).tickets) == []


def test_a_replica_that_was_given_up_says_again_what_waits() -> None:
    fleet = fleet_of_two(waits("r"), Left("one", START), waits("r", at_us=START + 1))
    assert fleet.tickets.count == 1


@pytest.mark.parametrize(
    "op",
    [
        FirstToken("q", START + 1),
        Finished("q", START + 1),
        Finished("r", START + 1),
        placed("r", "b:1", path(1)),
        Left("two", START + 1),
        WorkerGone("b:1", START + 1, "one"),
        put("b:1", START + 1, draining=True),
        CircuitSet("b:1", START + 1, "one", Circuit.OPEN),
        CircuitSet("b:1", START + 1, "one", Circuit.CLOSED),
        Started("b:1", START + 1, "one", 5, cold=True),
    ],
    ids=lambda op: type(op).__name__,
)
def test_a_worker_that_may_have_room_is_noted_while_somebody_waits(op: Op) -> None:
    """Request q of replica two is in flight on worker b; r waits for it."""
    in_flight = placed("q", "b:1", path(2), replica="two")
    fleet = fleet_of_two(in_flight, waits("r", "b:1"), waits("any"))
    b = fleet.worker("b:1")
    assert b is not None
    fleet.relieved.clear()
    fleet.apply(op)
    assert fleet.relieved == {b.slot}


def test_no_worker_is_noted_while_nobody_waits() -> None:
    fleet = fleet_of_two(placed("q", "b:1", path(2)), FirstToken("q", START + 1), Finished("q", START + 2))
    assert fleet.relieved == set()


def test_a_release_for_age_and_a_snapshot_relieve_every_worker() -> None:
    fleet = fleet_of_two(placed("q", "b:1", path(2)), waits("r", at_us=START + 7200 * SECOND))
    assert fleet.collect(START + 7201 * SECOND) == 1
    assert fleet.relieved == {0, 1}
    newcomer = FleetState()
    newcomer.restore(fleet.snapshot())
    assert newcomer.relieved == {0, 1}


def test_the_row_of_a_removed_worker_is_kept_while_somebody_waits_for_it() -> None:
    """Else the row might become another worker's, and the ticket wait for that."""
    fleet = fleet_of_two(waits("r", "b:1"), WorkerGone("b:1", START, "one"))
    fleet.collect(START + 1000 * SECOND)
    fleet.apply(put("c:1", START + 1))
    (ticket,) = fleet.tickets
    assert fleet.at_slot(ticket.slot).worker_id == "b:1"
    fleet.apply(Finished("r", START + 2))
    fleet.collect(START + 2000 * SECOND)
    fleet.apply(put("d:1", START + 2))
    assert fleet.at_slot(ticket.slot).worker_id == "d:1"


def test_a_placement_is_charged_to_its_flow_once_and_a_snapshot_says_so() -> None:
    first = placed("r", "a:1", path(1), flow="low/acme")
    fleet = fleet_of_two(first, first, placed("free", "a:1", path(1)))
    newcomer = FleetState()
    newcomer.restore(fleet.snapshot())
    for known in (fleet, newcomer):
        assert known.fairness.service_us("low/acme", START) == first.service_us
        assert known.fairness.service_us("low", START) == first.service_us
        known.apply(first)
        assert known.fairness.service_us("low", START) == first.service_us


def test_a_missed_part_of_the_log_ends_what_a_snapshot_no_longer_lists() -> None:
    """A replica knows its own tickets better."""
    fleet = fleet_of_two(waits("mine"), waits("gone", replica="two"), waits("listed", replica="two"))
    writer = fleet_of_two(waits("listed", replica="two"), waits("new", replica="two"), waits("ended"))
    fleet.restore(writer.snapshot(), "one", missed=True)
    assert sorted(ticket.request_id for ticket in fleet.tickets) == ["listed", "mine", "new"]


def test_who_is_cut_off_gives_up_the_others_until_they_are_heard_again() -> None:
    state = FleetState()
    state.apply(Placed("a", 10, "w", "r2", 5_000_000, 1, 1))
    state.apply(Placed("b", 10, "w", "r1", 7_000_000, 1, 1))
    state.apply(Waiting("c", 10, "r3", 10, 10, "m|", "", "normal/", 1, 1, 1))
    state.apply(Waiting("d", 10, "r1", 10, 10, "m|", "", "normal/", 1, 1, 1))

    for left in state.cut_off("r1", 20):
        state.apply(left)

    assert list(state.loads.requests) == ["b"]
    assert [ticket.request_id for ticket in state.tickets] == ["d"]
    assert state.relieved == {0}
    assert state.cut_off("r1", 30) == []
    state.apply(Placed("late", 15, "w", "r2", 5_000_000, 1, 1))
    state.apply(Placed("new", 25, "w", "r2", 5_000_000, 1, 1))
    state.apply(Waiting("c", 25, "r3", 10, 10, "m|", "", "normal/", 1, 1, 1))
    assert set(state.loads.requests) == {"b", "new"}
    assert state.tickets.count == 2


# Length buckets.

BUCKETS = FleetRules(buckets=LengthBuckets((1_000, 9_000)))


def bucketed(*labels: str, rules: FleetRules = BUCKETS) -> FleetState:
    ops = [put(f"w{slot}", labels={"bucket": label}) for slot, label in enumerate(labels)]
    return fleet_after(*ops, rules=rules)


def test_a_removed_worker_leaves_its_bucket() -> None:
    fleet = bucketed("0-1000", "")
    assert fleet.buckets.lengths is not None
    fleet.apply(WorkerGone("w0", START, "one"))
    assert fleet.buckets.lengths is None


def test_a_snapshot_tells_lengths() -> None:
    fleet = bucketed("", "0")
    fleet.apply(Placed("1", START, "w1", "one", 1_000_000, 300, 1_500, (b"",)))
    fleet.apply(Placed("1", START, "w1", "one", 1_000_000, 300, 1_500, (b"",)))
    fleet.apply(Placed("batch", START, "w1", "one", 1_000_000, 300, 1_600, (b"", b"")))
    fleet.apply(Finished("batch", START))

    newcomer = FleetState(BUCKETS)
    newcomer.restore(fleet.snapshot())

    assert [newcomer.buckets.of(slot) for slot in (0, 1)] == [ANY_BUCKET, 0]
    assert newcomer.lengths.dump() == fleet.lengths.dump()
    demand = newcomer.lengths.demand(START)
    assert (demand.requests[row_of(1_500)], demand.requests[row_of(800)]) == (1, 1)
    assert demand.service_s.sum() == 2.0


def test_lengths_are_not_counted_while_nobody_belongs_to_a_bucket() -> None:
    fleet = bucketed("")
    fleet.apply(Placed("1", START, "w0", "one", 1_000_000, 300, 1_500, (b"",)))
    assert not list(fleet.lengths.demand(START).rows())


# Prefill and decode apart.


def test_uncached_lengths_are_counted_once_by_what_is_left_to_prefill_at_home() -> None:
    """The second is prefilled elsewhere, where less is left; then come its decode half and a plain one."""
    fleet = fleet_after(put("p", role="prefill"), put("far", role="prefill"), put("d", role="decode"))
    first = Placed(
        "1", START, "p", "one", 1_000_000, 3_000, 9_000, (b"",), safe_blocks=20, home_uncached_tokens=3_000
    )
    for op in (
        first,
        first,
        Placed("2", START, "far", "one", 1_000_000, 9_000, 9_500, (b"",), home_uncached_tokens=50_000),
        Placed("2d", START, "d", "one", 0, 0, 9_500, (b"",)),
        Placed("3", START, "p", "one", 1_000_000, 70_000, 9_500, (b"",)),
    ):
        fleet.apply(op)
    newcomer = FleetState()
    newcomer.restore(fleet.snapshot())
    for one in (fleet, newcomer):
        requests, cached_tokens, _ = one.uncached_lengths.sums(START)
        rows = {row: int(requests[row]) for row in requests.nonzero()[0].tolist()}
        assert rows == {row_of(3_000): 1, row_of(50_000): 1}
        assert cached_tokens[row_of(3_000)] == 20 * 256


def test_what_was_learned_of_decode_is_shared_and_a_newcomer_knows_it() -> None:
    old, new = (DecodeFitted("fast", START + us, "one", 0.01, 0.001, 5.0, 1.0 + us) for us in (0, 1))
    fleet = fleet_after(new, old)
    newcomer = FleetState()
    newcomer.restore(fleet.snapshot())
    for one in (fleet, newcomer):
        assert one.decode_fit("fast").line() == (0.01, 0.001, 5.0, 2.0)
        assert one.decode_fit("fast").known
        assert not one.decode_fit("default").known


@pytest.mark.parametrize(
    ("told", "learned", "kept"),
    [(0, 1_024, 1_024), (2_048, 1_024, 1_024), (512, 1_024, 512), (2_048, 0, 2_048)],
)
def test_what_a_worker_keeps_is_what_was_learned_and_never_more_than_it_says(
    told: int, learned: int, kept: int
) -> None:
    fleet = fleet_after(put("a:1", capacity_tokens=told), Insert("a:1", path(*range(20)), START))
    if learned:
        fleet.apply(CapacityLearned("a:1", START, "one", learned))
    newcomer = FleetState()
    newcomer.restore(fleet.snapshot())
    for one in (fleet, newcomer):
        worker = one.worker("a:1")
        assert worker is not None
        assert one.cache_tokens(worker) == kept
        assert one.tree.held_blocks(worker.slot) == kept // 256


def test_the_newest_word_about_a_capacity_counts() -> None:
    older, newer = CapacityLearned("a:1", START, "two", 10_240), CapacityLearned("a:1", START + 1, "one", 512)
    for ops in ((older, newer), (newer, older), (newer, older, older)):
        fleet = fleet_after(put("a:1"), *ops, Insert("a:1", path(1, 2, 3), START))
        assert fleet.learned_capacity("a:1") == newer
        assert fleet.tree.held_blocks(0) == 2


def test_what_was_learned_of_a_cache_goes_with_the_worker() -> None:
    """A word from before it was removed is none about the one that comes back."""
    learned, gone = CapacityLearned("a:1", START, "one", 512), WorkerGone("a:1", START + 1, "one")
    back = put("a:1", START + 2)
    for ops in ((put("a:1"), learned, gone, back), (put("a:1"), gone, back, learned)):
        fleet = fleet_after(*ops, Insert("a:1", path(1, 2, 3), START + 3))
        worker = fleet.worker("a:1")
        assert worker is not None
        assert fleet.cache_tokens(worker) == 0
        assert fleet.tree.held_blocks(worker.slot) == 3


def test_an_engine_that_says_what_it_holds_is_not_bounded_by_what_was_learned() -> None:
    fleet = fleet_after(
        put("a:1"),
        Tracked("a:1", START, "one", exact=True),
        CapacityLearned("a:1", START, "one", 512),
        Insert("a:1", path(1, 2, 3), START),
    )
    assert fleet.tree.held_blocks(0) == 3


# Slowdowns.


def test_a_slowdown_multiplies_the_price_of_its_worker_alone_whatever_comes_first() -> None:
    """The fit of the class, the slowdown and the worker itself come in any order, and twice."""
    fit = Fitted("default", START, "one", 0.5, 1e-3, 1e5)
    ops = [put("a:1"), put("b:1"), fit, SlowdownLearned("a:1", START, "one", 2.0)]
    for order in itertools.permutations(ops):
        fleet = fleet_after(*order, *order)
        slots = [fleet.worker(name).slot for name in ("a:1", "b:1")]  # type: ignore[union-attr]
        assert [fleet.model_at(slot).service_s(1_000, 0) for slot in slots] == [2 * 1.505, 1.505]
        slow = fleet.columns.gathered(np.array(slots), ANY_BUCKET, START)
        assert (slow.a_s.tolist(), slow.b_s.tolist()) == ([1.0, 0.5], [2e-3, 1e-3])


def test_the_newest_slowdown_counts_and_a_newcomer_knows_it() -> None:
    new, old = SlowdownLearned("a:1", START + 1, "one", 2.0), SlowdownLearned("a:1", START, "two", 3.0)
    newcomer = FleetState()
    newcomer.restore(fleet_after(put("a:1"), new, old).snapshot())
    assert newcomer.columns.slowdown(newcomer.worker("a:1").slot) == 2.0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "end",
    [
        WorkerGone("a:1", START, "one"),
        Started("a:1", START + 1, "one", 1, cold=True),
        Started("a:1", START + 1, "one", 1, cold=False),
    ],
)
def test_a_slowdown_ends_with_its_worker_and_its_process(end: Op) -> None:
    """Added again, it is as others are; a process that only said when it started is the same one."""
    slowdown, again = SlowdownLearned("a:1", START, "one", 2.0), put("a:1", START + 2)
    same = isinstance(end, Started) and not end.cold
    for order in itertools.permutations((slowdown, end, again)):
        fleet = fleet_after(put("a:1"), *order)
        fleet.collect(START + 3)
        worker = fleet.worker("a:1")
        assert worker is not None
        assert fleet.columns.slowdown(worker.slot) == (2.0 if same else 1.0)


def test_a_slowdown_that_nobody_says_any_more_ends() -> None:
    """A worker that gets no requests since it is slow would never be seen to be well again."""
    fleet = fleet_after(put("a:1"), SlowdownLearned("a:1", START, "one", 2.0))
    fleet.collect(START + KEPT_US - 1)
    assert fleet.columns.slowdown(0) == 2.0
    fleet.collect(START + KEPT_US)
    assert fleet.columns.slowdown(0) == 1.0
    fleet.apply(SlowdownLearned("a:1", START + KEPT_US + 1, "one", 2.0))
    assert fleet.columns.slowdown(0) == 2.0


@pytest.mark.parametrize(
    ("device", "label", "said", "kept", "splits"),
    [
        (512, None, None, 2, False),
        (512, None, 1_024, 4, True),
        (512, None, 256, 2, False),
        (512, "768", 1_024, 3, True),
        (512, "0", 1_024, 2, False),
        (512, "many", 1_024, 4, True),
        (0, None, 1_024, 4, True),
    ],
)
def test_a_worker_keeps_what_its_device_and_host_memory_hold(
    device: int, label: str | None, said: int | None, kept: int, splits: bool
) -> None:
    """The label decides, else its engine's report, which a newcomer knows and a removal ends."""
    labels = {} if label is None else {"host_tokens": label}
    ops = [put("a:1", capacity_tokens=device, labels=labels)]
    said_ops = [] if said is None else [HostMemory("a:1", START, "one", said)]
    for order in ([*ops, *said_ops], [*said_ops, *ops, *said_ops]):
        fleet = fleet_after(*order, Insert("a:1", path(*range(10)), START))
        newcomer = FleetState()
        newcomer.restore(fleet.snapshot())
        for one in (fleet, newcomer):
            worker = one.worker("a:1")
            assert worker is not None
            assert one.tree.held_blocks(worker.slot) == kept
    fleet.apply(WorkerGone("a:1", START + 1, "one"))
    fleet.apply(put("a:1", START + 2, capacity_tokens=device))
    fleet.apply(Insert("a:1", path(*range(10)), START + 3))
    assert fleet.tree.held_blocks(0) == (device // 256 or 10)


def test_only_what_was_used_long_ago_is_loaded_from_host_memory() -> None:
    """The device has 4 of 12 blocks: the newest prompt, and the blocks that older ones share with new."""
    fleet = fleet_after(put("a:1", capacity_tokens=4 * 256, labels={"host_tokens": str(12 * 256)}))
    for number, prompt in enumerate((path(0, 1, 2, 3, 4, 5), path(0, 1, 7), path(8, 9))):
        fleet.apply(Insert("a:1", prompt, START + number))
    slots = np.array([0], dtype=np.intp)

    def load_s(prompt: bytes) -> float:
        fleet.columns.refresh_soon()
        seen = fleet.candidates(slots, (prompt,), FULL_ATTENTION, 1536.0, 256.0, START + 9)
        return seen.loads_s.get(0, 0.0) / (256.0 * HOST_TOKEN_S)

    assert load_s(path(8, 9)) == 0.0
    assert load_s(path(0, 1, 2, 3, 4, 5)) == pytest.approx(6.0)
    assert load_s(path(0, 1, 2)) == pytest.approx(3.0)
    fleet.apply(Insert("a:1", path(0, 1), START + 3))
    assert load_s(path(0, 1, 2, 3, 4, 5)) == pytest.approx(4.0)
    fleet.apply(put("a:1", START + 4, capacity_tokens=4 * 256))
    assert load_s(path(0, 1)) == 0.0


def test_loading_is_priced_on_the_workers_with_the_longest_matches() -> None:
    """LOADS_MAX of them, with one more than that."""
    fleet = FleetState()
    for worker in range(LOADS_MAX + 1):
        labels = {"host_tokens": str(30 * 256)}
        fleet.apply(put(f"w{worker}:1", capacity_tokens=256, labels=labels))
        fleet.apply(Insert(f"w{worker}:1", path(*range(2 + worker)), START))
        fleet.apply(Insert(f"w{worker}:1", path(99), START + 1))
    for _ in range(LOADS_MAX + 1):
        slots = np.arange(LOADS_MAX + 1)
        fleet.columns.refresh_soon()
        seen = fleet.candidates(slots, (path(*range(20)),), FULL_ATTENTION, 5120.0, 256.0, START + 9)
    assert sorted(seen.loads_s) == list(range(1, LOADS_MAX + 1))
    assert seen.loads_s[LOADS_MAX] == pytest.approx((2 + LOADS_MAX) * 256 * HOST_TOKEN_S)
    assert fleet.among(seen, slots[:3]).loads_s == seen.loads_s


def test_the_newest_plan_of_the_slow_loop_counts_and_a_newcomer_knows_it() -> None:
    old, new = OffloadPlan(START, "two", 1_000), OffloadPlan(START + 1, "one", 2_000)
    fleet = fleet_after(new, old)
    newcomer = FleetState()
    newcomer.restore(fleet.snapshot())
    assert fleet.offload_plan == newcomer.offload_plan == new


# KV sizes.


def test_a_model_that_is_not_listed_weighs_what_all_others_do() -> None:
    rules = FleetRules(kv_bytes={"m": KvBytes(7.0), "*": KvBytes(3.0)})
    assert [rules.kv_of(model).kv_bytes_per_token for model in ("m", "x", None)] == [7.0, 3.0, 3.0]
    assert not FleetRules(kv_bytes={"m": KvBytes(7.0)}).kv_of("x").known


# Sites.


def test_a_worker_whose_label_does_not_say_stands_where_requests_come_to() -> None:
    """The rule also holds after a snapshot, which carries labels, read by a replica of the same settings."""
    rules = FleetRules(site="here")
    puts = [put("a:1"), put("b:1", labels={"site": "there"}), put("c:1", labels={"site": ""})]
    fleet = fleet_after(*puts, rules=rules)
    copy = FleetState(rules)
    copy.restore(fleet.snapshot())
    for each in (fleet, copy):
        assert {worker.worker_id: worker.site for worker in each.workers()} == {
            "a:1": "here",
            "b:1": "there",
            "c:1": "here",
        }
    assert [worker.site for worker in fleet_after(put("a:1")).workers()] == [""]


def test_a_placement_whose_path_is_none_reserves_nothing() -> None:
    fleet = FleetState()
    with pytest.raises(ValueError):
        fleet.apply(Placed("r", START, "a:1", "one", 5, 5, 5, (b"12345678", b"123")))
    assert not fleet.loads.requests
    assert fleet.workers() == []


@pytest.mark.no_cover
def test_a_fleet_has_a_bounded_number_of_workers() -> None:
    """Those that were removed are forgotten after a while, and make room for others."""
    fleet = FleetState()
    for number in range(WORKERS_MAX):
        fleet.apply(WorkerGone(f"w{number}:1", START, "one"))
    with pytest.raises(ValueError, match="16384"):
        fleet.apply(put("more:1", START + 1))
    fleet.collect(START + 100 * SECOND)
    fleet.apply(put("another:1", START + 101 * SECOND))
    assert [worker.worker_id for worker in fleet.workers()] == ["another:1"]
