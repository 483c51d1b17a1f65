"""The text of one stream, and its events as the client sees them.

    worker's events ──passed──> the client's events
                        └──> text so far, its tokens, the *anchor*: where another worker begins

**Anchor.** The end of the last piece that does not end with white space: chat templates trim messages, and
the white space begins the model's next token. The next worker generates the text behind the anchor once more,
and the part that the client has is left out.

**Counts.** Workers are asked for their counts with every chunk, since one chunk may hold several tokens; the
client gets the counts that it asked for. The final ones are of the whole answer.

**No longer plain.** Reasoning, tool calls, a second choice, an event of unknown shape and a text beyond
`TEXT_BYTES_MAX` end the keeping (`keeps`), not the stream.
"""

from typing import Any

from router.continuing.asked import Asked
from router.continuing.chunks import DONE, Chunk, Usage, decode, decode_any, encode, without_usage

TEXT_BYTES_MAX = 256 * 1024
"""Longest text that is kept of a stream, UTF-8."""

MARKS = ("<think", "</think", "<|channel|>", "[THINK]", "<reasoning>", "<tool_call", "[TOOL_CALLS]")
"""Marks of reasoning and tool calls that no parser of the engine took out: a chat template would cut or
reshape such a message."""


class EngineFailed(Exception):
    """The worker reports in its stream that it failed; ``before`` are the events that came before."""

    def __init__(self, before: bytes, message: str) -> None:
        self.before = before
        super().__init__(message)


