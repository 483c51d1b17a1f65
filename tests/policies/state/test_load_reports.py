"""A placement is published. The next vector carries its first token and its end, if only loads change."""

from fakes.decisions import LANE, WAITING_FLOW

from policies import (
    CachePool,
    Finished,
    FirstToken,
    FleetRules,
    FleetState,
    Left,
    LinkRules,
    Op,
    Placed,
    Shipping,
    Waiting,
    WorkerPut,
)
from radix import chain_bytes

START = 1_000_000_000
PATH = chain_bytes(b"abcd", root=1, block_bytes=1)
RULES = FleetRules(links={"far>": LinkRules(1e9)}, pools={"east": CachePool()})


def placed(
    request_id: str = "r", worker: str = "a:1", at_us: int = START, paths: tuple[bytes, ...] = (PATH,)
) -> Placed:
    return Placed(request_id, at_us, worker, "one", 1000, 100, 200, paths)


def fleet_after(*ops: Op) -> FleetState:
    fleet = FleetState(RULES, own="one")
    fleet.apply(WorkerPut("a:1", 1, "one", "http://a:1"))
    fleet.apply(WorkerPut("p:1", 1, "one", "http://p:1", labels={"cache_pool": "east"}))
    for op in ops:
        fleet.apply(op)
    return fleet


def test_first_tokens_ends_and_renewals_are_not_told_and_placements_are() -> None:
    reports = fleet_after(placed()).load_reports
    assert reports.tells(placed("s"))
    assert reports.tells(placed("s", paths=())), "a call of an encoder has no prompt"
    assert not reports.tells(placed("r", at_us=START + 1, paths=()))
    assert not reports.tells(FirstToken("r", START + 1))
    assert not reports.tells(Finished("r", START + 1, START + 1))
    assert reports.tells(WorkerPut("b:1", 1, "one", "http://b:1"))


def test_the_end_of_a_request_that_waits_is_told() -> None:
    waiting = Waiting("w", START, "one", START, START, LANE, "", WAITING_FLOW, 1000, 100, 200)
    reports = fleet_after(waiting).load_reports
    assert reports.urgent
    assert reports.tells(Finished("w", START + 1))


def test_the_end_of_a_request_whose_kv_is_on_its_way_is_told() -> None:
    shipping = Shipping("r", START, "one", "far>", 1000, START, START + 10)
    reports = fleet_after(placed(), shipping).load_reports
    assert not reports.tells(FirstToken("r", START + 1))
    assert reports.tells(Finished("r", START + 1))


def test_the_end_of_a_prefill_whose_prompt_goes_into_a_pool_is_told_once() -> None:
    fleet = fleet_after(placed(worker="p:1"))
    reports = fleet.load_reports
    assert reports.tells(FirstToken("r", START + 1))
    assert reports.tells(Finished("r", START + 1))
    fleet.apply(FirstToken("r", START + 1))
    assert not reports.tells(Finished("r", START + 2))


def test_a_vector_names_the_workers_where_more_changed_than_placements_and_a_full_one_all() -> None:
    fleet = fleet_after()
    assert not fleet.load_reports.due
    fleet.apply(placed())
    assert fleet.load_reports.due, "a full one must follow"
    vector = fleet.load_reports.vector(START + 1, full=False)
    assert (vector.replica, vector.at_us, vector.workers, vector.full) == ("one", START + 1, (), False)
    assert not fleet.load_reports.due
    fleet.apply(placed("s", "p:1"))
    fleet.apply(FirstToken("r", START + 2))
    assert fleet.load_reports.vector(START + 2, full=False).workers == ("a:1",)
    assert fleet.load_reports.vector(START + 3, full=True).workers == ("a:1", "p:1")


def test_a_vector_names_the_worker_of_a_renewal_which_is_not_told() -> None:
    fleet = fleet_after(placed(), Left("one", START + 1), placed(at_us=START + 2, paths=()))
    assert fleet.load_reports.vector(START + 3, full=False).workers == ("a:1",)


def test_the_prompt_of_a_request_in_a_vector_enters_the_pool_when_its_prefill_is_over() -> None:
    owner, other = fleet_after(placed(worker="p:1")), FleetState(RULES, own="two")
    for op in (WorkerPut("p:1", 1, "one", "http://p:1", labels={"cache_pool": "east"}), placed(worker="p:1")):
        other.apply(op)
    other.apply(owner.load_reports.vector(START + 1, full=False))
    other.collect(START + 2)
    other.apply(FirstToken("r", START + 3))
    pool = next(each for each in other.holders() if each.worker_id == "pool/east")
    assert other.tree.held_blocks(pool.slot) == 4


def test_a_vector_relieves_workers_only_while_requests_wait() -> None:
    owner, other = fleet_after(placed()), FleetState(RULES, own="two")
    other.apply(owner.load_reports.vector(START + 1, full=False))
    owner.apply(Finished("r", START + 2))
    end = owner.load_reports.vector(START + 3, full=False)
    other.apply(end)
    assert not other.relieved

    other = FleetState(RULES, own="two")
    other.apply(placed())
    other.apply(Waiting("w", START, "two", START, START, LANE, "", WAITING_FLOW, 1000, 100, 200))
    other.relieved.clear()
    other.apply(end)
    assert [other.at_slot(slot).worker_id for slot in other.relieved] == ["a:1"]


def test_a_newcomer_learns_from_a_snapshot_what_all_others_have_in_flight() -> None:
    """It gets the writer's one by one, and the others' as vectors; it skips its own vectors."""
    one, two = fleet_after(placed()), FleetState(RULES, own="two")
    two.apply(Placed("s", START, "a:1", "two", 1000, 100, 300, (PATH,)))
    two.apply(placed())
    two.apply(one.load_reports.vector(START + 5, full=True))
    for own, inflight in (("three", 2), ("one", 1)):
        newcomer = FleetState(RULES, own=own)
        newcomer.restore(two.snapshot(), own, missed=True)
        worker = newcomer.worker("a:1") or newcomer.at_slot(0)
        assert newcomer.loads.inflight_requests[worker.slot] == inflight
    late = FleetState(RULES, own="three")
    late.restore(two.snapshot(), "three")
    assert late.loads.head(0, START + 9) is not None
    late.apply(placed("t", at_us=START + 4))
    assert late.loads.inflight_requests[0] == 2, "the vector has it"


def test_who_missed_a_part_of_the_log_gives_up_rows_that_the_snapshot_does_not_know() -> None:
    one = fleet_after(placed())
    late = FleetState(RULES, own="three")
    late.apply(one.load_reports.vector(START + 5, full=False))
    late.restore(FleetState(RULES, own="two").snapshot(), "three", missed=True)
    assert not late.loads.inflight_requests.any()
    assert late.cut_off("three", START + 6) == []
