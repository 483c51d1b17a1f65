"""A model's chat template: from a conversation to the text that its engine tokenizes.

Rendered as transformers does (``utils/chat_template_utils.py``): an immutable sandbox, blocks trimmed,
``break`` and ``continue``, ``tojson`` that escapes nothing, ``raise_exception``, ``strftime_now``, and
``generation`` blocks, which only mark their content. Templates come from the operator, never from a request.
"""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from router.tokenizing.content_format import takes_parts
from router.tokenizing.refusal import Cause, NotTokenized

Message = dict[str, Any]

_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
"""Marks the end of the message to continue; templates must not tell it from text."""


class _Generation(Extension):
    """``{% generation %}...{% endgeneration %}``: marks generated text, for training."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        """Read one block."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_as_it_is"), [], [], body).set_lineno(line)

    @staticmethod
    def _as_it_is(caller: Macro) -> str:
        return caller()


class ChatTemplate:
    """One template; raise TemplateError if its source is none.

    Attributes:
        takes_parts: True if it takes content as a list of parts.
        knows_developers: True if it knows the role ``developer``.
        tells_time: True if it may print the time.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _time_now
        self.source = source
        self._special_tokens = dict(special_tokens)
        self._template = environment.from_string(source)
        self.takes_parts = takes_parts(environment.parse(source))
        self.knows_developers = '"developer"' in source or "'developer'" in source
        self.tells_time = "strftime_now" in source

    def render(
        self,
        messages: Sequence[Message],
        tools: list[Any] | None,
        documents: list[Any] | None,
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        values: Mapping[str, Any],
    ) -> str:
        """Render a conversation, its content as the template takes it; raise NotTokenized if that fails.

        ``add_generation_prompt`` opens the answer, ``continue_final_message`` leaves the last turn open.
        """
        if not messages or (add_generation_prompt and continue_final_message):
            raise NotTokenized(Cause.FAILED, "there is nothing to answer, or nothing to continue")
        final = ""
        if continue_final_message:
            messages, final = self._marked(messages)
        try:
            text = self._template.render(
                messages=messages,
                tools=tools,
                documents=documents,
                add_generation_prompt=add_generation_prompt,
                **{**self._special_tokens, **values},
            )
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
            # The error may quote the prompt, so only its kind is told.
            raise NotTokenized(Cause.FAILED, f"the template refuses it ({type(error).__name__})") from error
        return _opened(text, final) if continue_final_message else text

    def _marked(self, messages: Sequence[Message]) -> tuple[list[Message], str]:
        """Return the messages with a mark behind the last text, and that text."""
        marked = [*messages[:-1], deepcopy(messages[-1])]
        content = marked[-1].get("content")
        if "content" not in self.source or content is None:
            raise NotTokenized(Cause.FAILED, "there is no content to continue")
        if isinstance(content, str):
            marked[-1]["content"] = content + _TAG
            return marked, content
        for part in reversed(content):
            if "text" in part:
                final: str = part["text"]
                part["text"] = final + _TAG
                return marked, final
        raise NotTokenized(Cause.FAILED, "there is no text to continue")


def _opened(text: str, final: str) -> str:
    """Cut a rendered conversation behind its last message."""
    at = text.rfind(_TAG.strip())
    if at < 0 or final.strip() not in text:
        raise NotTokenized(Cause.FAILED, "the template does not show the message to continue")
    # A template that trims messages has trimmed the blank behind the mark, and those before it are trimmed,
    # too.
    return text[:at] if text.startswith(_TAG, at) else text[:at].rstrip()


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(message: str) -> str:
    raise TemplateError(message)


def _time_now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - the engine's local time, as transformers has it
