"""Keeps tenants to their limits, over all replicas, and tells clients where they stand.

    admit ──> Charge, granted     go on
      │   └─> Charge, not granted the answer of Redis is awaited, for milliseconds: `decided` is called
      │   └─> RequestRejected     429, Retry-After, rate_limit_exceeded
      v
    settle(used tokens) once the request has ended, or withdraw if nobody served it

How the replicas share a limit is `router.shared.leases`' business; here it gets its words, its HTTP headers
and its numbers. The headers are OpenAI's (platform.openai.com/docs/guides/rate-limits): the limit, what
remains of it, and after how long more does, as the window lets go of its oldest use. What remains is what
was left over all replicas a moment ago, not what this one holds.
"""

from collections.abc import Callable

from router.errors import RequestRejected
from router.shared import Charge, LeaseAccount, Leases, Refusal
from router.tenants.tenant import Tenant

CODE = "rate_limit_exceeded"

KINDS = ("", "requests", "tokens", "concurrent_tokens")
"""Words for the numbers of limits (`Refusal.kind`), as metrics and logs have them."""

NEVER_S = 60.0
"""Retry-After of a request that is larger than its limit: OpenAI answers 429, too, and clients try again at
once without one."""

Decided = Callable[[Charge, Refusal | None], None]


class Limiter:
    """Admits requests of tenants that have limits.

    Args:
        leases: What counts them.
        rejected: Told the tenant and the word for the limit of every rejection.
    """

    def __init__(self, leases: Leases, rejected: Callable[[str, str], None]) -> None:
        self._leases = leases
        self._rejected = rejected

    def admit(self, tenant: Tenant, tokens: int, decided: Decided) -> Charge:
        """Charge a request to its tenant.

        Args:
            tenant: Has limits.
            tokens: Estimated tokens of prompt and answer.
            decided: Called later if the charge is not granted yet; `rejection` makes an error of what it
                gets. The request may have ended meanwhile.

        Raises:
            RequestRejected: A limit does not allow it.
        """
        account = self._leases.account(tenant.name, tenant.limits)
        outcome = self._leases.charge(account, tokens, decided)
        if isinstance(outcome, Refusal):
            raise self._error(account, tokens, outcome)
        return outcome

    def rejection(self, charge: Charge, refusal: Refusal) -> RequestRejected:
        """The error that a refused request gets."""
        return self._error(charge.account, charge.tokens, refusal)

    def settle(self, charge: Charge, tokens: int) -> None:
        """A request that was granted has ended, having used these tokens; the first word counts."""
        if charge.granted and not charge.ended:
            self._leases.settle(charge, tokens)

    def withdraw(self, charge: Charge) -> None:
        """Nobody served the request, it may even wait still: nothing of it counts."""
        if not charge.ended:
            self._leases.withdraw(charge)

    def lines(self, charge: Charge) -> bytes:
        """Header lines that tell where the tenant stands."""
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

    def _error(self, account: LeaseAccount, tokens: int, refusal: Refusal) -> RequestRejected:
        self._rejected(account.name, KINDS[refusal.kind])
        limits = account.limits
        allowed = (
            "",
            f"{limits.requests_per_minute} requests per minute",
            f"{limits.tokens_per_minute} tokens per minute",
            f"{limits.concurrent_tokens} tokens in flight",
        )[refusal.kind]
        if not refusal.retry_us:
            return RequestRejected(
                f"This request of about {tokens} tokens is larger than the limit of {allowed}.",
                retry_after_s=NEVER_S,
                code=CODE,
            )
        return RequestRejected(
            f"The limit of {allowed} is reached.", retry_after_s=refusal.retry_us / 1e6, code=CODE
        )


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
    """A duration as OpenAI writes it: ``12ms``, ``7.6s``, ``1m0s``."""
    if duration_us < 1_000_000:
        return b"%dms" % (duration_us // 1000)
    minutes, seconds = divmod(duration_us // 100_000 / 10, 60)
    return b"%b%bs" % (b"%dm" % minutes if minutes else b"", f"{seconds:g}".encode())
