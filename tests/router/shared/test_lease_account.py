"""All accounts together never grant more than the limit, and leave next to nothing of it unused."""

import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from fakes.leased import START_US, Allowed, Replica, Server, ignored, leased
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.shared.lease_account import (
    CONCURRENT,
    IDLE_US,
    REFUSED_US,
    RENEW_US,
    REQUESTS,
    SAID_US,
    TOKENS,
    Charge,
    LeaseAccount,
    Refusal,
)
from router.shared.lease_script import SLOT_US, WINDOW_US

LIMITS = Allowed(20, 2000, 900)
SLOW_US = WINDOW_US + SLOT_US


@pytest.fixture
def replicas(redis_url: str, namespace: str) -> Iterator[list[Replica]]:
    with leased(redis_url, namespace, Allowed(100), 3) as replicas:
        yield replicas


@pytest.fixture
def server(replicas: list[Replica]) -> Server:
    return replicas[0].server


def changed(replicas: list[Replica], limits: Allowed) -> list[Replica]:
    for replica in replicas:
        replica.account.change(limits)
    return replicas


@dataclass
class Counter:
    """One counter for all replicas: the charge of each request, and its time."""

    granted: dict[Charge, tuple[int, int]] = field(default_factory=dict)
    running: dict[Charge, Replica] = field(default_factory=dict)

    def admit(self, charge: Charge, replica: Replica, at_us: int) -> None:
        self.granted[charge] = (at_us, charge.tokens)
        self.running[charge] = replica
        recent = [tokens for then_us, tokens in self.granted.values() if then_us > at_us - WINDOW_US]
        assert len(recent) <= LIMITS.requests_per_minute
        assert sum(recent) <= LIMITS.tokens_per_minute
        assert sum(running.tokens for running in self.running) <= LIMITS.concurrent_tokens

    def end(self, charge: Charge, tokens: int) -> None:
        self.granted[charge] = (self.granted[charge][0], tokens)
        del self.running[charge]


events = st.one_of(
    st.tuples(st.just("pass"), st.integers(1, 20_000_000)),
    st.tuples(st.just("request"), st.integers(0, 2), st.integers(1, 700)),
    st.tuples(st.just("burst"), st.integers(0, 2), st.integers(1, 60)),
    st.tuples(st.just("end"), st.integers(0, 100), st.floats(0, 1)),
    st.tuples(st.just("withdraw"), st.integers(0, 100)),
    st.tuples(st.just("look"), st.integers(0, 2)),
    st.tuples(st.just("lose"), st.integers(0, 2), st.sampled_from(["before", "after"])),
    st.tuples(st.just("die"), st.integers(0, 2)),
)


@given(script=st.lists(events, max_size=50))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_window_sees_more_than_the_limit(redis_url: str, script: list[tuple[Any, ...]]) -> None:
    """Requests end early, replicas die, calls repeat; a single counter checks the sum.

    Tokens in flight of a replica that died count until they expire, so they are counted down at once here.
    """
    with leased(redis_url, f"property-{uuid.uuid4().hex}", LIMITS, 3) as replicas:
        counter, server = Counter(), replicas[0].server

        def request(number: int, tokens: int) -> bool:
            charge = replicas[number].request(tokens)
            if charge.granted:
                counter.admit(charge, replicas[number], server.now_us)
            return charge.granted

        for event in script:
            match event:
                case "pass", int(time_us):
                    server.now_us += time_us
                case "request", int(number), int(tokens):
                    request(number, tokens)
                case "burst", int(number), int(requests):
                    while requests and request(number, 5):
                        requests -= 1
                        server.now_us += 2000
                case "end", int(index), float(part) if counter.running:
                    charge = list(counter.running)[index % len(counter.running)]
                    used = int(part * charge.tokens)
                    charge.account.settle(charge, used, server.now_us)
                    counter.end(charge, used)
                case "withdraw", int(index) if counter.running:
                    charge = list(counter.running)[index % len(counter.running)]
                    charge.account.withdraw(charge)
                    del counter.granted[charge], counter.running[charge]
                case "look", int(number):
                    replicas[number].sync()
                case "lose", int(number), str(when):
                    replicas[number].sync(lost=when)
                case "die", int(number):
                    for charge in [c for c, r in counter.running.items() if r is replicas[number]]:
                        del counter.running[charge]
                    replicas[number].start()
        # Returned tokens, and those of dead replicas, are free for the others when their window has passed.
        for replica in replicas:
            for charge in [c for c, r in counter.running.items() if r is replica]:
                replica.account.settle(charge, 0, server.now_us)
            replica.sync()
        server.now_us += SLOW_US + 3_000_001
        for replica in replicas:
            replica.sync()
        assert sum(replicas[0].granted() for _ in range(30)) == LIMITS.requests_per_minute


