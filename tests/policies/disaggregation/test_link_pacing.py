"""Paced transfers on a link that sends as engines do: as fast as it lets them."""

from dataclasses import dataclass
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.engine.link import ShapedLink, seconds_of
from loadtest.simulator.clock import VirtualClock
from policies import LinkRules, Links, Shipping

LINK = "far>"
GB = 10**9
LINE, CAP_RATIO = 6.25 * GB, 0.85
CAP = CAP_RATIO * LINE
ASK_S = 0.02


@dataclass(frozen=True, slots=True)
class Asked:
    """A transfer to be sent.

    Attributes:
        at_s: Time of the first request for it.
        kv_bytes: Its whole size.
        ready_ratio: Cached share of its bytes.
        compute_s: Seconds of computing the rest; 0: pulled when all is there.
    """

    at_s: float
    kv_bytes: int
    ready_ratio: float
    compute_s: float


def transfers(gigabytes_max: float) -> st.SearchStrategy[list[Asked]]:
    return st.lists(
        st.builds(
            Asked,
            st.floats(0.0, 4.0),
            st.floats(0.01, gigabytes_max).map(lambda gigabytes: int(gigabytes * GB)),
            st.sampled_from((0.0, 0.0, 0.3, 0.9)),
            st.sampled_from((0.0, 0.05, 0.4, 2.0)),
        ),
        max_size=10,
    )


class Pacer:
    """A sender that asks until a link has room, and then sends."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.wire = ShapedLink(self.clock, LINE)
        self.links = Links({LINK: LinkRules(LINE * 8 / 1e9, cap_ratio=CAP_RATIO)})
        self.alone: list[tuple[float, float]] = []
        """Times between which no pacing could keep below the cap."""
        self.left = 0

    def run(self, drawn: list[Asked]) -> list[tuple[float, float]]:
        """Send all, and say how many bytes left in each window of a second, by its end."""
        self.left = len(drawn)
        for number, asked in enumerate(drawn):
            self.clock.call_at(asked.at_s, partial(self._ask, f"r{number}", asked))
        self.clock.run()
        assert not self.left
        return seconds_of(self.wire.egress.buckets())

    def _ask(self, request_id: str, asked: Asked) -> None:
        now_us = round(self.clock.time() * 1e6)
        ready_bytes = int(asked.kv_bytes * asked.ready_ratio) if asked.compute_s else 0
        quote = self.links.quote(LINK, asked.kv_bytes, asked.compute_s, 0.0, now_us, ready_bytes)
        assert quote is not None
        if not quote.fits:
            self.clock.call_at(self.clock.time() + ASK_S, partial(self._ask, request_id, asked))
            return
        said = Shipping(
            request_id,
            now_us,
            "one",
            LINK,
            asked.kv_bytes,
            quote.start_us,
            quote.end_us,
            ready_bytes if quote.ready_us else 0,
            quote.ready_us,
        )
        self.links.shipping(said)
        self.links.collect(now_us, 10**12)
        sent = partial(self._sent, request_id, self.clock.time(), quote.above_cap)
        if asked.compute_s:
            wire = self.wire.begin(asked.kv_bytes, sent, ready_bytes=ready_bytes, over_s=asked.compute_s)
            self.clock.call_at(self.clock.time() + asked.compute_s, partial(self.wire.computed, wire))
        else:
            self.wire.begin(asked.kv_bytes, sent)

    def _sent(self, request_id: str, began_s: float, above_cap: bool, problem: str | None) -> None:
        assert problem is None
        self.left -= 1
        self.links.ended(request_id, round(self.clock.time() * 1e6))
        if above_cap:
            self.alone.append((began_s, self.clock.time()))


def exceeded(pacer: Pacer, drawn: list[Asked]) -> list[tuple[float, float]]:
    """Windows that saw more than the cap and a percent (time goes in steps of 4 ms), and did not have to."""
    return [
        (end_s, n_bytes)
        for end_s, n_bytes in pacer.run(drawn)
        if n_bytes > 1.01 * CAP and not any(a < end_s and end_s - 1.0 < b for a, b in pacer.alone)
    ]


@settings(max_examples=settings().max_examples // 4)
@given(transfers(4.0))
def test_no_second_sees_more_than_the_cap_of_what_is_pulled_and_what_leaves_layer_by_layer(
    drawn: list[Asked],
) -> None:
    """Each goes as fast as it can, and arrives at any time; in the end all have gone."""
    assert exceeded(Pacer(), drawn) == []


@settings(max_examples=settings().max_examples // 4)
@given(transfers(16.0))
def test_what_is_too_large_for_a_second_goes_alone(drawn: list[Asked]) -> None:
    """Such a transfer exceeds the cap in any case; all others keep it, and none starves."""
    assert exceeded(Pacer(), drawn) == []


@pytest.mark.no_cover
def test_pulls_one_after_the_other_use_all_that_may_be_used() -> None:
    """10 of 0.2 s of the link each: 8 of them go in 2 s."""
    pacer = Pacer()
    seconds = pacer.run([Asked(0.0, int(0.2 * LINE), 0.0, 0.0)] * 10)
    assert max(n_bytes for _, n_bytes in seconds) <= 1.01 * CAP
    assert seconds[-1][0] < 10 * 0.2 / CAP_RATIO + 1.0
