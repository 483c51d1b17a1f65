"""One request and its tenant's limits: charged before it is placed, settled however it ends."""

from collections.abc import Callable
from typing import Any, cast

import pytest
from fakes.gateway import EPOCH_S, Bench, FakeClient

from router.errors import WorkerUnreachable
from router.gateway.exchange import RequestExchange
from router.shared import Charge, Leases
from router.shared.lease_account import LeaseAccount, Limits
from router.tenant import Tenant, TenantLimits
from router.tenants import Keyring, KeyTable, Limiter, TenantKey
from router.tenants.keys import digest_of

KEY = [(b"authorization", b"Bearer cw-acme")]
PROMPT = "word " * 800
PROMPT_TOKENS = 1000
"""About four bytes per token, and a little for the role."""


class FakeLeases:
    """The leases of the only replica, which answer at once or when the test says so."""

    def __init__(self) -> None:
        self.waits = False
        self.waiting: list[Charge] = []
        self.accounts: dict[str, LeaseAccount] = {}

    def now_us(self) -> int:
        return EPOCH_S * 1_000_000

    def account(self, name: str, limits: Limits) -> LeaseAccount:
        return self.accounts.setdefault(name, LeaseAccount(name, "w", limits))

    def charge(self, account: LeaseAccount, tokens: int, decided: Callable[[Charge], None]) -> Charge:
        charge = Charge(account, tokens, decided)
        if self.waits:
            self.waiting.append(charge)
        else:
            account.take_share(charge, self.now_us(), 0, 1)
        return charge

    def settle(self, charge: Charge, tokens: int) -> None:
        charge.account.settle(charge, tokens, self.now_us())

    def withdraw(self, charge: Charge) -> None:
        charge.account.withdraw(charge)

    def answer(self) -> None:
        """Decide what waits."""
        for charge in self.waiting:
            if not charge.ended and not charge.account.refuse(charge, self.now_us()):
                charge.account.take_share(charge, self.now_us(), 0, 1)
            charge.decided(charge)
        self.waiting.clear()


class Limited(Bench):
    """A gateway with one tenant, which has limits."""

    def __init__(self, *limits: int, **sections: dict[str, Any]) -> None:
        self.leases = FakeLeases()
        self.rejected: list[tuple[str, str]] = []
        tenant = Tenant("acme", limits=TenantLimits(*limits), configured=True)
        keyring = Keyring()
        keyring.use(KeyTable({"acme": tenant}, {"acme": (TenantKey(digest_of(b"cw-acme")),)}), 0.0)
        limiter = Limiter(
            cast(Leases, self.leases), lambda tenant, limit: self.rejected.append((tenant, limit))
        )
        super().__init__(workers=2, keys=keyring, limiter=limiter, **sections)

    @property
    def account(self) -> LeaseAccount:
        return self.leases.accounts["acme"]

    def ask(self, **more: Any) -> tuple[RequestExchange, FakeClient]:
        body = {"model": "m", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 50, **more}
        return self.start(body, headers=KEY)


def test_a_request_beyond_the_limit_gets_429_and_reaches_no_worker() -> None:
    bench = Limited(1)
    bench.ask()
    bench.upstream.answer()
    _, client = bench.ask()
    assert (client.status, client.error["code"]) == (429, "rate_limit_exceeded")
    headers = client.headers
    assert headers[b"retry-after"] == b"61"
    assert headers[b"x-ratelimit-limit-requests"] == b"1"
    assert headers[b"x-ratelimit-remaining-requests"] == b"0"
    assert bench.rejected == [("acme", "requests")]
    assert len(bench.upstreams) == 1
    assert bench.log[-1]["outcome"] == "rate_limit_exceeded"
    bench.check()


def test_an_answer_tells_what_remains() -> None:
    bench = Limited(10, 10_000)
    _, client = bench.ask()
    bench.upstream.answer()
    headers = client.headers
    assert headers[b"x-ratelimit-remaining-requests"] == b"9"
    assert int(headers[b"x-ratelimit-remaining-tokens"]) == pytest.approx(8950, abs=20)


