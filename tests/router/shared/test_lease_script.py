"""The script counts every use once, in its window, and grants no more than is left."""

from collections.abc import Iterator

import msgspec
import pytest
from fakes.leased import START_US, TTL_US, Server
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis

from router.shared.embedded import EmbeddedValkey
from router.shared.failures import RedisRefused
from router.shared.lease_script import (
    PLENTY,
    SLOT_US,
    SLOTS,
    STEP_US,
    WINDOW_US,
    LeaseCall,
    LeaseReply,
    reply_of,
)


class Teller:
    """Makes calls for one writer, numbering its batches."""

    def __init__(self, server: Server, writer: str) -> None:
        self.server = server
        self.writer = writer
        self.batch = 0

    def __call__(
        self,
        *asks: int,
        limits: tuple[int, int, int] = (10, 0, 0),
        held: tuple[int, int, int] = (0, 0, 0),
        wants: tuple[int, int, int] = (0, 0, 0),
        uses: tuple[tuple[int, int, int], ...] = (),
        batch: int | None = None,
        whole: bool = False,
    ) -> LeaseReply:
        self.batch = self.batch + 1 if batch is None else batch
        return self.server.call(
            LeaseCall(self.writer, self.batch, whole, TTL_US, limits, held, wants, uses, asks)
        )


@pytest.fixture
def server(redis_url: str, namespace: str) -> Iterator[Server]:
    with Redis.from_url(redis_url) as redis:
        yield Server(redis, f"{{{namespace}}}")


@pytest.fixture(scope="module")
def shared(valkey: EmbeddedValkey) -> Iterator[Server]:
    with Redis.from_url(valkey.url) as redis:
        yield Server(redis, "{shared}:account")


@pytest.fixture
def one(server: Server) -> Teller:
    return Teller(server, "one")


@pytest.fixture
def other(server: Server) -> Teller:
    return Teller(server, "other")


def slot(server: Server) -> int:
    return server.now_us // SLOT_US


def test_asks_are_granted_in_order_until_a_limit_is_reached(one: Teller) -> None:
    """Of 100 tokens 60 go, 50 do not fit any more, 40 do."""
    reply = one(60, 50, 40, 1, limits=(10, 100, 0))
    assert reply.verdicts == (0, 2, 0, 2)
    assert reply.leased == (2, 100, 0)
    assert reply.left == (8, 0, PLENTY)


def test_every_limit_is_asked(one: Teller) -> None:
    assert one(5, 5, limits=(1, 100, 100)).verdicts == (0, 1)
    assert Teller(one.server, "two")(5, limits=(9, 90, 9)).verdicts == (3,)


def test_what_others_hold_is_not_left(one: Teller, other: Teller) -> None:
    assert one(*[1] * 6).leased == (6, 0, 0)
    reply = other(*[1] * 6)
    assert reply.verdicts == (0, 0, 0, 0, 1, 1)
    assert reply.left[0] == 0


def test_a_use_counts_until_all_of_its_slot_is_older_than_the_window(one: Teller, server: Server) -> None:
    used = slot(server)
    assert one(uses=((used, 10, 0),)).left[0] == 0
    server.now_us = (used + 1) * SLOT_US + WINDOW_US - 1
    assert one().left[0] == 0
    server.now_us += 1
    assert one().left[0] == 10


def test_a_batch_counts_once_however_often_it_is_told(one: Teller, server: Server) -> None:
    use = ((slot(server), 3, 0),)
    one(uses=use)
    assert one(uses=use, batch=1).left[0] == 7
    assert one(uses=use).left[0] == 4


def test_a_missing_batch_asks_for_the_whole_window(one: Teller, server: Server) -> None:
    one()
    assert not one(1, batch=7, uses=((slot(server), 1, 0),)).told
    reply = one(1, batch=7, uses=((slot(server), 4, 0),), whole=True)
    assert reply.told
    assert reply.left[0] == 5


def test_what_is_taken_back_is_taken_from_its_slot(one: Teller, server: Server) -> None:
    """Otherwise, once its slot has left, the taken-back tokens would allow more than the limit."""
    used = slot(server)
    one(uses=((used, 10, 0),))
    server.now_us += WINDOW_US // 2
    assert one(uses=((used, -4, 0),)).left[0] == 4
    server.now_us += WINDOW_US
    assert one().left[0] == 10
    one(uses=((used, -4, 0),))
    assert one().left[0] == 10


def test_uses_of_a_clock_that_is_ahead_count_now(one: Teller, server: Server) -> None:
    one(uses=((slot(server) + 1000, 5, 0),))
    server.now_us += WINDOW_US + SLOT_US
    assert one().left[0] == 10


