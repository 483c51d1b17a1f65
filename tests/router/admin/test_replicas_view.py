"""What is told of the replicas, with Redis and without."""

from dataclasses import replace

from fakes.admin import WELL, Setup

from router.shared import Vitals


async def test_each_replica_is_shown_as_it_says_it_is(setup: Setup) -> None:
    said = Vitals(version="1", address="a:1", at_unix_s=1e9 - 2, requests={"completed": 5})
    setup.vitals = {"r1": said, "r2": None}
    told = (await setup.client.get("/replicas")).json()
    assert (told["asked"], told["shared"], told["degraded"], told["total"]) == ("r1", True, None, 2)
    known, unknown = told["replicas"]
    assert (known["replica"], known["known"], known["age_s"], known["address"]) == ("r1", True, 2.0, "a:1")
    assert known["requests"] == {"completed": 5}
    assert (unknown["replica"], unknown["known"], unknown["age_s"]) == ("r2", False, None)
    assert unknown.keys() == known.keys()
    assert (unknown["ready"], unknown["version"], unknown["started_unix_s"]) == (None, None, None)


async def test_without_redis_the_answer_says_so(setup: Setup) -> None:
    setup.status = replace(WELL, connected=False, degraded_reason="unreachable")
    setup.vitals = {"r1": Vitals()}
    told = (await setup.client.get("/replicas")).json()
    assert (told["shared"], told["degraded"], told["total"]) == (False, "unreachable", 1)
