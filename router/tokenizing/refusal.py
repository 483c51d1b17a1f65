"""Reasons why a prompt keeps its text identity although its model has a tokenizer."""

from enum import StrEnum


class Cause(StrEnum):
    """Reason why a prompt was not turned into token ids."""

    UNSUPPORTED = "unsupported"
    """Its token ids cannot be known here: media, a template of its own."""
    TOO_LARGE = "too_large"
    """It has more bytes than are tokenized for placement."""
    BUSY = "busy"
    """Too many others wait for the same."""
    LATE = "late"
    """It took longer than a request may be held up."""
    FAILED = "failed"
    """The template or the tokenizer refused it, as the engine probably will, or no engine answered."""


class NotTokenized(Exception):
    """A prompt cannot be turned into token ids; ``detail`` holds nothing of the prompt."""

    def __init__(self, cause: Cause, detail: str) -> None:
        super().__init__(detail)
        self.cause = cause
        self.detail = detail
