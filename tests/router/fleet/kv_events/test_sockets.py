"""Old batches come in both framings that engines use; who is silent is not waited for."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from loadtest.engine.kv_publisher import KvPublisher
from loadtest.engine.kv_settings import KvEventsSettings
from router.engines.sources import Source
from router.fleet.kv_events.sockets import Subscription, replay

Context = zmq.Context[zmq.Socket[bytes]]


@pytest.fixture
def context() -> Iterator["Context"]:
    context: Context = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.mark.parametrize("topic", [True, False], ids=["vLLM", "SGLang"])
async def test_old_batches_come_in_order_from_the_one_that_is_asked_for(
    tmp_path: Path, context: "Context", topic: bool
) -> None:
    asked = f"ipc://{tmp_path}/replay"
    publisher = KvPublisher(KvEventsSettings(f"ipc://{tmp_path}/events", asked), replay_topic=topic)
    for number in range(100):
        publisher.publish(b"%d" % number)
    came = [batch async for batches in replay(context, asked, 60) for batch in batches]
    assert came == [(number, b"%d" % number) for number in range(60, 100)]
    assert [batch async for batch in replay(context, asked, 100)] == []
    publisher.close()


async def test_an_answer_that_does_not_come_is_given_up(tmp_path: Path, context: "Context") -> None:
    with pytest.raises(TimeoutError):
        _ = [batch async for batch in replay(context, f"ipc://{tmp_path}/nobody", 0, 0.05)]


async def test_an_endpoint_that_cannot_be_used_is_a_failure_of_the_world(context: "Context") -> None:
    with pytest.raises(OSError, match="nonsense"):
        Subscription(context, Source(0, "nonsense://x"), "nonsense://x", lambda: None)
    with pytest.raises(OSError, match="nonsense"):
        _ = [batch async for batch in replay(context, "nonsense://x", 0)]