@pytest.mark.parametrize("replicas_that_ask", [1, 3])
def test_a_limit_that_is_always_asked_for_is_used(replicas: list[Replica], replicas_that_ask: int) -> None:
    """Of three minutes' 300 requests at most 2 % are missing, for any number of asking replicas."""
    server, pick = replicas[0].server, random.Random(1)
    granted = 0
    looked_us = began_us = server.now_us
    while server.now_us < began_us + 3 * WINDOW_US:
        server.now_us += pick.randrange(60_000)
        granted += pick.choice(replicas[:replicas_that_ask]).granted()
        if server.now_us > looked_us + 100_000:
            looked_us = server.now_us
            for replica in replicas:
                if replica.account.due(server.now_us):
                    replica.sync()
    assert 0.98 * 300 <= granted <= 300


def test_a_burst_gets_all_of_the_limit_at_once(replicas: list[Replica]) -> None:
    """A replica without requests holds nothing back."""
    assert [replica.granted() for replica in replicas] == [True] * 3
    assert sum(replicas[0].granted() for _ in range(200)) == 97


def test_a_busy_account_does_not_ask_for_every_request(replicas: list[Replica], server: Server) -> None:
    """At 1000 requests per second the account leases 50 ms' worth at a time, once the rate is known."""
    (replica, *_) = changed(replicas, Allowed(1_000_000))
    calls = 0
    for _ in range(2000):
        server.now_us += 1000
        charge = Charge(replica.account, 1, ignored)
        if not replica.account.take(charge, server.now_us):
            replica.account.ask(charge)
            replica.sync()
            calls += 1
    assert calls < 2000 / 15


def test_what_is_not_used_goes_back_after_a_moment(replicas: list[Replica], server: Server) -> None:
    one, other, _ = changed(replicas, Allowed(1000))
    used = 0
    while used < 100 or not one.account.requests:
        server.now_us += 1000
        used += one.granted()
    assert not one.account.due(server.now_us)
    server.now_us += IDLE_US + 1
    assert one.account.due(server.now_us)
    one.sync()
    assert one.account.requests == 0
    assert sum(other.granted() for _ in range(1000)) == 1000 - used


def refused(replica: Replica, tokens: int, at_us: int) -> Refusal | None:
    """Return the kind of a refusal without a call."""
    charge = Charge(replica.account, tokens, ignored)
    replica.account.refuse(charge, at_us)
    return charge.refusal


def test_a_refusal_holds_a_moment_for_requests_of_its_size(replicas: list[Replica], server: Server) -> None:
    (replica, *_) = changed(replicas, Allowed(0, 100))
    assert replica.granted(60)
    refusal = replica.request(50).refusal
    assert refusal is not None
    assert refusal.kind == TOKENS
    assert refused(replica, 51, server.now_us) == refusal
    assert refused(replica, 49, server.now_us) is None
    assert replica.granted(40)
    assert refused(replica, 51, server.now_us + REFUSED_US) is None


def test_no_request_passes_when_requests_are_the_limit(replicas: list[Replica], server: Server) -> None:
    (replica, *_) = changed(replicas, Allowed(1, 100))
    assert replica.granted(60)
    assert not replica.granted(50)
    refusal = refused(replica, 1, server.now_us)
    assert refusal is not None
    assert refusal.kind == REQUESTS


@pytest.mark.parametrize(("limits", "kind"), [(Allowed(0, 99), TOKENS), (Allowed(0, 0, 99), CONCURRENT)])
def test_a_request_larger_than_its_limit_never_fits(
    replicas: list[Replica], limits: Allowed, kind: int
) -> None:
    (replica, *_) = changed(replicas, limits)
    assert replica.request(100).refusal == Refusal(kind, 0)
    assert replica.granted(99)


