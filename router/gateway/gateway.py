"""What all exchanges of a process share. It does nothing by itself: each part has a file of its own.

    RequestExchange, EncoderExchange ──> Gateway ──> RequestReader   what clients send
                                                 ├─> Placing         where it goes
                                                 ├─> Sending         what is on its way
                                                 ├─> Reports         what became of it
                                                 └─> Plugins         tenants' limits, hand-over, token ids

Nothing here or below knows an exchange.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from router.fleet import Core
from router.gateway.placing import Placing
from router.gateway.ports import TokenizingPort
from router.gateway.reader import RequestReader
from router.gateway.reports import Reports, Telemetry
from router.gateway.sending import Sending
from router.gateway.step_runner import StepRunner
from router.gateway.tracer import Tracer
from router.handover import Handover
from router.settings import Settings
from router.tenants import Limiter


@dataclass(frozen=True, slots=True)
class Plugins:
    """Options of a gateway.

    Attributes:
        handovers: By protocol, how prefill workers hand over to decode workers.
        limiter: Keeps tenants to their limits; None where nobody has any.
        tokenizing: Finds out the token ids of prompts; None where no model has a tokenizer.
    """

    handovers: Mapping[str, Handover] = field(default_factory=dict)
    limiter: Limiter | None = None
    tokenizing: TokenizingPort | None = None


class Gateway:
    """The parts that serve requests.

    Args:
        settings: The effective settings.
        core: The fleet.
        reader: Reads requests.
        telemetry: Where it is told of them.
        plugins: Options.
        loop: Runs timers.
        now_s: Monotonic seconds; not the loop's time, of which uvloop knows whole milliseconds only.
        requests_max: For how many requests there are open files.

    Attributes:
        fleet, registry, log: See `Core`.
        reader, loop, now_s: As given.
        handovers, limiter, tokenizing: See `Plugins`.
        metrics: See `Telemetry`.
        placing: Where requests go.
        sending: What is on its way.
        reports: What became of it.
        lane: Does what is too long for one turn of the loop.
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
        self.handovers, self.limiter = plugins.handovers, plugins.limiter
        self.tokenizing = plugins.tokenizing
        self.placing = Placing(settings, core, telemetry.metrics, loop)
        self.sending = Sending(
            settings,
            core,
            self.placing,
            telemetry.metrics,
            loop=loop,
            now_s=now_s,
            requests_max=requests_max,
        )
        tracer = None
        if telemetry.trace_request is not None:
            tracer = Tracer(telemetry.trace_request, reader.hasher, self.placing.feedback, core.log.now_us)
        self.reports = Reports(settings.observability, telemetry, tracer, core.log.now_us)
        self.metrics = telemetry.metrics
        self.lane = StepRunner(loop.call_soon)

    def use(self, settings: Settings) -> None:
        """Go by these settings from now on; what cannot change while it serves stays as it was.

        All of it between two decisions. What waits keeps its deadline, and what is in flight its worker.
        """
        self.reader.use(settings)
        self.placing.use(settings)
        self.sending.use(settings)
        self.reports.rules = settings.observability
