"""Holds requests for an adapter that no worker has, until one has it; then the tokenizer, if there is one.

It stands where the gateway expects its tokenizer (`router.gateway.gateway.TokenizingPort`): the one step at
which a request may wait before it is placed.
"""

import asyncio
from collections.abc import Callable

import msgspec

from router.errors import NoWorker
from router.fleet import Core
from router.gateway.gateway import TokenizingPort
from router.gateway.parsing import ParsedRequest
from router.models.adapters import Adapters
from router.models.choice import AdapterUse, Choice
from router.models.loader import AdapterLoader
from router.shared import Use

HELD_MAX = 1000
"""Requests that wait for adapters in one process."""

LOADS_MAX = 5
"""Loads of its adapter that a request waits for."""

RETRY_AFTER_S = 5.0

Done = Callable[[ParsedRequest], None]


class AdapterGate:
    """The gate of one process; ``tokenizing`` is None where no prompt is tokenized."""

    def __init__(
        self, adapters: Adapters, loader: AdapterLoader, core: Core, tokenizing: TokenizingPort | None
    ) -> None:
        self._adapters, self._loader, self._registry = adapters, loader, core.registry
        self._tokenizing = tokenizing
        self._arrivals: dict[str, asyncio.Task[str]] = {}
        self._held = 0

    def begin(self, parsed: ParsedRequest, body: bytes, done: Done) -> ParsedRequest | None:
        """Return a request that may be placed; None: ``done`` is called with it later."""
        name = parsed.model or ""
        if name not in self._adapters.rules:
            return self._tokenized(parsed, body, done)
        use = self._loader.uses.begun(name)
        reading = self._loader.stale()
        if reading is None:
            return self._come(parsed, body, done, use)
        self._hold()

        def read(reading: "asyncio.Task[None]") -> None:
            self._held -= 1
            if reading.cancelled():
                done(using(parsed, name, "The gateway shuts down."))
            else:
                self._go_on(parsed, body, done, use)

        reading.add_done_callback(read)
        return None

    def _come(
        self, parsed: ParsedRequest, body: bytes, done: Done, use: Use, loads: int = 0
    ) -> ParsedRequest | None:
        """Go on with a request if a worker has its adapter, and wait for one otherwise.

        Another adapter may take its place before the request goes on; ``loads`` were waited for so far.
        """
        name = parsed.model or ""
        self._loader.follow()
        if self._is_ready(name):
            self._loader.spread(self._adapters, name)
            use.in_flight = True
            return self._tokenized(using(parsed, name, use=use), body, done)
        self._hold()
        arrival = self._arrivals.get(name)
        if arrival is None:
            load = self._loader.first(self._adapters, name)
            arrival = self._arrivals[name] = asyncio.create_task(load, name="adapter arrival")
            arrival.add_done_callback(lambda _: self._arrivals.pop(name, None))

        def arrived(arrival: "asyncio.Task[str]") -> None:
            self._held -= 1
            if arrival.cancelled():
                reason = "the gateway shuts down"
            else:
                error = arrival.exception()
                reason = arrival.result() if error is None else type(error).__name__
            if not reason and loads + 1 >= LOADS_MAX and not self._is_ready(name):
                reason = "too many adapters are wanted at its workers"
            if reason:
                done(using(parsed, name, f"The adapter {name} was not loaded: {reason}"))
                return
            self._go_on(parsed, body, done, use, loads + 1)

        arrival.add_done_callback(arrived)
        return None

    def _go_on(self, parsed: ParsedRequest, body: bytes, done: Done, use: Use, loads: int = 0) -> None:
        """Do the same for a request that has waited."""
        try:
            found = self._come(parsed, body, done, use, loads)
        except NoWorker as error:
            found = using(parsed, parsed.model or "", str(error), use)
        if found is not None:
            done(found)

    def _hold(self) -> None:
        """Count a request that waits; raise `NoWorker` if too many do."""
        if self._held >= HELD_MAX:
            raise NoWorker("Too many requests wait for adapters.", retry_after_s=RETRY_AFTER_S)
        self._held += 1

    async def now(self, parsed: ParsedRequest, body: bytes) -> ParsedRequest:
        """Return a request as it would be placed now; nothing is loaded."""
        name = parsed.model or ""
        if name in self._adapters.rules:
            reason = ""
            if not self._is_ready(name):
                places = ", ".join(local.worker.worker_id for local in self._adapters.wanted(name))
                reason = f"No worker has the adapter {name}; a request has it loaded at {places or 'none'}."
            parsed = using(parsed, name, reason)
        return parsed if self._tokenizing is None else await self._tokenizing.now(parsed, body)

    def answered(self, parsed: ParsedRequest, prompt_tokens: int) -> None:
        """Compare the number of ids with an engine's count."""
        if self._tokenizing is not None:
            self._tokenizing.answered(parsed, prompt_tokens)

    def _tokenized(self, parsed: ParsedRequest, body: bytes, done: Done) -> ParsedRequest | None:
        return parsed if self._tokenizing is None else self._tokenizing.begin(parsed, body, done)

    def _is_ready(self, name: str) -> bool:
        return len(self._registry.eligible(name, self._registry.now_us())) > 0


def using(parsed: ParsedRequest, name: str, reason: str = "", use: Use | None = None) -> ParsedRequest:
    """Return a request with the adapter that it uses, and the reason if it cannot."""
    choice = parsed.choice if isinstance(parsed.choice, Choice) else Choice()
    choice = msgspec.structs.replace(choice, adapter=AdapterUse(name, reason, use))
    return msgspec.structs.replace(parsed, choice=choice)