def test_a_correction_upwards_counts_when_it_is_known(replicas: list[Replica], server: Server) -> None:
    """30 tokens turn out to be 130: 100 of them count from the end of the request on."""
    one, other, _ = changed(replicas, Allowed(0, 100))
    charge = one.request(30)
    assert charge.granted
    server.now_us += WINDOW_US // 2
    one.account.settle(charge, 130, server.now_us)
    one.sync()
    server.now_us += WINDOW_US // 2 + SLOT_US
    assert not other.granted(1)
    server.now_us += WINDOW_US // 2
    assert other.granted(100)


def test_tokens_that_were_not_used_are_there_for_others_at_once(replicas: list[Replica]) -> None:
    one, other, _ = changed(replicas, Allowed(0, 100, 100))
    charge = one.request(100)
    assert charge.granted
    one.account.settle(charge, 10, one.server.now_us)
    one.sync()
    assert other.granted(80)  # a little is kept for the next request here
    one.server.now_us += IDLE_US + 1
    one.sync()
    assert other.granted(10)


def test_what_was_not_used_is_taken_back_from_when_it_was_charged(
    replicas: list[Replica], server: Server
) -> None:
    """Otherwise 50 tokens of half a minute ago would count for 10 after the first request left the window."""
    (replica, *_) = changed(replicas, Allowed(0, 100))
    first = replica.request(50)
    server.now_us += WINDOW_US // 2
    assert replica.granted(50)
    replica.account.settle(first, 10, server.now_us)
    server.now_us += WINDOW_US // 2 + SLOT_US
    assert not replica.granted(51)
    assert replica.granted(50)


def test_a_request_that_nobody_served_does_not_count(replicas: list[Replica]) -> None:
    one, other, _ = changed(replicas, Allowed(1, 100, 100))
    charge = one.request(100)
    assert charge.granted
    one.account.withdraw(charge)
    one.sync()
    assert other.granted(100)


def test_a_request_that_is_withdrawn_while_it_waits_is_not_charged(replicas: list[Replica]) -> None:
    one, other, _ = changed(replicas, Allowed(1))
    charge = Charge(one.account, 1, ignored)
    one.account.ask(charge)
    one.account.withdraw(charge)
    assert one.sync() == []
    assert other.granted()


def test_a_request_that_is_withdrawn_while_it_is_asked_for_leaves_its_lease(
    replicas: list[Replica], server: Server
) -> None:
    one = changed(replicas, Allowed(1))[0]
    charge = Charge(one.account, 1, ignored)
    one.account.ask(charge)
    call = one.account.call(server.now_us, 1_000_000)
    one.account.withdraw(charge)
    assert one.account.answered(server.call(call), server.now_us) == []
    assert one.account.requests == 1
    assert one.granted()


def test_tokens_in_flight_are_renewed_and_believed(replicas: list[Replica], server: Server) -> None:
    one, other, _ = changed(replicas, Allowed(0, 0, 100))
    assert one.granted(80)
    for _ in range(20):
        server.now_us += RENEW_US
        assert one.account.due(server.now_us)
        one.sync()
    assert not other.granted(21)
    assert other.granted(20)


def test_shares_add_up_to_the_limit(replicas: list[Replica], server: Server) -> None:
    """Without Redis: of 100 requests 34, 33 and 33."""

    def alone(rank: int) -> int:
        account = replicas[rank].account
        charges = [Charge(account, 1, ignored) for _ in range(100)]
        return sum(account.take_share(charge, server.now_us, rank, 3) for charge in charges)

    assert [alone(rank) for rank in range(3)] == [34, 33, 33]
    # Reported afterwards, they count as if they had been leased.
    server.now_us += IDLE_US + 1
    for replica in replicas:
        replica.sync()
    assert not replicas[0].granted()


def test_what_redis_said_a_moment_ago_is_left_bounds_a_share(replicas: list[Replica], server: Server) -> None:
    """Otherwise each late answer at a used-up limit would admit one more."""
    one, other, _ = replicas
    assert all(one.granted() for _ in range(98))
    server.now_us += IDLE_US + 1
    one.sync()
    other.sync()

    def alone() -> bool:
        return other.account.take_share(Charge(other.account, 1, ignored), server.now_us, 1, 3)

    assert [alone() for _ in range(4)] == [True, True, False, False]
    server.now_us += SAID_US + 1
    assert sum(alone() for _ in range(40)) == 31


