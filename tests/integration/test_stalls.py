"""Workers of pairs that fall silent, over real sockets and with a minute for every timeout.

The replica has learned how long prefills and decodes take, and gives up what takes much longer.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from fakes.pairs import PROTOCOLS, SLOW_CLASS, Pairs, Step, open_pairs
from fakes.stage import no_task_left

pytestmark = pytest.mark.asyncio(loop_scope="module")

FLOOR_S = 0.5


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=PROTOCOLS)
async def fitted(request: Any) -> AsyncIterator[Pairs]:
    async with open_pairs(request.param, stall_floor_s=FLOOR_S) as pairs:
        feedback = pairs.replicas["calm"].process.gateway.placing.feedback
        while not (feedback.knows_prefills("default", 100) and feedback.learn_decodes(SLOW_CLASS).known):
            course = await pairs.ask("calm", streamed=False)
            await course.answered()
        yield pairs


@pytest_asyncio.fixture(loop_scope="module")
async def pairs(fitted: Pairs) -> AsyncIterator[Pairs]:
    async with no_task_left():
        yield fitted
        await fitted.mended()


def stalled(pairs: Pairs) -> float:
    """Legs that were given up so far."""
    lines = pairs.replicas["calm"].process.metrics.exposition()[0].decode().splitlines()
    return sum(
        float(line.split()[-1])
        for line in lines
        if line.startswith("cacheway_leg_failures_total{") and "_stalled" in line
    )


@pytest.mark.parametrize("streamed", [pytest.param(True, id="stream"), pytest.param(False, id="whole")])
@pytest.mark.parametrize("step", [Step.ASKED, Step.SHIPPING, Step.FETCHING, Step.HEADED])
async def test_a_leg_that_falls_silent_is_given_up_and_another_pair_answers(
    pairs: Pairs, step: Step, streamed: bool
) -> None:
    before = stalled(pairs)
    course = await pairs.reach("calm", step, streamed=streamed)
    await course.answered()

    assert stalled(pairs) > before
    await pairs.empty()
