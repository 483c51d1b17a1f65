"""The tree matches the engines' events on real sockets, through gaps, restarts and late joins."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
from fakes.kv_fleet import CLEARED, FakeEngine, Replica, removed, stored
from fakes.running import until

from policies import FirstToken, Forget, Insert, Placed, Started, Tracked
from router.fleet.kv_events import following
from router.metric_families import KV_EVENT_BLOCKS, KV_EVENT_LAG, KV_EVENT_STATE


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are looked at more often than in service."""
    monkeypatch.setattr(following, "LOOK_S", 0.05)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[FakeEngine]:
    engine = FakeEngine(tmp_path)
    yield engine
    engine.stop()


@pytest.fixture
async def replica() -> AsyncIterator[Replica]:
    async with Replica() as replica:
        yield replica


async def test_what_an_engine_stores_and_removes_is_what_the_tree_believes(
    engine: FakeEngine, replica: Replica
) -> None:
    engine.start()
    local = replica.follow(engine)
    await until(lambda: replica.tracks(local))
    engine.says(stored(1, 0, 3))
    await until(lambda: replica.held(1, 5, local) == 3)
    engine.says(stored(1, 3, 5), stored(2, 0, 2))
    await until(lambda: replica.held(1, 5, local) == 5)
    engine.says(removed(1, 4), removed(1, 3))
    await until(lambda: replica.held(1, 5, local) == 3)
    assert replica.held(2, 2, local) == 2
    assert replica.state(local) == "live"
    assert replica.kv_events.counts()["stored"] == 3
    read = {family: (labels, value) for family, labels, value in replica.kv_events.samples()}
    worker = local.worker.worker_id
    assert read[KV_EVENT_BLOCKS] == ((worker,), 5)
    assert read[KV_EVENT_STATE] == ((worker, "live"), 1)
    assert read[KV_EVENT_LAG][1] >= 0


async def test_who_joins_late_knows_everything_if_it_can_still_be_asked_for(
    engine: FakeEngine, replica: Replica
) -> None:
    engine.start().says(stored(1, 0, 3))
    engine.says(removed(1, 2))
    local = replica.follow(engine)
    await until(lambda: replica.tracks(local))
    assert replica.held(1, 3, local) == 2


