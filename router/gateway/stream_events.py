"""The progress of a stream by its events: its first token, and its end.

**First token.** The first byte of a stream marks it, since engines begin to stream when they have one: the
role of a chat, too, goes out with it (vLLM: ``chat_completion/serving.py``, ``first_iteration``). Exceptions,
passed on while the prefill goes on:

    /v1/responses   response.created, response.in_progress, response.queued come before the prefill
                    (vLLM and SGLang: ``responses_stream_generator``)
    /v1/messages    message_start and ping, where an engine sends them as the Messages API does
    all             comments, lines that begin with a colon: servers send them to keep silent connections open

**End.** The last event comes before the end of the HTTP message; OpenAI's synchronous SDK
(``openai/_streaming.py``) and guidellm close their connection in between, with their answer complete.
"""

import re

from router.gateway.endpoints import Endpoint

SPEAKS_EARLY = frozenset({Endpoint.RESPONSES, Endpoint.MESSAGES})
"""Endpoints whose streams may begin before the first token."""

_EARLY = rb"(?:response\.(?:created|in_progress|queued)|message_start|ping)"
_TOKEN_EVENT = re.compile(rb"^event:(?! ?" + _EARLY + rb"\r?\n) ?[\w.]+\r?\n", re.MULTILINE)
_ANY_DATA = re.compile(rb"^data:", re.MULTILINE)

_LAST = rb"(?:message_stop|response\.(?:completed|incomplete|failed))"
_LAST_EVENT = re.compile(rb"^event: ?" + _LAST + rb"\r?\n", re.MULTILINE)
_END_OF_LAST = re.compile(rb'"type": ?"' + _LAST + rb'"\}\r?\n\r?\n\Z')  # of one longer than what is kept
_BLANKS = (b"\n\n", b"\n\r\n")
_DONE = re.compile(rb"^data: ?\[DONE\]\s*\Z", re.MULTILINE)


def has_token(endpoint: Endpoint | None, data: bytes) -> bool:
    """Return True if a stream's bytes, cut anywhere, hold an event that is not sent before the first token.

    Errors are such events. An event whose name is cut in two is missed, but the next one is not.
    """
    pattern = _TOKEN_EVENT if endpoint in SPEAKS_EARLY else _ANY_DATA
    return pattern.search(data) is not None


def is_over(endpoint: Endpoint | None, end: bytes) -> bool:
    """Return True if a stream's last bytes hold its whole last event, not an error that breaks it off."""
    if endpoint not in SPEAKS_EARLY:
        return _DONE.search(end) is not None
    named = _LAST_EVENT.search(end)
    whole = named is not None and end.endswith(_BLANKS, named.end())
    return whole or _END_OF_LAST.search(end) is not None
