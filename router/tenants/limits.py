"""Limits of tenants over all replicas, and the headers that show them to clients.

    admit ──> Charge ── granted     go on
               │ ├──── refused     `rejection`: 429, Retry-After, rate_limit_exceeded
               │ └──── neither     Redis is asked, for milliseconds; then a callback with one or the other
               v
    settle(used tokens) once the request has ended, or withdraw if no worker served it

`router.shared.leases` shares a limit among replicas; this module adds words, headers and numbers. The headers
are OpenAI's (platform.openai.com/docs/guides/rate-limits): the limit, its rest, and the time until more is
left, as the window forgets its oldest use. The remainder is that of all replicas a moment ago.
"""

from collections.abc import Callable

from router.errors import RequestRejected
from router.shared import Charge, Leases
from router.tenant import Tenant

KINDS = ("", "requests", "tokens", "concurrent_tokens")
"""Words for the numbers of limits (`Refusal.kind`), as metrics and logs have them."""

NEVER_S = 60.0
"""Retry-After of a request that is larger than its limit: OpenAI answers 429, too, and clients try again at
once without one."""


class Limiter:
    """Admits requests of tenants with limits; ``rejected`` gets the tenant and limit of each rejection."""

    def __init__(self, leases: Leases, rejected: Callable[[str, str], None]) -> None:
        self._leases = leases
        self._rejected = rejected

    @property
    def degraded_reason(self) -> str | None:
        """Reason why each replica keeps to its share of the limits now; None if they are counted together."""
        return self._leases.degraded_reason

    def admit(self, tenant: Tenant, tokens: int, decided: Callable[[Charge], None]) -> Charge:
        """Charge the estimated tokens of prompt and answer to a tenant with limits.

        If the charge is neither granted nor refused yet, ``decided`` gets it later, perhaps after the
        request ended.
        """
        return self._leases.charge(self._leases.account(tenant.name, tenant.limits), tokens, decided)

    def rejection(self, charge: Charge) -> RequestRejected:
        """Count a refused request, and return the error for its client."""
        refusal, limits = charge.refusal, charge.account.limits
        if refusal is None:
            raise ValueError("the charge was not refused")
        self._rejected(charge.account.name, KINDS[refusal.kind])
        allowed = (
            "",
            f"{limits.requests_per_minute} requests per minute",
            f"{limits.tokens_per_minute} tokens per minute",
            f"{limits.concurrent_tokens} tokens in flight",
        )[refusal.kind]
        if refusal.retry_us:
            message, retry_after_s = f"The limit of {allowed} is reached.", refusal.retry_us / 1e6
        else:
            message = f"This request of about {charge.tokens} tokens is larger than the limit of {allowed}."
            retry_after_s = NEVER_S
        return RequestRejected(message, retry_after_s=retry_after_s, code="rate_limit_exceeded")

    def settle(self, charge: Charge, tokens: int) -> None:
        """A request that was granted has ended, having used these tokens; the first word counts."""
        if charge.granted and not charge.ended:
            self._leases.settle(charge, tokens)

    def withdraw(self, charge: Charge) -> None:
        """Drop the charge of a request that no worker served; it may still wait."""
        if not charge.ended:
            self._leases.withdraw(charge)

    def left(self, tenant: Tenant) -> dict[str, int] | None:
        """Return the remainder of each limited rate; None if this replica had no request for a minute."""
        account = self._leases.known(tenant.name)
        if account is None:
            return None
        left = {}
        if tenant.limits.requests_per_minute:
            left["requests"] = account.requests_left
        if tenant.limits.tokens_per_minute:
            left["tokens"] = account.tokens_left
        return left

    def lines(self, charge: Charge) -> bytes:
        """Return header lines with the tenant's limits and remainders."""
        account, now_us = charge.account, self._leases.now_us()
        limits = account.limits
        lines = b""
        if limits.requests_per_minute:
            left = account.requests_left
            lines = _lines(b"requests", limits.requests_per_minute, left, account.grows_in_us(0, now_us))
        if limits.tokens_per_minute:
            left = account.tokens_left
            lines += _lines(b"tokens", limits.tokens_per_minute, left, account.grows_in_us(1, now_us))
        return lines


def _lines(what: bytes, limit: int, left: int, grows_us: int) -> bytes:
    return b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %d\r\nx-ratelimit-reset-%b: %b\r\n" % (
        what,
        limit,
        what,
        left,
        what,
        _duration(grows_us),
    )


def _duration(duration_us: int) -> bytes:
    """Format a duration as OpenAI does: ``12ms``, ``7.6s``, ``1m0s``."""
    if duration_us < 1_000_000:
        return b"%dms" % (duration_us // 1000)
    minutes, tenths = divmod(duration_us // 100_000, 600)
    seconds = b"%d.%ds" % divmod(tenths, 10) if tenths % 10 else b"%ds" % (tenths // 10)
    return b"%dm%b" % (minutes, seconds) if minutes else seconds
