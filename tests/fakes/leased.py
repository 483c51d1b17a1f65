"""Accounts of several replicas on a real server, with a clock that stands still between two events."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
from redis import Redis

from router.shared.lease_account import Charge, LeaseAccount
from router.shared.lease_script import SCRIPT, LeaseCall, LeaseReply, reply_of

START_US = 1_700_000_000_000_000
TTL_US = 3_000_000


@dataclass(frozen=True)
class Allowed:
    """Limits of an account."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    concurrent_tokens: int = 0


def ignored(charge: Charge) -> None:
    """Ignore a charge."""


class Server:
    """The script on a server whose time a test sets.

    Attributes:
        redis: The server.
        key: Key of the account.
        now_us: The server's time.
    """

    def __init__(self, redis: Redis, key: str) -> None:
        self.redis = redis
        self.key = key
        self._clock = f"{key}:clock"
        self.now_us = START_US
        # The same script, reading the time where a test can write it.
        self._script = redis.register_script(
            SCRIPT.replace("redis.call('TIME')", "{redis.call('GET', KEYS[1] .. ':clock'), 0}").replace(
                "tonumber(time[1]) * 1000000", "tonumber(time[1])"
            )
        )

    def call(self, call: LeaseCall) -> LeaseReply:
        """Run it."""
        self.redis.set(self._clock, self.now_us)
        return reply_of(self._script(keys=[self.key], args=[msgspec.msgpack.encode(call)]))

    def forget(self) -> None:
        """Lose everything."""
        self.redis.delete(self.key)


@dataclass
class Replica:
    """One replica's account, asked and answered at once unless the test says otherwise."""

    server: Server
    name: str
    limits: Allowed
    lives: int = 0
    account: LeaseAccount = field(init=False)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Begin a new life, knowing nothing."""
        self.lives += 1
        self.account = LeaseAccount("account", f"{self.name}/{self.lives}", self.limits)

    def sync(self, *, lost: str = "") -> list[Charge]:
        """Make one call; it may be ``lost`` before or after the server heard it."""
        call = self.account.call(self.server.now_us, TTL_US)
        if lost == "before":
            self.account.failed()
            return []
        reply = self.server.call(call)
        if lost == "after":
            self.account.failed()
            return []
        return self.account.answered(reply, self.server.now_us)

    def request(self, tokens: int = 1) -> Charge:
        """Charge a request, asking as often as it takes."""
        account, at_us = self.account, self.server.now_us
        charge = Charge(account, tokens, ignored)
        if not account.take(charge, at_us) and not account.refuse(charge, at_us):
            account.ask(charge)
            while not charge.granted and not charge.ended:
                self.sync()
        return charge

    def granted(self, tokens: int = 1) -> bool:
        """True if a request is granted."""
        return self.request(tokens).granted


@contextlib.contextmanager
def leased(redis_url: str, namespace: str, limits: Allowed, replicas: int) -> Iterator[list[Replica]]:
    """Replicas that share one account."""
    with Redis.from_url(redis_url) as redis:
        server = Server(redis, f"{{{namespace}}}")
        yield [Replica(server, f"r{number}", limits) for number in range(replicas)]
