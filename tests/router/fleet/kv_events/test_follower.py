"""How far following a worker has come, before there is anything to follow."""

import logging

import pytest
from fakes.kv_fleet import Replica

from policies import Tracked
from radix.residency import Residency
from router.fleet.kv_events import Follower, State


async def test_a_worker_without_publishers_is_silent_or_refused_and_history_describes_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    replica = Replica()
    local = replica.add()
    publish = replica.shared.publish
    follower = Follower(
        local,
        local.worker,
        replica.kv_events.core,
        Residency(32, lambda *_: None),
        now_unix_s=lambda: 0.0,
        woken=lambda _: None,
    )
    assert follower.state is State.SILENT
    publish(Tracked(local.worker.worker_id, 5, "before", exact=True))
    follower.check(lambda *_: pytest.fail("nothing is asked for"))
    assert replica.tracks(local), "whoever takes over first sees what there is"
    with caplog.at_level(logging.WARNING):
        follower.refuse("no place for workers")
        follower.refuse("no place for workers")
    assert len(caplog.records) == 1
    assert follower.state is State.REFUSED
    follower.check(lambda *_: pytest.fail("nothing is asked for"))
    assert not replica.tracks(local)
    assert not follower.flush()
    await replica.client.aclose()