def test_a_share_comes_back_as_its_window_passes(server: Server) -> None:
    account = LeaseAccount("a", "w", Allowed(2))
    assert account.take_share(Charge(account, 1, ignored), server.now_us, 0, 2)
    charge = Charge(account, 1, ignored)
    assert not account.take_share(charge, server.now_us, 0, 2)
    assert charge.refusal is not None
    assert charge.refusal.kind == REQUESTS
    server.now_us += charge.refusal.retry_us
    assert account.take_share(Charge(account, 1, ignored), server.now_us, 0, 2)


@pytest.mark.parametrize(
    ("limits", "kind"), [(Allowed(1), REQUESTS), (Allowed(0, 100), TOKENS), (Allowed(0, 0, 100), CONCURRENT)]
)
def test_a_share_admits_one_request_that_is_larger_than_it(
    limits: Allowed, kind: int, server: Server
) -> None:
    account = LeaseAccount("a", "w", limits)
    assert account.take_share(Charge(account, 100, ignored), server.now_us, 7, 8)
    charge = Charge(account, 1, ignored)
    assert not account.take_share(charge, server.now_us, 7, 8)
    assert charge.refusal is not None
    assert charge.refusal.kind == kind


def test_a_server_that_lost_everything_is_told_the_whole_window(
    replicas: list[Replica], server: Server
) -> None:
    one, other, _ = replicas
    assert all(one.granted() for _ in range(60))
    assert all(other.granted() for _ in range(30))
    server.forget()
    server.now_us += IDLE_US + 1
    assert one.sync() == []  # asked for the whole window
    for replica in (one, other, other):
        replica.sync()
    assert sum(other.granted() for _ in range(100)) == 10


def test_what_is_told_again_is_held_meanwhile(replicas: list[Replica], server: Server) -> None:
    """Otherwise a lost call would give others the tokens that were used since."""
    one, other, _ = changed(replicas, Allowed(10))
    assert one.granted()
    one.account.requests = 9
    one.sync(lost="before")
    one.account.requests = 9
    for _ in range(9):
        assert one.account.take(Charge(one.account, 1, ignored), server.now_us)
    one.sync()
    assert not other.granted()
    one.sync()
    assert not other.granted()


def test_limits_change_while_requests_run(replicas: list[Replica], server: Server) -> None:
    one, other, _ = replicas
    charge = one.request(50)
    assert charge.granted
    changed(replicas, Allowed(0, 100))
    one.account.settle(charge, 40, server.now_us)
    server.now_us += IDLE_US + 1
    one.sync()
    assert other.granted(60)
    assert not other.granted(1)
    changed(replicas, Allowed())
    assert other.granted(1_000_000)


def test_what_a_clock_that_was_not_set_yet_counted_is_forgotten() -> None:
    """Before the first contact log time is the host's, which may be hours ahead."""
    account = LeaseAccount("a", "w", Allowed(10))
    assert account.take_share(Charge(account, 1, ignored), START_US + 3_600_000_000, 0, 1)
    assert account.take_share(Charge(account, 1, ignored), START_US, 0, 1)
    assert account.used_requests == 1


def test_clients_are_told_what_is_left_over_all_replicas(replicas: list[Replica], server: Server) -> None:
    one, other, _ = changed(replicas, Allowed(100, 1000))
    assert all(one.granted(10) for _ in range(10))
    server.now_us += 5_000_000
    one.sync()
    assert other.granted(10)
    assert (other.account.requests_left, other.account.tokens_left) == (89, 890)
    assert other.account.grows_in_us(0, server.now_us) == WINDOW_US + SLOT_US - 5_000_000
    assert one.account.grows_in_us(1, server.now_us) == WINDOW_US + SLOT_US - 5_000_000


def test_an_account_is_forgotten_when_its_window_has_passed(replicas: list[Replica], server: Server) -> None:
    charge = replicas[0].request(5)
    assert charge.granted
    account = charge.account
    account.settle(charge, 5, server.now_us)
    replicas[0].sync()
    assert not account.active
    assert not account.forgotten(server.now_us)
    assert account.forgotten(server.now_us + SLOW_US)
