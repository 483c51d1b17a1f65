"""What the gateway asks of options that are plugged into it."""

from collections.abc import Callable
from typing import Protocol

from router.gateway.parsing import ParsedRequest


class TokenizingPort(Protocol):
    """Finds out the token ids of prompts (`router.tokenizing`)."""

    def begin(
        self, parsed: ParsedRequest, body: bytes, done: Callable[[ParsedRequest], None]
    ) -> ParsedRequest | None:
        """Find out the ids of a request's prompts; None: ``done`` is called with them later."""

    async def now(self, parsed: ParsedRequest, body: bytes) -> ParsedRequest:
        """Return a request with the ids of its prompts, or as it was where they are not to be had."""

    def answered(self, parsed: ParsedRequest, prompt_tokens: int) -> None:
        """Compare the number of ids with what an engine counted."""