class KeptText:
    """The text of one stream.

    Attributes:
        keeps: The stream can be continued so far.
        done: The last event has passed.
        finished: The choice has its reason to finish.
        tokens: Generated so far, by the engines' counts.
        prompt_tokens: Prompt tokens of the first worker; 0 if unknown.
    """

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self.keeps = True
        self.done = self.finished = False
        self.tokens = self.prompt_tokens = 0
        self._text = bytearray()
        self._anchor = (0, 0)
        self._first: Chunk | None = None
        self._base: int | None = None
        self._again = ""
        """The client's text behind the anchor, which the present worker makes once more."""

    @property
    def anchored(self) -> tuple[str, int]:
        """The text up to the anchor, and its tokens."""
        end, tokens = self._anchor
        return self._text[:end].decode(), tokens

    @property
    def is_complete(self) -> bool:
        """True if nothing but counts and the last event is missing, and both are known."""
        counted = self.prompt_tokens > 0 or not self._asked.usage
        return self.done or (self.finished and self._first is not None and counted)

    @property
    def is_marked(self) -> bool:
        """True if the text shows reasoning or tool calls."""
        text = self._text.decode()
        return any(mark in text for mark in MARKS)

    def begin_again(self) -> None:
        """Expect the events of a worker that continues from the anchor."""
        end, tokens = self._anchor
        self._again = self._text[end:].decode()
        self._base = self.tokens = tokens

    def forget(self) -> None:
        """Keep nothing any longer."""
        self.keeps = False
        self._text, self._anchor = bytearray(), (0, 0)

    def end(self) -> bytes:
        """Return the events that end a finished stream whose worker broke off before its last event."""
        if self.done:
            return b""
        if not self._asked.usage or self._first is None:
            return DONE + b"\n\n"
        first = self._first
        counts: dict[str, Any] = {
            "id": first.id,
            "object": "chat.completion.chunk" if self._asked.chat else "text_completion",
            "created": first.created,
            "model": first.model,
            "choices": [],
            "usage": {
                "prompt_tokens": self.prompt_tokens,
                "completion_tokens": self.tokens,
                "total_tokens": self.prompt_tokens + self.tokens,
            },
        }
        return b"data: " + encode(counts) + b"\n\n" + DONE + b"\n\n"

    def passed(self, data: bytes) -> bytes:
        """Return the events for the client; raise `EngineFailed` at one that reports a failure."""
        if not data.endswith(b"\n\n") or b"\r" in data:  # no engine that we know
            self.keeps = False
            return data if self._asked.usage_always else without_usage(data)
        events = data[:-2].split(b"\n\n")
        if len(events) == 1:
            return self._event(events[0], b"")
        passed = b""
        for event in events:
            passed += self._event(event, passed)
        return passed

    def _event(self, event: bytes, before: bytes) -> bytes:
        if event[:5] != b"data:":
            if event[:1] != b":":
                self.keeps = False
            return event + b"\n\n"
        if event == DONE:
            self.done = True
            return event + b"\n\n"
        try:
            chunk = decode(event[5:])
        except (ValueError, RecursionError):
            self.keeps = False
            return event + b"\n\n"
        if chunk.error is not None:
            if self.keeps and not self.finished and chunk.is_engines_failure:
                raise EngineFailed(before, str(chunk.error.get("message", ""))[:200])
            self.keeps = False
            return event + b"\n\n"
        if self._first is None:
            self._first = chunk
        usage = chunk.usage
        if usage is not None and usage.completion_tokens is not None:
            self.tokens = (self._base or 0) + usage.completion_tokens
            if self._base is None:
                self.prompt_tokens = usage.prompt_tokens
        piece = self._piece(chunk)
        if not chunk.choices and not self._asked.usage and usage is not None:
            return b""  # the client did not ask for this event
        if self._base is not None:
            return self._rewritten(event, chunk, piece)
        if piece:
            self._keep(piece)
        if usage is not None and chunk.choices and not self._asked.usage_always:
            return without_usage(event) + b"\n\n"
        return event + b"\n\n"

    def _piece(self, chunk: Chunk) -> str:
        """Return the text of a chunk."""
        if not chunk.choices:
            return ""
        choice = chunk.choices[0]
        if choice.finish_reason is not None:
            self.finished = True
        delta = choice.delta
        if len(chunk.choices) > 1 or choice.index or (delta is not None and not delta.is_plain):
            self.keeps = False
        piece = (choice.text if delta is None else delta.content) or ""
        if piece and chunk.usage is None:
            self.tokens += 1
        return piece

    def _keep(self, piece: str) -> None:
        if not self.keeps:
            return
        text = self._text
        try:
            text += piece.encode()
        except UnicodeEncodeError:  # a lone surrogate: half of a character
            self.keeps = False
            return
        if len(text) > TEXT_BYTES_MAX:
            self.keeps = False
        elif not piece[-1].isspace() and piece[-1] != "\ufffd":
            self._anchor = (len(text), self.tokens)

    def _rewritten(self, event: bytes, chunk: Chunk, piece: str) -> bytes:
        """Return a chunk of a worker that continues the stream, as one of the first worker's."""
        whole = decode_any(event[5:])
        assert self._first is not None
        for name, value in (
            ("id", self._first.id),
            ("created", self._first.created),
            ("model", self._first.model),
        ):
            if value is not None:
                whole[name] = value
        if chunk.usage is not None:
            if chunk.choices and not self._asked.usage_always:
                whole.pop("usage", None)
            else:
                whole["usage"] = self._summed(whole["usage"], chunk.usage)
        if chunk.choices:
            fresh = self._unsaid(piece)
            choice = whole["choices"][0]
            delta = choice.get("delta")
            if isinstance(delta, dict):
                delta.pop("role", None)
                if "content" in delta:
                    delta["content"] = fresh
            elif "text" in choice:
                choice["text"] = fresh
            if fresh:
                self._keep(fresh)
            elif self.keeps and chunk.choices[0].finish_reason is None:
                return b""
        return b"data: " + encode(whole) + b"\n\n"

    def _unsaid(self, piece: str) -> str:
        """Return the part of a piece that the client does not have."""
        if not self._again:
            return piece
        again, said = self._again, 0
        while said < min(len(again), len(piece)) and again[said] == piece[said]:
            said += 1
        left = piece[said:]
        self._again = "" if left else again[said:]
        return left

    def _summed(self, counts: dict[str, Any], usage: Usage) -> dict[str, Any]:
        """Return the counts of the whole answer: the first worker's prompt, and all that was generated."""
        if not self.prompt_tokens:
            self.prompt_tokens = max(usage.prompt_tokens - (self._base or 0), 0)
        prompt = self.prompt_tokens
        counts["prompt_tokens"], counts["completion_tokens"] = prompt, self.tokens
        counts["total_tokens"] = prompt + self.tokens
        details = counts.get("prompt_tokens_details")
        if isinstance(details, dict) and isinstance(details.get("cached_tokens"), int):
            details["cached_tokens"] = min(details["cached_tokens"], prompt)
        return counts


def is_plain_stream(status: int, lines: bytes, length: int | None) -> bool:
    """Return True if an answer's head begins an event stream that can be read."""
    lower = lines.lower()
    return (
        status == 200
        and length is None
        and b"content-type: text/event-stream" in lower
        and b"content-encoding: " not in lower
    )