def test_leases_of_a_rate_count_as_used_when_their_holder_dies(
    one: Teller, other: Teller, server: Server
) -> None:
    one(*[1] * 6)
    server.now_us += TTL_US
    assert other().left[0] == 4
    server.now_us += 1
    assert other().left[0] == 4  # used now, as far as the server knows
    server.now_us += WINDOW_US + SLOT_US
    assert other().left[0] == 10


def test_tokens_in_flight_end_with_their_holder(one: Teller, other: Teller, server: Server) -> None:
    limits = (0, 0, 100)
    one(80, limits=limits)
    assert other(30, limits=limits).verdicts == (3,)
    server.now_us += TTL_US + 1
    assert other(30, limits=limits).verdicts == (0,)


def test_leases_ahead_shrink_with_what_is_left_and_with_the_replicas(one: Teller, other: Teller) -> None:
    """A quarter of what is left, for each replica that lives."""
    assert one(wants=(1000, 0, 0), limits=(1000, 0, 0)).leased[0] == 250
    assert other(wants=(1000, 0, 0), limits=(1000, 0, 0)).leased[0] == 93
    assert other(wants=(1000, 0, 0), limits=(256, 0, 0)).leased[0] == 0


def test_nothing_is_leased_ahead_once_somebody_was_refused(one: Teller) -> None:
    assert one(200, wants=(0, 20, 0), limits=(0, 100, 0)).leased == (0, 0, 0)


def test_a_refusal_says_when_enough_will_have_left_the_window(one: Teller, server: Server) -> None:
    """60 tokens leave first, enough for 50; 80 need the later ones as well."""
    first = slot(server)
    one(uses=((first, 0, 60),), limits=(0, 100, 0))
    server.now_us += 10 * SLOT_US
    reply = one(50, uses=((first + 10, 0, 40),), limits=(0, 100, 0))
    assert (reply.verdicts, reply.retry_us) == ((2,), WINDOW_US - 9 * SLOT_US)
    assert reply.grows_us == (0, WINDOW_US - 9 * SLOT_US)
    assert one(80, limits=(0, 100, 0)).retry_us == WINDOW_US + SLOT_US


def test_a_clock_that_runs_back_a_little_changes_nothing(one: Teller, server: Server) -> None:
    one(uses=((slot(server), 10, 0),))
    server.now_us -= STEP_US
    assert one().left[0] == 0