async def test_who_joins_late_knows_an_engine_that_holds_more_than_it_says(
    engine: FakeEngine, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In host memory: 84 blocks, and its device holds 1,000 tokens, 31 blocks.

    The last store comes after all of the others are known, and before the worker is tracked.
    """
    monkeypatch.setattr(following, "LOOK_S", 1.0)
    engine.start()
    for prompt in range(20):
        engine.says(stored(prompt, 0, 4))
    local = replica.follow(engine)
    await until(lambda: replica.state(local) == "live")
    engine.says(stored(20, 0, 4))
    await until(lambda: replica.tracks(local))
    await until(lambda: replica.shared.fleet.tree.held_blocks(local.worker.slot) == 84)
    assert all(replica.held(prompt, 4, local) == 4 for prompt in range(21))


async def test_who_joins_too_late_tells_what_it_knows_and_leaves_the_rest_to_history(
    tmp_path: Path, replica: Replica
) -> None:
    engine = FakeEngine(tmp_path, replays=False).start()
    engine.says(stored(1, 0, 3))
    local = replica.follow(engine)
    await until(lambda: replica.state(local) == "partial")
    engine.says(stored(2, 0, 2))
    await until(lambda: replica.held(2, 2, local) == 2)
    assert not replica.tracks(local)
    engine.says(CLEARED, stored(3, 0, 1))
    await until(lambda: replica.tracks(local))
    assert (replica.held(2, 2, local), replica.held(3, 1, local)) == (0, 1)
    engine.stop()


async def test_a_gap_is_filled_before_anything_that_came_behind_it(
    engine: FakeEngine, replica: Replica
) -> None:
    engine.start()
    local = replica.follow(engine)
    await until(lambda: replica.tracks(local))
    engine.says(stored(1, 0, 2))
    engine.loses(stored(1, 2, 4))
    engine.says(stored(1, 4, 5))
    await until(lambda: replica.held(1, 5, local) == 5)
    assert replica.tracks(local)
    assert replica.kv_events.counts()["gaps"] == 1
    assert not replica.shared.said(Forget)


async def test_after_a_gap_that_nobody_can_fill_history_describes_the_worker(
    tmp_path: Path, replica: Replica
) -> None:
    """A prefill under way is spared: it is not in the cache yet, but soon will be."""
    engine = FakeEngine(tmp_path, replays=False).start()
    local = replica.follow(engine)
    await until(lambda: replica.state(local) == "partial")
    engine.says(CLEARED)
    engine.says(stored(1, 0, 3))
    await until(lambda: replica.tracks(local) and replica.held(1, 3, local) == 3)
    path = replica.hasher.identify((), [[9] * 65], 5).paths[0]
    replica.shared.publish(Placed("r", replica.now_us(), local.worker.worker_id, "one", 1, 1, 1, (path,)))
    engine.loses(stored(1, 3, 4))
    engine.says(stored(2, 0, 1))
    await until(lambda: not replica.tracks(local))
    assert (replica.held(1, 3, local), replica.held(2, 1, local)) == (0, 1)
    assert replica.shared.fleet.tree.held_blocks(local.worker.slot) == 3
    assert replica.kv_events.counts()["gap"] == 1
    engine.stop()


async def test_an_engine_that_starts_anew_has_nothing(engine: FakeEngine, replica: Replica) -> None:
    engine.start()
    local = replica.follow(engine)
    await until(lambda: replica.tracks(local))
    engine.says(stored(1, 0, 3))
    await until(lambda: replica.held(1, 3, local) == 3)
    engine.stop()
    await until(lambda: replica.state(local) == "connecting")
    engine.start()
    await until(lambda: replica.held(1, 3, local) == 0)
    await until(lambda: replica.state(local) == "live")
    engine.says(stored(2, 0, 2))
    await until(lambda: replica.held(2, 2, local) == 2)
    assert replica.tracks(local)
    assert replica.kv_events.counts()["restart"] == 1


async def test_an_engine_that_only_lost_its_connection_has_lost_nothing(
    engine: FakeEngine, replica: Replica
) -> None:
    engine.start()
    local = replica.follow(engine)
    await until(lambda: replica.tracks(local))
    engine.says(stored(1, 0, 3))
    await until(lambda: replica.held(1, 3, local) == 3)
    replica.kv_events.followers[local.worker.worker_id].feeds[0].sequence.connected()
    engine.says(stored(1, 3, 4))
    await until(lambda: replica.held(1, 4, local) == 4)
    assert replica.tracks(local)
    assert not replica.shared.said(Forget)


async def test_a_flush_that_somebody_orders_is_believed_when_the_engine_says_so(
    engine: FakeEngine, replica: Replica
) -> None:
    """Engines tell it with their next step; a word that was wrong is taken back with theirs."""
    engine.start()
    local = replica.follow(engine)
    await until(lambda: replica.tracks(local))
    engine.says(stored(1, 0, 3))
    await until(lambda: replica.held(1, 3, local) == 3)
    feed = replica.kv_events.followers[local.worker.worker_id].feeds[0]
    for wrong in (True, False):
        replica.shared.publish(Forget(local.worker.worker_id, replica.now_us()))
        await until(lambda: feed.doubted)
        assert replica.held(1, 3, local) == 0
        engine.says(stored(2, 0, 1)) if wrong else engine.says(CLEARED, stored(2, 0, 1))
        await until(lambda: replica.held(2, 1, local) == 1 and not feed.doubted)
        await until(lambda wrong=wrong: replica.held(1, 3, local) == (3 if wrong else 0))  # type: ignore[misc]
    assert replica.tracks(local)


async def test_a_new_process_that_a_health_check_sees_first_is_forgotten_once_and_followed(
    engine: FakeEngine, replica: Replica
) -> None:
    engine.start()
    local = replica.follow(engine)
    await until(lambda: replica.tracks(local))
    engine.says(stored(1, 0, 3))
    await until(lambda: replica.held(1, 3, local) == 3)
    engine.stop()
    replica.shared.publish(Started(local.worker.worker_id, replica.now_us(), "one", 5, cold=True))
    assert replica.held(1, 3, local) == 0
    engine.start().says(stored(2, 0, 2))
    await until(lambda: replica.held(2, 2, local) == 2)
    assert replica.held(1, 3, local) == 0
    await until(lambda: replica.state(local) == "live")


async def test_batches_that_make_no_sense_harm_nobody(engine: FakeEngine, replica: Replica) -> None:
    engine.start()
    local = replica.follow(engine)
    await until(lambda: replica.tracks(local))
    publisher = engine._publisher
    assert publisher is not None
    publisher._pub.send(b"one frame")
    publisher._pub.send_multipart((b"", b"short", b"x"))
    publisher._pub.send_multipart((b"", b"12345678", b"x", b"y"))
    engine.says(stored(1, 0, 2))
    await until(lambda: replica.held(1, 2, local) == 2)
    assert replica.kv_events.counts()["invalid"] == 3
    publisher.publish(b"\xc1garbage")
    await until(lambda: not replica.tracks(local))
    engine.says(CLEARED, stored(2, 0, 1))
    await until(lambda: replica.tracks(local))
    assert replica.held(2, 1, local) == 1


async def test_an_engine_that_connects_itself_is_listened_for(tmp_path: Path, replica: Replica) -> None:
    import zmq

    local = replica.add(kv_events=f"bind:ipc://{tmp_path}/gateway")
    await until(lambda: replica.state(local) == "connecting")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.PUB)
    socket.connect(f"ipc://{tmp_path}/gateway")
    await until(lambda: replica.state(local) == "partial")
    batch = msgspec.msgpack.encode((0.0, (stored(1, 0, 2),), None))
    socket.send_multipart((b"", (0).to_bytes(8, "big"), batch))
    await until(lambda: replica.held(1, 2, local) == 2)
    assert replica.tracks(local) or await until(lambda: replica.tracks(local)) is None
    context.destroy(linger=0)


async def test_an_engine_is_asked_where_it_publishes_if_its_prompts_are_token_ids(
    engine: FakeEngine, replica: Replica
) -> None:
    engine.start()
    sources = {"0": {"endpoint": engine.endpoint, "replay_endpoint": engine.replay, "publisher": "zmq"}}
    replica.answers["/kv_event_sources"] = msgspec.json.encode(sources)
    other = replica.add("http://127.0.0.2", model="other")
    local = replica.add("http://127.0.0.1")
    await until(lambda: replica.tracks(local))
    assert replica.state(other) == ""


async def test_where_the_gateway_does_not_connect_to_no_engine_can_send_it(replica: Replica) -> None:
    replica.answers["/kv_event_sources"] = b'{"0": {"endpoint": "tcp://169.254.169.254:5557"}}'
    metadata = replica.add("http://10.0.0.1")
    await until(lambda: replica.state(metadata) == "refused")
    replica.answers["/kv_event_sources"] = b'{"0": {"endpoint": "ipc:///run/docker.sock"}}'
    elsewhere = replica.add("http://10.0.0.2")
    await until(lambda: replica.state(elsewhere) == "refused")


async def test_an_engine_without_events_is_left_to_history(replica: Replica) -> None:
    local = replica.add()
    await until(lambda: replica.state(local) == "silent")
    await until(lambda: "publishes no events" in replica.kv_events.followers[local.worker.worker_id].detail)
    assert not replica.tracks(local)


async def test_an_engine_that_did_not_say_where_it_publishes_is_soon_asked_again(
    engine: FakeEngine, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is busy starting does not answer in time."""
    monkeypatch.setattr(following, "SOON_S", 0.1)
    engine.start()
    local = replica.add("http://127.0.0.1")
    await until(lambda: replica.state(local) == "silent")
    sources = {"0": {"endpoint": engine.endpoint, "replay_endpoint": engine.replay, "publisher": "zmq"}}
    replica.answers["/kv_event_sources"] = msgspec.json.encode(sources)
    await until(lambda: replica.tracks(local))


async def test_what_changes_while_the_log_takes_nothing_is_told_as_it_is_afterwards(
    engine: FakeEngine, replica: Replica
) -> None:
    engine.start()
    local = replica.follow(engine)
    await until(lambda: replica.tracks(local))
    replica.buffered_ops = 1_000_000
    engine.says(stored(1, 0, 3))
    engine.says(removed(1, 2))
    await until(lambda: replica.kv_events.counts()["removed"] == 1)
    assert not replica.shared.said(Insert)
    replica.buffered_ops = 0
    await until(lambda: replica.held(1, 3, local) == 2)
    assert len(replica.shared.said(Insert)) == 1


async def test_who_takes_over_knows_what_the_one_before_knew(engine: FakeEngine) -> None:
    engine.start()
    async with Replica("one", ("one", "two")) as one, Replica("two", ("one", "two")) as two:
        locals_ = {each: each.follow(engine) for each in (one, two)}
        await until(lambda: any(each.tracks(local) for each, local in locals_.items()))
        first = next(each for each, local in locals_.items() if each.tracks(local))
        second = two if first is one else one
        assert second.state(locals_[second]) == ""
        engine.says(stored(1, 0, 3))
        await until(lambda: first.held(1, 3, locals_[first]) == 3)
        second.alive = (second.kv_events.replica,)
        await until(lambda: second.tracks(locals_[second]))
        assert second.held(1, 3, locals_[second]) == 3
        first.add("http://other")
        first.alive = ("one", "two", "three", "four", "five", "six")
        await until(lambda: (first.state(locals_[first]) == "") == (first.kv_events.core.turn("w:80") > 0))


async def test_a_worker_that_nobody_follows_any_more_is_given_back_to_history() -> None:
    async with Replica(on=False) as replica:
        local = replica.add(kv_events="tcp://127.0.0.1:5557")
        replica.shared.publish(Tracked(local.worker.worker_id, replica.now_us(), "gone", exact=True))
        await until(lambda: not replica.tracks(local))
        assert replica.state(local) == ""


async def test_a_worker_that_cannot_be_heard_is_given_back_to_history(
    engine: FakeEngine, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    from router.fleet.kv_events import follower

    engine.start()
    local = replica.follow(engine)
    await until(lambda: replica.tracks(local))
    monkeypatch.setattr(follower, "DEAF_S", 0.2)
    engine.stop()
    await until(lambda: not replica.tracks(local))
    assert not replica.shared.said(Forget)


async def test_what_the_tree_believes_and_the_engine_never_had_is_taken_back(
    engine: FakeEngine, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that was given up before its prefill leaves such a belief."""
    from router.fleet.kv_events import follower

    engine.start()
    local = replica.follow(engine)
    await until(lambda: replica.tracks(local))
    engine.says(stored(1, 0, 2))
    path = replica.hasher.identify((), [[9] * 65], 5).paths[0]
    worker_id = local.worker.worker_id
    replica.shared.publish(Placed("r", replica.now_us(), worker_id, "one", 1, 1, 1, (path,)))
    replica.shared.publish(FirstToken("r", replica.now_us()))
    await until(lambda: replica.shared.fleet.tree.held_blocks(local.worker.slot) == 4)
    monkeypatch.setattr(follower, "SPARED_S", 0.0)
    await until(lambda: replica.shared.fleet.tree.held_blocks(local.worker.slot) == 2)
    assert replica.held(1, 2, local) == 2
    assert replica.kv_events.counts()["corrections"] == 1
