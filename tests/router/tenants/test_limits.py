"""Tenants' view of their limits, and the final charges."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from fakes.leased import START_US

from router.errors import RequestRejected
from router.shared import Charge, Keys, Leases
from router.tenant import Tenant, TenantLimits
from router.tenants import Limiter


class Limited:
    """A limiter without Redis, so that one replica of one decides at once, and its counts."""

    def __init__(self) -> None:
        self.now_us = START_US
        self.rejected: list[tuple[str, str]] = []
        self.leases = Leases(
            "unix:///nonexistent/valkey.sock",
            Keys("test"),
            "r1",
            now_us=lambda: self.now_us,
            replicas=lambda: ("r1",),
            ttl_s=3.0,
            loop=asyncio.get_running_loop(),
        )
        self.limiter = Limiter(self.leases, lambda tenant, limit: self.rejected.append((tenant, limit)))
        self.task = asyncio.create_task(self.leases.run())

    def admit(self, limits: TenantLimits, tokens: int = 1, name: str = "acme") -> Charge:
        return self.limiter.admit(Tenant(name, limits=limits), tokens, lambda charge: None)


@pytest.fixture
async def limited() -> AsyncIterator[Limited]:
    limited = Limited()
    limited.admit(TenantLimits(1), name="first")
    async with asyncio.timeout(60):
        while limited.limiter.degraded_reason is None:  # noqa: ASYNC110 - plain state without signals
            await asyncio.sleep(0.001)
    yield limited
    limited.task.cancel()
    await asyncio.gather(limited.task, return_exceptions=True)


@pytest.mark.parametrize(
    ("limits", "kind", "words", "retry_s"),
    [
        (TenantLimits(1), "requests", "1 requests per minute", 60.0),
        (TenantLimits(0, 150), "tokens", "150 tokens per minute", 60.0),
        (TenantLimits(0, 0, 150), "concurrent_tokens", "150 tokens in flight", 1.0),
    ],
)
async def test_a_rejection_names_its_limit_and_says_when_to_come_back(
    limited: Limited, limits: TenantLimits, kind: str, words: str, retry_s: float
) -> None:
    assert limited.admit(limits, 100).granted
    charge = limited.admit(limits, 100)
    error = limited.limiter.rejection(charge)
    assert isinstance(error, RequestRejected)
    assert (error.status, error.code) == (429, "rate_limit_exceeded")
    assert words in error.message
    assert retry_s <= error.retry_after_s <= retry_s + 0.5
    assert limited.rejected == [("acme", kind)]


async def test_a_request_that_never_fits_is_told_so(limited: Limited) -> None:
    charge = limited.admit(TenantLimits(0, 100), 101)
    error = limited.limiter.rejection(charge)
    assert error.message == (
        "This request of about 101 tokens is larger than the limit of 100 tokens per minute."
    )
    assert error.retry_after_s == 60


async def test_headers_tell_of_the_limits_that_there_are(limited: Limited) -> None:
    both = limited.admit(TenantLimits(10, 1000), 100)
    limited.now_us += 4_200_000
    lines = limited.limiter.lines(both).split(b"\r\n")
    assert lines == [
        b"x-ratelimit-limit-requests: 10",
        b"x-ratelimit-remaining-requests: 9",
        b"x-ratelimit-reset-requests: 56.3s",
        b"x-ratelimit-limit-tokens: 1000",
        b"x-ratelimit-remaining-tokens: 900",
        b"x-ratelimit-reset-tokens: 56.3s",
        b"",
    ]
    assert limited.limiter.lines(limited.admit(TenantLimits(0, 0, 10), name="other")) == b""


async def test_what_is_left_is_known_of_tenants_that_asked(limited: Limited) -> None:
    limits = TenantLimits(10, 1000)
    assert limited.limiter.left(Tenant("acme", limits=limits)) is None
    limited.admit(limits, 100)
    assert limited.limiter.left(Tenant("acme", limits=limits)) == {"requests": 9, "tokens": 900}
    limited.admit(TenantLimits(0, 0, 10), 1, name="other")
    assert limited.limiter.left(Tenant("other", limits=TenantLimits(0, 0, 10))) == {}


@pytest.mark.parametrize(
    ("past_us", "reset"), [(0, b"1m0.5s"), (500_000, b"1m0s"), (53_500_000, b"7s"), (60_488_000, b"12ms")]
)
async def test_durations_are_written_as_openai_does(limited: Limited, past_us: int, reset: bytes) -> None:
    charge = limited.admit(TenantLimits(10))
    limited.now_us += past_us
    assert limited.limiter.lines(charge).endswith(b"x-ratelimit-reset-requests: %b\r\n" % reset)


async def test_what_was_settled_or_withdrawn_is_not_counted_again(limited: Limited) -> None:
    """An exchange that ends in several ways at once reports it more than once."""
    limits = TenantLimits(0, 0, 100)
    charge = limited.admit(limits, 100)
    limited.limiter.settle(charge, 100)
    limited.limiter.settle(charge, 100)
    limited.limiter.withdraw(charge)
    assert limited.admit(limits, 100).granted
    assert not limited.admit(limits, 1).granted


async def test_a_refused_request_has_nothing_to_settle(limited: Limited) -> None:
    limits = TenantLimits(1)
    assert limited.admit(limits).granted
    refused = limited.admit(limits)
    limited.limiter.settle(refused, 1)
    limited.limiter.withdraw(refused)
    assert refused.account.used_requests == 1


async def test_another_limit_holds_from_the_next_request_on(limited: Limited) -> None:
    assert limited.admit(TenantLimits(1)).granted
    assert not limited.admit(TenantLimits(1)).granted
    assert limited.admit(TenantLimits(2)).granted
    assert not limited.admit(TenantLimits(2)).granted
