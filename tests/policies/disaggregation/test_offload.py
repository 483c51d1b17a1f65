"""Site of a request's prefill: by tokens, by seconds, and never over a link that cannot take it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import LinkMeasured, LinkRules, Links, Shipping
from policies.disaggregation.link_states import LinkState
from policies.disaggregation.offload import Offer, Offload, OffloadReason, OffloadVerdict

LINK, OTHER = "far>", "near>"
SECOND = 1_000_000
START = 1_000 * SECOND
GB = 1_000_000_000
T = 20_000.0


def links(cap_gigabytes: float = 1.0, rtt_s: float = 0.02) -> Links:
    rules = LinkRules(gbps=cap_gigabytes * 8.0, rtt_ms=rtt_s * 1e3, cap_ratio=1.0)
    return Links({LINK: rules, OTHER: rules})


def local(uncached: float = 40_000, *, ready_s: float = 0.0, service_s: float = 4.0, **more: float) -> Offer:
    return Offer("here", "", uncached, ready_s, service_s, **more)


def remote(
    uncached: float = 40_000,
    *,
    ready_s: float = 0.0,
    service_s: float = 2.0,
    link: str = LINK,
    kv_bytes: float | None = 0.5 * GB,
    **more: float,
) -> Offer:
    return Offer(
        link[:-1],
        link,
        uncached,
        ready_s,
        service_s,
        kv_bytes=kv_bytes,
        **more,
    )


def calm(over: Links) -> Offload:
    """A rule that has seen its links free before."""
    offload = Offload(over)
    for link in (LINK, OTHER):
        offload.states.observe(link, offload.states.signals(link, 0.0, START))
    return offload


def verdict_of(
    offload: Offload,
    here: Offer | None,
    *there: Offer,
    t: float | None = T,
    now_us: int = START,
    **more: bool,
) -> OffloadVerdict:
    """Judge and observe, as for each request."""
    sides = offload.sides(there, now_us)
    verdict = offload.judge(here, sides, t, **more)
    offload.observe(here, sides, verdict)
    return verdict


def judged(
    here: Offer | None, *there: Offer, t: float | None = T, over: Links | None = None, **more: bool
) -> OffloadVerdict:
    return verdict_of(Offload(over or links()), here, *there, t=t, fixed=t is not None, **more)


def ships(
    over: Links, request_id: str, gigabytes: float, s: float, link: str = LINK, start_s: float = 0.0
) -> None:
    start_us = START + round(start_s * 1e6)
    over.shipping(
        Shipping(request_id, START, "one", link, round(gigabytes * GB), start_us, start_us + round(s * 1e6))
    )


def scarce(over: Links) -> Offload:
    """A rule that has seen its link full; it is free now, but smoothed it is not yet below 0.5."""
    offload = Offload(over)
    ships(over, "before", 100.0, 100.0)
    offload.states.observe(LINK, offload.states.signals(LINK, 0.0, START))
    over.ended("before", START)
    return offload


# The threshold.

TOKENS = st.integers(0, 100_000).map(float)


@given(TOKENS, TOKENS, st.integers(1, 100_000).map(float), st.booleans())
def test_the_rule_is_that_of_the_paper(here: float, there: float, t: float, full: bool) -> None:
    """Theory A2, with seconds in favour of the other site, so that an unmovable cache there is used there."""
    over = links()
    offload = scarce(over) if full else Offload(over)
    verdict = verdict_of(offload, local(here), remote(there), t=t, fixed=True)
    assert verdict.state is (LinkState.SCARCE if full else LinkState.ABUNDANT)
    assert verdict.remote is (here > t)
    assert verdict.reason is (
        OffloadReason.BELOW_THRESHOLD
        if here <= t
        else OffloadReason.CACHED_THERE
        if there <= t and not full
        else OffloadReason.ABOVE_THRESHOLD
    )


def test_a_cache_that_is_only_there_is_left_there_if_that_is_not_sooner() -> None:
    """Abundant: the paper would move it here; engines cannot, and computing it here is as fast."""
    verdict = judged(local(service_s=2.0), remote(1_000, service_s=2.0))
    assert (verdict.remote, verdict.reason) == (False, OffloadReason.SOONER_LOCAL)
    full = verdict_of(scarce(links()), local(service_s=2.0), remote(1_000, service_s=2.0), fixed=True)
    assert (full.remote, full.reason) == (True, OffloadReason.ABOVE_THRESHOLD)


def test_a_verdict_explains_itself_in_seconds_and_bytes() -> None:
    """0.5 GB beside 2 s of prefill are all sent when that ends; 20 ms of round trip are left."""
    assert judged(local(), remote()) == OffloadVerdict(
        remote=True,
        site="far",
        reason=OffloadReason.ABOVE_THRESHOLD,
        threshold_tokens=20_000,
        uncached_local=40_000,
        uncached_remote=40_000,
        kv_bytes=GB // 2,
        link_s=0.02,
        local_s=4.0,
        remote_s=2.02,
        utilisation=0.0,
        state=LinkState.ABUNDANT,
        link=LINK,
    )


# Seconds.


@pytest.mark.parametrize(("service_s", "goes"), [(3.57, True), (3.59, False), (0.01, True), (10.0, False)])
def test_without_a_threshold_remote_must_be_sooner_by_a_tenth(service_s: float, goes: bool) -> None:
    """4 s here: less than 3.6 s there, of which 20 ms are the round trip."""
    verdict = judged(local(10), remote(10, service_s=service_s), t=None)
    assert verdict.remote is goes
    assert verdict.reason is (OffloadReason.SOONER_REMOTE if goes else OffloadReason.SOONER_LOCAL)
    assert verdict.threshold_tokens == 0


@pytest.mark.parametrize("uncached", [10, 40_000])
def test_a_learned_threshold_keeps_nobody_while_the_link_has_room(uncached: float) -> None:
    """A prompt that is sooner there goes there: prefilling all of it there could not be better."""
    verdict = verdict_of(Offload(links()), local(uncached), remote(uncached))
    assert (verdict.remote, verdict.reason) == (True, OffloadReason.SOONER_REMOTE)
    late = verdict_of(Offload(links()), local(uncached), remote(uncached, ready_s=3.0))
    assert (late.remote, late.reason) == (False, OffloadReason.SOONER_LOCAL)


@pytest.mark.parametrize(
    ("uncached", "behind_s", "reason"),
    [
        (40_000, 0.0, OffloadReason.SOONER_REMOTE),
        (10, 0.0, OffloadReason.BELOW_THRESHOLD),
        (10, 3.0, OffloadReason.SOONER_REMOTE),
    ],
)
def test_a_learned_threshold_rations_a_scarce_link(
    uncached: float, behind_s: float, reason: OffloadReason
) -> None:
    """The short ones stay, unless the queue here surges."""
    here = local(uncached, ready_s=behind_s, backlog_s=behind_s)
    assert verdict_of(scarce(links()), here, remote(uncached, kv_bytes=0.05 * GB)).reason is reason


SECONDS = st.floats(0.0, 20.0)


@given(SECONDS, SECONDS, SECONDS, SECONDS, st.floats(0.0, 4.0), st.floats(0.0, 20.0), TOKENS)
def test_nobody_crosses_a_link_while_local_is_predicted_sooner(
    here_ready_s: float,
    here_s: float,
    there_ready_s: float,
    there_s: float,
    gigabytes: float,
    full_s: float,
    uncached: float,
) -> None:
    """For any backlogs and load of the link: with the delay of other requests, remote is cheaper."""
    over = links()
    if full_s:
        ships(over, "before", full_s, full_s)
    here = local(uncached, ready_s=here_ready_s, service_s=here_s)
    there = remote(uncached, ready_s=there_ready_s, service_s=there_s, kv_bytes=gigabytes * GB)
    verdict = verdict_of(Offload(over), here, there)
    local_price_s = verdict.local_s + verdict.local_others_s
    remote_price_s = verdict.remote_s + verdict.remote_others_s
    if verdict.remote:
        assert remote_price_s < local_price_s
        assert verdict.wait_s + there_s <= local_price_s
    elif verdict.reason is OffloadReason.SOONER_LOCAL:
        assert local_price_s <= remote_price_s + max(0.02, 0.1 * local_price_s) + 1e-9


def test_what_is_sent_after_the_prefill_counts_in_full() -> None:
    """NIXL: 0.5 GB at 1 GB/s when 2 s of prefill are over; SGLang: beside it."""
    assert judged(local(), remote(overlap_ratio=0.0)).remote_s == pytest.approx(2.52, abs=1e-5)
    assert judged(local(), remote(overlap_ratio=0.9)).remote_s == pytest.approx(2.02, abs=1e-5)


def test_what_others_lose_is_part_of_the_price() -> None:
    assert judged(local(), remote(others_s=2.0), t=None).reason is OffloadReason.SOONER_LOCAL
    assert judged(local(others_s=2.0), remote(others_s=2.0), t=None).reason is OffloadReason.SOONER_REMOTE


def test_a_full_link_has_a_price() -> None:
    """At 95 % others wait 19 times as long as half of this takes: 19 x 0.25 s."""
    over = links()
    offload = scarce(over)
    verdict = verdict_of(offload, local(), remote(), t=None)
    assert (verdict.remote, verdict.utilisation) == (False, 1.0)
    assert verdict.remote_others_s == pytest.approx(19 * 0.25)


@pytest.mark.parametrize(
    ("here_s", "there_s", "uncached", "reason"),
    [
        (2.1, 0.0, 10, OffloadReason.LOCAL_BUSY),
        (1.9, 0.0, 10, OffloadReason.BELOW_THRESHOLD),
        (0.0, 2.1, 40_000, OffloadReason.REMOTE_BUSY),
        (0.0, 1.9, 40_000, OffloadReason.ABOVE_THRESHOLD),
    ],
)
def test_when_a_queue_surges_seconds_decide(
    here_s: float, there_s: float, uncached: float, reason: OffloadReason
) -> None:
    verdict = judged(
        local(uncached, ready_s=here_s, backlog_s=here_s, service_s=2.0),
        remote(uncached, ready_s=there_s, backlog_s=there_s),
    )
    assert verdict.reason is reason


def test_a_surge_lasts_until_the_queues_are_nearly_alike() -> None:
    offload = Offload(links())

    def reason(longer_s: float) -> OffloadReason:
        here = local(10, ready_s=longer_s, backlog_s=longer_s, service_s=3.0)
        return verdict_of(offload, here, remote(10), fixed=True).reason

    assert [reason(longer_s) for longer_s in (1.9, 2.1, 0.6, 0.4, 1.9)] == [
        OffloadReason.BELOW_THRESHOLD,
        OffloadReason.LOCAL_BUSY,
        OffloadReason.LOCAL_BUSY,
        OffloadReason.BELOW_THRESHOLD,
        OffloadReason.BELOW_THRESHOLD,
    ]


def test_a_verdict_that_is_not_observed_changes_no_other() -> None:
    offload = Offload(links())
    surging = local(10, ready_s=2.1, backlog_s=2.1, service_s=3.0)
    calmer = local(10, ready_s=0.6, backlog_s=0.6, service_s=3.0)
    sides = offload.sides([remote(10)], START)
    assert offload.judge(surging, sides, T, fixed=True).reason is OffloadReason.LOCAL_BUSY
    assert verdict_of(offload, calmer, remote(10), fixed=True).reason is OffloadReason.BELOW_THRESHOLD
    assert verdict_of(offload, surging, remote(10), fixed=True).reason is OffloadReason.LOCAL_BUSY
    assert verdict_of(offload, calmer, remote(10), fixed=True).reason is OffloadReason.LOCAL_BUSY


# The link.


def test_what_does_not_fit_waits_if_that_is_sooner_and_else_is_local() -> None:
    """The link is taken for 1 s; 2 s of prefill there behind it, or 4 s or 3 s here."""
    over = links()
    offload = calm(over)
    ships(over, "before", 1.0, 1.0)
    waits = verdict_of(offload, local(), remote(kv_bytes=2.0 * GB), fixed=True)
    assert (waits.remote, waits.reason) == (True, OffloadReason.ABOVE_THRESHOLD)
    assert waits.wait_s == pytest.approx(1.0)
    assert waits.remote_s == pytest.approx(3.02, abs=1e-3)
    stays = verdict_of(offload, local(service_s=3.0), remote(kv_bytes=2.0 * GB), fixed=True)
    assert (stays.remote, stays.reason) == (False, OffloadReason.LINK_FULL)


def test_nobody_waits_long_for_a_link() -> None:
    over = links()
    offload = calm(over)
    ships(over, "before", 2.1, 2.1)
    verdict = verdict_of(offload, local(service_s=60.0), remote(kv_bytes=2.0 * GB), fixed=True)
    assert (verdict.remote, verdict.reason) == (False, OffloadReason.LINK_FULL)


def test_a_link_that_became_slow_takes_only_what_is_sooner_all_the_same() -> None:
    """0.5 GB at 0.1 GB/s take 5 s, of which the prefill hides 2."""
    over = links()
    over.measured.put(LinkMeasured(LINK, START, "one", 0.1 * GB))
    assert judged(local(), remote(), over=over).reason is OffloadReason.LINK_FULL
    assert judged(local(service_s=9.0), remote(), over=over).reason is OffloadReason.ABOVE_THRESHOLD


def test_nothing_crosses_a_link_that_is_down_but_a_probe() -> None:
    over = links()
    over.measured.put(LinkMeasured(LINK, START, "one", 0.0, loss_ratio=0.6))
    offload = Offload(over)
    verdict = verdict_of(offload, local(), remote(), fixed=True)
    assert (verdict.remote, verdict.site, verdict.reason) == (False, "here", OffloadReason.LINK_DOWN)
    probe = verdict_of(offload, local(), remote(), now_us=START + 5 * SECOND, fixed=True)
    assert (probe.remote, probe.reason, probe.state) == (True, OffloadReason.PROBE, LinkState.PROBING)
    below = verdict_of(offload, local(10), remote(10), now_us=START + 5 * SECOND, fixed=True)
    assert (below.remote, below.reason) == (False, OffloadReason.BELOW_THRESHOLD)
    ships(over, "probe", 0.1, 1.0)
    assert (
        verdict_of(offload, local(), remote(), now_us=START + 5 * SECOND, fixed=True).reason
        is OffloadReason.LINK_DOWN
    )


def test_a_link_without_a_capacity_is_no_link() -> None:
    verdict = judged(local(), remote(link="unknown>"))
    assert (verdict.remote, verdict.reason) == (False, OffloadReason.LINK_DOWN)


@pytest.mark.parametrize("here", [local(), None])
def test_kv_that_nobody_has_weighed_is_never_sent(here: Offer | None) -> None:
    verdict = judged(here, remote(kv_bytes=None))
    assert (verdict.remote, verdict.reason, verdict.kv_bytes) == (False, OffloadReason.UNKNOWN_KV, -1)


def test_who_failed_there_is_prefilled_here() -> None:
    verdict = judged(local(), remote(), failed=True)
    assert (verdict.remote, verdict.reason) == (False, OffloadReason.FAILED_REMOTE)


def test_where_nobody_prefills_here_it_is_done_there_whatever_it_takes() -> None:
    over = links()
    over.measured.put(LinkMeasured(LINK, START, "one", 0.0, loss_ratio=0.6))
    for failed in (False, True):
        verdict = judged(None, remote(10), over=over, failed=failed)
        assert (verdict.remote, verdict.site, verdict.reason) == (True, "far", OffloadReason.NO_LOCAL)
        assert (verdict.uncached_local, verdict.local_s) == (-1, -1.0)


def test_of_several_sites_the_cheapest_whose_link_is_not_down_is_asked() -> None:
    over = links()
    offload = calm(over)
    far, near = remote(service_s=1.0), remote(service_s=1.5, link=OTHER)

    def link(*there: Offer) -> str:
        return verdict_of(offload, local(), *there, fixed=True).link

    assert link(near, far) == LINK
    assert link(near, remote(kv_bytes=None)) == OTHER
    ships(over, "before", 0.4, 0.4)
    assert link(near, far) == LINK
    ships(over, "more", 0.6, 0.6, start_s=0.4)
    assert link(near, far) == OTHER
    over.measured.put(LinkMeasured(OTHER, START, "one", 0.0, loss_ratio=0.6))
    assert link(near, far) == LINK


@pytest.mark.parametrize(
    ("state", "judged"), [(LinkState.ABUNDANT, 2_000), (LinkState.SCARCE, 40_000), (LinkState.DOWN, 40_000)]
)
def test_the_cache_of_another_site_counts_only_over_an_abundant_link(state: LinkState, judged: int) -> None:
    verdict = verdict_of(calm(links()), local(40_000), remote(2_000), fixed=True)
    assert msgspec.structs.replace(verdict, state=state).judged_tokens == judged
