"""What the events of a stream say of its progress: when its first token is there, and when all was said.

**First token.** The first byte of a stream marks it, since engines begin to stream when they have one: the
role of a chat, too, goes out with it (vLLM: ``chat_completion/serving.py``, ``first_iteration``). Not so

    /v1/responses   response.created, response.in_progress, response.queued come before the prefill
                    (vLLM and SGLang: ``responses_stream_generator``)
    /v1/messages    message_start and ping, where an engine sends them as the Messages API does
    all             comments, lines that begin with a colon: servers send them lest a proxy closes the
                    connection of a stream that says nothing

They are passed on as they come; the prefill goes on, and the time to first token with it.

**All said.** The last event comes before the end of the HTTP message, and some clients close their connection
in between: OpenAI's SDK when it is not asynchronous (``openai/_streaming.py``), and guidellm. They did not
leave, they have their answer.
"""

import re

from router.gateway.endpoints import Endpoint

SPEAKS_EARLY = frozenset({Endpoint.RESPONSES, Endpoint.MESSAGES})
"""Endpoints whose streams may begin before the first token."""

_EARLY = rb"(?:response\.(?:created|in_progress|queued)|message_start|ping)"
_TOKEN_EVENT = re.compile(rb"^event:(?! ?" + _EARLY + rb"\r?\n) ?[\w.]+\r?\n", re.MULTILINE)
_ANY_DATA = re.compile(rb"^data:", re.MULTILINE)

_LAST = rb"(?:message_stop|response\.(?:completed|incomplete|failed))"
_LAST_EVENT = re.compile(
    rb"^event: ?" + _LAST + rb"\r?\n(?s:.*)\n\r?\n\Z"  # its whole data, too
    rb'|"type": ?"' + _LAST + rb'"\}\r?\n\r?\n\Z',  # of one that is longer than what is kept
    re.MULTILINE,
)
_DONE = re.compile(rb"^data: ?\[DONE\]\s*\Z", re.MULTILINE)


def has_token(endpoint: Endpoint | None, data: bytes) -> bool:
    """Tell whether a token, or the end of waiting for one, is among some bytes of a stream.

    Args:
        endpoint: What was asked.
        data: As they came, cut anywhere. An event whose name is cut in two is not seen, but the next one is.

    Returns:
        Whether there is an event that is not sent before the first token; errors are none of those.
    """
    pattern = _TOKEN_EVENT if endpoint in SPEAKS_EARLY else _ANY_DATA
    return pattern.search(data) is not None


def is_over(endpoint: Endpoint | None, end: bytes) -> bool:
    """Tell whether a stream has said all that it has to say.

    Args:
        endpoint: What was asked.
        end: The last bytes of it.

    Returns:
        Whether the last event is among them, whole; an error that breaks a stream off is none.
    """
    pattern = _LAST_EVENT if endpoint in SPEAKS_EARLY else _DONE
    return pattern.search(end) is not None
