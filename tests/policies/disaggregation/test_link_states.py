"""Times at which a link has bandwidth to spare, has none, or must not be crossed."""

from policies import LinkMeasured, LinkRules, Links, Shipping
from policies.disaggregation.link_states import LinkState, LinkStates

LINK = "far>"
SECOND = 1_000_000
START = 1_000 * SECOND
ABUNDANT, SCARCE, DOWN, PROBING = LinkState


def links() -> Links:
    return Links({LINK: LinkRules(gbps=8.0, cap_ratio=1.0)})


def reserved(to: Links, request_id: str, ratio: float, start_us: int, end_us: int) -> None:
    """Reserve a share of the link for a time."""
    kv_bytes = round(ratio * 1_000 * (end_us - start_us))
    to.shipping(Shipping(request_id, start_us, "one", LINK, kv_bytes, start_us, end_us))


def lost(to: Links, loss_ratio: float, at_us: int) -> None:
    to.measured.put(LinkMeasured(LINK, at_us, "one", 0.0, 0.0, loss_ratio))


def observed(states: LinkStates, wait_s: float, now_us: int, link: str = LINK) -> LinkState:
    """State of a link that is observed now."""
    signals = states.signals(link, wait_s, now_us)
    states.observe(link, signals)
    return signals.state


def test_a_question_changes_no_answer() -> None:
    """Only an observed state holds: a wait of 1.5 s keeps a scarce link scarce, and makes none scarce."""
    states = LinkStates(links())
    assert states.signals(LINK, 3.0, START).state is SCARCE
    assert states.signals(LINK, 1.5, START).state is ABUNDANT
    assert observed(states, 3.0, START) is SCARCE
    assert states.signals(LINK, 1.0, START).state is ABUNDANT
    assert states.signals(LINK, 1.5, START).state is SCARCE


def test_utilisation_must_rise_above_one_bound_and_fall_below_another() -> None:
    """Smoothed over 2 s, so a step from 0 to 0.8 passes 0.7 after 2·ln 8 = 4.2 s, not at once."""
    fleet = links()
    states = LinkStates(fleet)
    assert observed(states, 0.0, START) is ABUNDANT
    reserved(fleet, "a", 0.6, START, START + 40 * SECOND)
    assert observed(states, 0.0, START + 20 * SECOND) is ABUNDANT
    reserved(fleet, "b", 0.2, START + 20 * SECOND, START + 40 * SECOND)
    assert observed(states, 0.0, START + 21 * SECOND) is ABUNDANT
    assert observed(states, 0.0, START + 30 * SECOND) is SCARCE
    fleet.ended("b", START)
    assert observed(states, 0.0, START + 39 * SECOND) is SCARCE
    fleet.ended("a", START)
    assert observed(states, 0.0, START + 40 * SECOND) is ABUNDANT
    assert states.signals(LINK, 0.0, START + 80 * SECOND).utilisation < 0.01


def test_a_wait_makes_it_scarce_until_the_wait_is_half_as_long() -> None:
    states = LinkStates(links())
    assert observed(states, 2.0, START) is ABUNDANT
    assert observed(states, 2.1, START) is SCARCE
    assert observed(states, 1.1, START) is SCARCE
    assert observed(states, 1.0, START) is ABUNDANT


def test_loss_makes_it_scarce_until_it_is_half_as_much() -> None:
    fleet = links()
    states = LinkStates(fleet)
    for number, (loss_ratio, state) in enumerate(
        [(0.01, ABUNDANT), (0.011, SCARCE), (0.006, SCARCE), (0.005, ABUNDANT)]
    ):
        lost(fleet, loss_ratio, START + number)
        assert observed(states, 0.0, START) is state


def test_a_link_that_loses_half_is_down_until_one_transfer_may_try() -> None:
    fleet = links()
    states = LinkStates(fleet)
    lost(fleet, 0.5, START)
    assert observed(states, 0.0, START) is DOWN
    assert observed(states, 0.0, START + 5 * SECOND - 1) is DOWN
    assert observed(states, 0.0, START + 5 * SECOND) is PROBING
    reserved(fleet, "probe", 0.1, START + 5 * SECOND, START + 6 * SECOND)
    assert observed(states, 0.0, START + 5 * SECOND) is DOWN
    fleet.ended("probe", START)
    lost(fleet, 0.0, START + 6 * SECOND)
    assert observed(states, 0.0, START + 6 * SECOND) is ABUNDANT


def test_a_link_nobody_has_configured_is_down() -> None:
    states = LinkStates(links())
    assert observed(states, 0.0, START, "elsewhere>") is DOWN
    assert states.signals("elsewhere>", 0.0, START).utilisation == 0.0


def test_a_link_that_lost_its_capacity_does_not_count_as_hundreds_of_times_too_full() -> None:
    """0.5 of 1 GB/s reserved and 1 MB/s left is 500 times the cap, and counts as twice: it is calm in 4 s."""
    fleet = links()
    states = LinkStates(fleet)
    reserved(fleet, "a", 0.5, START, START + 60 * SECOND)
    fleet.measured.put(LinkMeasured(LINK, START, "one", 1e6))
    observed(states, 0.0, START)
    assert states.signals(LINK, 0.0, START).utilisation == 2.0
    fleet.ended("a", START)
    assert observed(states, 0.0, START + 4 * SECOND) is ABUNDANT


def test_time_that_goes_backwards_changes_nothing() -> None:
    states = LinkStates(links())
    observed(states, 0.0, START)
    assert states.signals(LINK, 0.0, START - SECOND).utilisation == 0.0
