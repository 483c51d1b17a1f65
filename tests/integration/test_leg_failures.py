"""Either leg of a handed-over request fails, at any time: the other ends, and nothing stays behind.

    client ──> gateway ──> prefill worker     each fails at every step, in every way,
                  └──────> decode worker      with every protocol

Engines wait for each other as long as the real ones do, minutes; a path that waits with them does not end
within these tests. The engines' own state shows it: rooms, kept KV, running requests (`fakes.pairs`). In the
end nothing is reserved in either replica, and no engine holds anything.
"""

import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from fakes.pairs import PROTOCOLS, PairCourse, Pairs, Step, open_pairs
from fakes.running import until
from fakes.stage import no_task_left

from loadtest.engine import Fault

pytestmark = pytest.mark.asyncio(loop_scope="module")

STREAMED = [pytest.param(True, id="stream"), pytest.param(False, id="whole")]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=PROTOCOLS)
async def shared_pairs(request: Any) -> AsyncIterator[Pairs]:
    async with open_pairs(request.param) as pairs:
        yield pairs


@pytest_asyncio.fixture(loop_scope="module")
async def pairs(shared_pairs: Pairs) -> AsyncIterator[Pairs]:
    """The stage as it is after its start, and as it must be after each test."""
    async with no_task_left():
        yield shared_pairs
        await shared_pairs.mended()


def requests(pairs: Pairs, role: str) -> int:
    return pairs.total(role, lambda engine: engine.counters.requests)


# Before the first byte: another pair answers.

AT_ONCE = [
    Fault("reset", count=1),
    Fault("close", count=1),
    Fault("garbage", count=1),
    Fault("error", count=1, status=500),
    Fault("error", count=1, status=503),
]


@pytest.mark.parametrize("streamed", STREAMED)
@pytest.mark.parametrize("fault", AT_ONCE, ids=lambda fault: f"{fault.kind}-{fault.status}")
@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_leg_that_fails_at_once_ends_the_other_and_another_pair_answers(
    pairs: Pairs, role: str, fault: Fault, streamed: bool
) -> None:
    pairs.arm(role, fault)
    course = await pairs.ask("calm", streamed=streamed)
    await course.answered()

    assert not pairs.faults[role].armed
    await pairs.empty()


@pytest.mark.parametrize("streamed", STREAMED)
@pytest.mark.parametrize("kind", ["reset", "close"])
async def test_a_decode_leg_that_fails_behind_its_head_has_answered_nothing(
    pairs: Pairs, kind: Any, streamed: bool
) -> None:
    """A head alone proves nothing: vLLM sends the head of a stream before it has the KV."""
    pairs.arm("decode", Fault(kind, count=1, after_head=True))
    course = await pairs.ask("calm", streamed=streamed)
    await course.answered()
    await pairs.empty()


@pytest.mark.parametrize("streamed", STREAMED)
@pytest.mark.parametrize(
    "fault", [Fault("reset", count=1, after_chunks=1), Fault("close", count=1, after_head=True)]
)
async def test_a_prefill_leg_whose_answer_breaks_off_costs_at_most_another_attempt(
    pairs: Pairs, fault: Fault, streamed: bool
) -> None:
    """SGLang's and Mooncake's KV may be there already: then no attempt has failed."""
    pairs.arm("prefill", fault)
    course = await pairs.ask("calm", streamed=streamed)
    await course.answered()
    await pairs.empty()


@pytest.mark.parametrize("streamed", STREAMED)
async def test_kv_that_is_lost_on_its_way_is_computed_and_sent_again(pairs: Pairs, streamed: bool) -> None:
    """With vLLM the stream of the decode leg has begun by then, with nothing but its head."""
    pairs.arm("prefill", Fault("fail_transfer", count=1))
    course = await pairs.ask("calm", streamed=streamed)
    await course.answered()
    await pairs.empty()


@pytest.mark.parametrize("streamed", STREAMED)
async def test_a_prefill_leg_that_leaves_nothing_to_fetch_costs_a_second_prefill_and_no_more(
    pairs: Pairs, streamed: bool
) -> None:
    if pairs.protocol != "nixl":
        pytest.skip("only NIXL's prefill leg says where its KV is")
    pairs.arm("prefill", Fault("no_params", count=1))
    before = requests(pairs, "decode")
    course = await pairs.ask("calm", streamed=streamed)
    await course.answered()

    assert requests(pairs, "decode") == before + 1
    await pairs.empty()


@pytest.mark.parametrize("streamed", STREAMED)
@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_worker_that_refuses_connections_is_passed_by(
    pairs: Pairs, role: str, streamed: bool
) -> None:
    """One of two workers refuses: several requests, so that some are sent there first."""
    refusing = pairs.engines[role][0]
    refusing.inject(Fault("refuse"))
    for _ in range(4):
        course = await pairs.ask("calm", streamed=streamed)
        await course.answered()
    refusing.accept()
    await pairs.empty()