def test_what_another_clock_counted_means_nothing(one: Teller, server: Server) -> None:
    """Otherwise a server that once was an hour ahead would refuse for an hour."""
    one(uses=((slot(server), 10, 0),))
    server.now_us -= STEP_US + 1
    assert not one().told


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.sampled_from([0, 1, SLOT_US, 7 * SLOT_US, TTL_US + 1, WINDOW_US, 2 * WINDOW_US]),
            st.integers(0, 3),
            st.integers(-5, 9),
            st.integers(0, 12),
        ),
        max_size=40,
    )
)
def test_what_is_used_and_held_is_what_a_list_of_all_uses_says(
    shared: Server, steps: list[tuple[int, int, int, int, int]]
) -> None:
    """The script keeps sums from call to call; the test adds them up each time."""
    limits, server = (10_000, 100_000, 50_000), shared
    server.now_us = START_US
    server.forget()
    used: dict[int, list[int]] = {}
    held: dict[int, tuple[int, int]] = {}
    tellers = [Teller(server, str(number)) for number in range(4)]

    def use(at: int, requests: int, tokens: int) -> None:
        if at >= slot(server) - SLOTS:
            amounts = used.setdefault(at, [0, 0])
            for kind, amount in enumerate((requests, tokens)):
                amounts[kind] = max(0, amounts[kind] + amount)

    for number, later_us, back, amount, keeps in steps:
        server.now_us += later_us
        at = slot(server) - back
        use(at, amount, 10 * amount)
        reply = tellers[number](
            uses=((at, amount, 10 * amount),), held=(keeps, 0, keeps), limits=limits, whole=True
        )
        for other in [other for other, (_, until_us) in held.items() if until_us < server.now_us]:
            units, until_us = held.pop(other)
            if other != number:
                use(until_us // SLOT_US, units, 0)
        held[number] = keeps, server.now_us + TTL_US
        assert reply.told
        in_window = [amounts for each, amounts in used.items() if each >= slot(server) - SLOTS]
        holds = sum(units for units, _ in held.values())
        left = [limits[kind] - sum(amounts[kind] for amounts in in_window) for kind in (0, 1)]
        assert reply.left == (left[0] - holds, left[1], limits[2] - holds)
        for kind in (0, 1):
            oldest = [
                each for each, amounts in used.items() if each >= slot(server) - SLOTS and amounts[kind]
            ]
            grows_us = (min(oldest) + SLOTS + 1) * SLOT_US - server.now_us if oldest else 0
            assert reply.grows_us[kind] == grows_us


def test_a_call_reads_as_much_of_a_full_minute_of_50_replicas_as_of_a_young_account(
    server: Server, redis_url: str
) -> None:
    """It once packed all 121 slots and 50 holders again: 0.2 ms of a server that carries the log, too."""

    def commands(replicas: int, slots: int) -> int:
        server.forget()
        tellers = [Teller(server, str(number)) for number in range(replicas)]
        for each in tellers:
            each(uses=tuple((slot(server) - back, 1, 1) for back in range(slots)), limits=(100_000, 0, 0))
        with Redis.from_url(redis_url) as redis:
            before = redis.info("commandstats")
            tellers[0](uses=((slot(server), 1, 1),), limits=(100_000, 0, 0))
            after = redis.info("commandstats")
        names = ("cmdstat_hmget", "cmdstat_hset", "cmdstat_hgetall", "cmdstat_hdel")
        return sum(
            after.get(name, {}).get("calls", 0) - before.get(name, {}).get("calls", 0) for name in names
        )

    assert commands(50, SLOTS) == commands(1, 2)


def test_an_account_that_nobody_uses_leaves_nothing_behind(
    one: Teller, redis_url: str, namespace: str
) -> None:
    one(1)
    with Redis.from_url(redis_url) as redis:
        assert 0 < redis.pttl(f"{{{namespace}}}") <= (WINDOW_US + TTL_US) / 1000 + 1000


def test_a_dead_holder_is_forgotten_with_its_window(
    one: Teller, other: Teller, server: Server, redis_url: str, namespace: str
) -> None:
    one(1)
    server.now_us += TTL_US + WINDOW_US + 2
    other()
    with Redis.from_url(redis_url) as redis:
        assert b"hone" not in redis.hkeys(f"{{{namespace}}}")


NOW_SLOT = START_US // SLOT_US
SOUND = [START_US, 0, 0, NOW_SLOT, NOW_SLOT, NOW_SLOT, 0, 0, 0, 0, PLENTY]


def but(at: int, value: object) -> bytes:
    """A sound account with another value in one place."""
    return msgspec.msgpack.encode([value if place == at else number for place, number in enumerate(SOUND)])


@pytest.mark.parametrize(
    "fields",
    [
        {"a": b""},
        {"a": b"junk"},
        {"a": b"\xc1"},
        {"a": b"\x91" * 1000},
        {"a": msgspec.msgpack.encode(SOUND[:-1])},
        {"a": but(0, "now")},
        {"a": but(0, float("inf"))},
        {"a": but(1, -1)},
        {"a": but(1, 10**18)},
        {"a": but(2, float("nan"))},
        {"a": but(3, 1)},
        {"a": but(3, NOW_SLOT + 0.5)},
        {"a": but(4, NOW_SLOT - 0.5)},
        {"a": but(3, NOW_SLOT + 2)},
        {"a": but(1, 1), f"s{NOW_SLOT}": b"junk"},
        {"a": but(1, 1), f"s{NOW_SLOT}": msgspec.msgpack.encode([-1, 0])},
        {"a": msgspec.msgpack.encode(SOUND), "hone": msgspec.msgpack.encode([1, 2])},
        {"a": but(10, 0), "htwo": msgspec.msgpack.encode([1, 2, float("nan"), 4, 5, 1])},
        {"s1": msgspec.msgpack.encode([1, 2])},
    ],
)
def test_an_account_that_makes_no_sense_begins_anew(
    one: Teller, server: Server, fields: dict[str, bytes]
) -> None:
    server.redis.hset(server.key, mapping=fields)
    assert one(5, limits=(10, 100, 0)).leased == (1, 5, 0)
    assert set(server.redis.hkeys(server.key)) == {b"a", b"hone"}


@pytest.mark.parametrize("former", [b"", b"junk", msgspec.msgpack.encode([1, {}, {}, {}])])
def test_a_string_is_no_account(one: Teller, server: Server, former: bytes) -> None:
    """It was one in the first format."""
    server.redis.set(server.key, former)
    assert one(5, limits=(10, 100, 0)).leased == (1, 5, 0)


def test_a_key_of_another_type_is_no_account(one: Teller, server: Server) -> None:
    server.redis.lpush(server.key, "junk")
    assert one(5, limits=(10, 100, 0)).leased == (1, 5, 0)


@pytest.mark.parametrize("answer", [b"", b"junk", msgspec.msgpack.encode([True, ["x"]])])
def test_an_answer_that_makes_no_sense_is_a_refusal(answer: bytes) -> None:
    with pytest.raises(RedisRefused):
        reply_of(answer)
