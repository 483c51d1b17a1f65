"""The loop that looks at links, and what it logs."""

import pytest
from fakes.gateway import FakeShared, VirtualTime

from policies import FleetRules, LinkMeasured, LinkRules, OpLog
from policies.disaggregation import LINK_LOOK_S, LinkWatch
from router.pairs import watch_links

LINK = "far>"


class Setup:
    """One replica that watches a link of 1 GB/s."""

    def __init__(self) -> None:
        self.time = VirtualTime()
        self.shared = FakeShared(FleetRules(links={LINK: LinkRules(8.0, rtt_ms=100.0)}))
        log = OpLog("r1", self.shared.publish, self.time.clock.now_us)
        self.watch = LinkWatch(self.shared.fleet, log)


async def test_links_that_go_down_and_come_back_are_logged_once_each(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses that another replica reports; each is looked at twice."""
    setup = Setup()
    losses = iter([0.3, 0.3, 0.6, 0.6, 0.0, 0.0])
    slept: list[float] = []

    async def sleep(s: float) -> None:
        slept.append(s)
        setup.time.advance(s)
        loss_ratio = next(losses, None)
        if loss_ratio is None:
            raise InterruptedError
        setup.shared.publish(LinkMeasured(LINK, setup.time.clock.now_us(), "r2", 0.0, 0.0, loss_ratio))

    monkeypatch.setattr("asyncio.sleep", sleep)
    caplog.set_level("INFO", logger="router.pairs.link_watch")
    with pytest.raises(InterruptedError):
        await watch_links(setup.watch)

    told = [(record.levelname, vars(record)["event"], vars(record)["link"]) for record in caplog.records]
    assert told == [("WARNING", "link.down", LINK), ("INFO", "link.up", LINK)]
    assert set(slept) == {LINK_LOOK_S}