def test_who_has_no_limits_is_told_of_none() -> None:
    bench = Limited()
    _, client = bench.ask()
    bench.upstream.answer()
    assert not [name for name in client.headers if name.startswith(b"x-ratelimit")]
    assert not bench.leases.accounts


def test_usage_settles_what_was_estimated() -> None:
    bench = Limited(0, 10_000, 10_000)
    bench.ask()
    assert bench.account.in_flight == pytest.approx(PROMPT_TOKENS + 50, abs=20)
    bench.upstream.answer(body=b'{"usage":{"prompt_tokens":700,"completion_tokens":20,"total_tokens":720}}')
    assert (bench.account.used_tokens, bench.account.in_flight) == (720, 0)


def test_an_answer_without_usage_counts_as_estimated() -> None:
    bench = Limited(0, 10_000)
    bench.ask()
    estimated = bench.account.used_tokens
    bench.upstream.answer(body=b"{}")
    assert bench.account.used_tokens == estimated > PROMPT_TOKENS


def test_what_a_worker_failed_to_answer_used_no_tokens() -> None:
    """The request counts, as it does at OpenAI's."""
    bench = Limited(10, 10_000, 10_000, reliability={"disable_retries": True})
    bench.ask()
    bench.upstream.fail(WorkerUnreachable("gone"))
    assert (bench.account.used_requests, bench.account.used_tokens, bench.account.in_flight) == (1, 0, 0)
    bench.ask()
    bench.upstream.answer(status=500, body=b"{}")
    assert (bench.account.used_requests, bench.account.used_tokens, bench.account.in_flight) == (2, 0, 0)
    bench.check()


def test_a_redispatched_request_is_charged_once() -> None:
    bench = Limited(10, 10_000, 10_000)
    bench.ask()
    bench.upstream.fail(WorkerUnreachable("gone"))
    assert bench.account.used_requests == 1
    bench.upstream.answer(body=b'{"usage":{"prompt_tokens":900,"completion_tokens":9}}')
    assert (bench.account.used_requests, bench.account.used_tokens, bench.account.in_flight) == (1, 909, 0)
    bench.check()


def test_a_client_that_leaves_has_used_its_prompt_and_what_came() -> None:
    bench = Limited(0, 10_000, 10_000)
    exchange, client = bench.ask(stream=True)
    upstream = bench.upstream
    upstream.head(200)
    for _ in range(7):
        upstream.data(b"data: {}\n\n")
    client.left = True
    exchange.client_left()
    assert bench.account.used_tokens == pytest.approx(PROMPT_TOKENS + 7, abs=20)
    assert bench.account.in_flight == 0


def test_what_nobody_served_does_not_count() -> None:
    bench = Limited(10, 10_000, 10_000)
    for local in bench.registry.all():
        bench.registry.probed(local, ok=False, refused=True, detail="gone")
    _, client = bench.ask()
    assert client.status == 503
    assert (bench.account.used_requests, bench.account.used_tokens, bench.account.in_flight) == (0, 0, 0)


@pytest.mark.parametrize("allowed", [True, False])
def test_a_request_waits_for_the_answer_of_redis(allowed: bool) -> None:
    bench = Limited(0, 10_000 if allowed else 100)
    bench.leases.waits = True
    _, client = bench.ask()
    assert not bench.upstreams
    bench.leases.answer()
    if allowed:
        bench.upstream.answer(body=b"{}")
    assert client.status == (200 if allowed else 429)
    bench.check()


def test_a_client_that_leaves_while_redis_is_asked_is_not_charged() -> None:
    bench = Limited(10)
    bench.leases.waits = True
    exchange, client = bench.ask()
    client.left = True
    exchange.client_left()
    bench.leases.answer()
    assert not bench.upstreams
    assert bench.account.used_requests == 0
    bench.check()


def test_a_request_without_a_prompt_uses_no_tokens() -> None:
    bench = Limited(10, 10_000)
    bench.start(b'{"model":"m","prompt":"x"}', path=b"/tokenize", headers=KEY)
    bench.upstream.answer()
    assert (bench.account.used_requests, bench.account.used_tokens) == (1, 0)