@pytest.mark.parametrize("step", [Step.ASKED, Step.SHIPPING, Step.FETCHING])
@pytest.mark.parametrize("streamed", STREAMED)
async def test_a_worker_that_dies_while_it_has_a_leg_ends_the_other_and_another_pair_answers(
    pairs: Pairs, step: Step, streamed: bool
) -> None:
    """SGLang's decode engine would notice the death of a prefill engine after ten seconds."""
    course = await pairs.reach("calm", step, streamed=streamed)
    pairs.kill("decode" if step is Step.FETCHING else "prefill")
    await course.answered()
    await pairs.empty()


@pytest.mark.parametrize("streamed", STREAMED)
async def test_a_decode_worker_that_dies_ends_the_prefill_that_has_begun(
    pairs: Pairs, streamed: bool
) -> None:
    """The prefill restarts for another decode worker, but the client leaves before its answer."""
    if pairs.protocol == "nixl":
        pytest.skip("NIXL has no decode leg before the prefill is over")

    def aborted() -> int:
        return pairs.total("prefill", lambda engine: engine.counters.finished.get("abort", 0))

    before = aborted()
    course = await pairs.reach("calm", Step.PREFILLING, streamed=streamed)
    await until(pairs.receiving)
    pairs.kill("decode")
    await until(lambda: aborted() > before, within_s=8)
    course.client.close()
    await pairs.empty()


@pytest.mark.parametrize("step", [Step.ASKED, Step.SHIPPING, Step.FETCHING, Step.HEADED])
async def test_a_leg_that_falls_silent_is_given_up(pairs: Pairs, step: Step) -> None:
    """Streams only: a whole answer may take as long as its decode."""
    course = await pairs.reach("strict", step, streamed=True)
    await course.answered()
    await pairs.empty()


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_where_every_pair_fails_the_client_hears_of_it(pairs: Pairs, role: str) -> None:
    """Without prefill workers vLLM's decode workers do both parts."""
    pairs.arm(role, Fault("reset"))
    course = await pairs.ask("calm", streamed=True)
    if role == "prefill" and pairs.protocol != "sglang":
        await course.answered()
        return
    client = await course.client.finished()

    assert client.complete
    assert client.status in (502, 503)
    assert client.error["code"]
    await pairs.empty()


# After the first byte: the stream ends with an error, and there is no further attempt.


@pytest.mark.parametrize("streamed", STREAMED)
@pytest.mark.parametrize("kind", ["reset", "close"])
async def test_a_decode_leg_that_breaks_ends_the_answer(pairs: Pairs, kind: Any, streamed: bool) -> None:
    before = requests(pairs, "decode")
    pairs.arm("decode", Fault(kind, count=1, after_chunks=1))
    course = await pairs.ask("calm", streamed=streamed, output_tokens=200)
    await check_broken(course, "upstream_stream_broken", streamed=streamed)

    assert requests(pairs, "decode") == before + 1
    await pairs.empty()


async def test_a_decode_leg_that_falls_silent_ends_the_answer(pairs: Pairs) -> None:
    course = await pairs.reach("strict", Step.BEGUN, streamed=True)
    await check_broken(course, "upstream_idle_timeout", streamed=True)
    await pairs.empty()


async def check_broken(course: PairCourse, code: str, *, streamed: bool) -> None:
    client = await course.client.finished()
    if streamed:
        assert (client.status, client.complete, client.error["code"]) == (200, True, code)
    else:
        assert (client.status, client.complete) == (200, False)


async def test_a_prefill_worker_that_dies_after_the_first_byte_changes_nothing(pairs: Pairs) -> None:
    course = await pairs.ask("calm", streamed=True, output_tokens=400)
    await course.client.receive(1)
    for engine in pairs.engines["prefill"]:
        engine.inject(Fault("crash"))
    await course.answered()
    await pairs.empty()


# The client leaves.


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("streamed", STREAMED)
@pytest.mark.parametrize("step", Step)
async def test_a_client_that_leaves_ends_both_legs(
    pairs: Pairs, step: Step, streamed: bool, how: str
) -> None:
    """No fault is lifted before all is free: a stalled leg stays stalled."""
    course = await pairs.reach("calm", step, streamed=streamed)
    getattr(course.client, how)()
    await pairs.empty()


@pytest.mark.parametrize("streamed", STREAMED)
async def test_a_room_or_kept_kv_of_a_crashed_engine_does_not_come_back(pairs: Pairs, streamed: bool) -> None:
    """The next request at a restarted engine finds nothing of the crashed one."""
    course = await pairs.reach("calm", Step.SHIPPING, streamed=streamed)
    pairs.kill("prefill")
    pairs.kill("decode")
    await course.answered()
    for engine in itertools.chain(*pairs.engines.values()):
        engine.accept()
    again = await pairs.ask("calm", streamed=streamed)
    await again.answered()
    await until(lambda: all(gateway.idle() for gateway in pairs.replicas.values()))
