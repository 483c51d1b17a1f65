"""The parts that all exchanges of a process share; each has a file of its own.

    RequestExchange, EncoderExchange ──> Gateway ──> RequestReader   reads requests
                                                 ├─> Placing         chooses workers
                                                 ├─> Sending         counts and times requests in flight
                                                 ├─> Reports         takes results
                                                 └─> Plugins         pairs, limits, token ids, sessions

Nothing here or below knows an exchange.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from policies import make_policy
from router.errors import RequestRejected
from router.fleet import Core
from router.gateway.parsing import ParsedRequest
from router.gateway.placing import MakePolicy, MakeShadow, PairsPort, Placing
from router.gateway.reader import RequestReader
from router.gateway.reports import Reports, Telemetry
from router.gateway.sending import Sending
from router.gateway.step_runner import StepRunner
from router.proxy import Header
from router.settings import Settings
from router.shared import Charge
from router.tenant import Tenant


class TokenizingPort(Protocol):
    """Finds the token ids of prompts (`router.tokenizing`)."""

    def begin(
        self, parsed: ParsedRequest, body: bytes, done: Callable[[ParsedRequest], None]
    ) -> ParsedRequest | None:
        """Return a request with the ids of its prompts; None: ``done`` is called with it later."""

    async def now(self, parsed: ParsedRequest, body: bytes) -> ParsedRequest:
        """Return a request with the ids of its prompts, or unchanged if they cannot be had."""

    def answered(self, parsed: ParsedRequest, prompt_tokens: int) -> None:
        """Compare the number of ids with an engine's count."""


class LimiterPort(Protocol):
    """Charges tenants for their requests (`router.tenants.limits`)."""

    @property
    def degraded_reason(self) -> str | None:
        """Why each replica keeps to its share of the limits now; None if they are counted together."""

    def admit(self, tenant: Tenant, tokens: int, decided: Callable[[Charge], None]) -> Charge:
        """Charge the estimated tokens of a request; ``decided`` hears later what is not decided yet."""

    def rejection(self, charge: Charge) -> RequestRejected:
        """Count a refused request, and return the error for its client."""

    def settle(self, charge: Charge, tokens: int) -> None:
        """Replace the estimate of a request that ended by the tokens it used."""

    def withdraw(self, charge: Charge) -> None:
        """Drop the charge of a request that no worker served."""

    def left(self, tenant: Tenant) -> dict[str, int] | None:
        """Return the remainder of each limited rate; None if it is not known."""

    def lines(self, charge: Charge) -> bytes:
        """Return header lines with the tenant's limits and remainders."""


class SessionsPort(Protocol):
    """Knows which requests belong together (`router.sessions`)."""

    def named(self, parsed: ParsedRequest, headers: Sequence[Header], name: str = "") -> ParsedRequest:
        """Return a request with the name of its session, ``name`` if given, and with the session's key."""

    def home_of(self, parsed: ParsedRequest) -> int:
        """Return the slot of the worker that served its session last; -1 if none is known."""

    def placed(self, parsed: ParsedRequest, worker_id: str) -> None:
        """Take note of the worker, or rank, that gets a request of a session."""


@dataclass(frozen=True, slots=True)
class Plugins:
    """Options of a gateway: None where off."""

    pairs: PairsPort | None = None
    limiter: LimiterPort | None = None
    tokenizing: TokenizingPort | None = None
    make_shadow: MakeShadow | None = None
    make_policy: MakePolicy = make_policy
    sessions: SessionsPort | None = None


class Gateway:
    """The parts that serve requests; attributes not listed are those of `Core`, `Plugins` and `Telemetry`.

    ``now_s`` is monotonic seconds, not the loop's time, of which uvloop knows whole milliseconds only;
    ``requests_max`` the number of requests for which there are open files. ``lane`` runs work that is too
    long for one turn of the loop.
    """

    def __init__(
        self,
        settings: Settings,
        core: Core,
        reader: RequestReader,
        telemetry: Telemetry,
        plugins: Plugins,
        *,
        loop: asyncio.AbstractEventLoop,
        now_s: Callable[[], float] = time.monotonic,
        requests_max: int = sys.maxsize,
    ) -> None:
        self.fleet, self.registry, self.log = core.fleet, core.registry, core.log
        self.reader, self.loop, self.now_s = reader, loop, now_s
        self.pairs, self.limiter = plugins.pairs, plugins.limiter
        self.tokenizing, self.sessions = plugins.tokenizing, plugins.sessions
        self.placing = Placing(
            settings,
            core,
            telemetry.metrics,
            loop,
            plugins.pairs,
            plugins.make_shadow,
            plugins.make_policy,
        )
        self.sending = Sending(
            settings,
            core,
            self.placing,
            telemetry.metrics,
            loop=loop,
            now_s=now_s,
            requests_max=requests_max,
        )
        self.reports = Reports(settings.observability, telemetry, core.log.now_us)
        self.metrics, self.spans = telemetry.metrics, telemetry.spans
        self.lane = StepRunner(loop.call_soon)

    def use(self, settings: Settings) -> None:
        """Apply new settings between two decisions, as far as they are live.

        Waiting requests keep their deadlines, requests in flight their workers.
        """
        self.reader.use(settings)
        self.placing.use(settings)
        self.sending.use(settings)
        if self.pairs is not None:
            self.pairs.use(settings)
        self.reports.use(settings.observability)
