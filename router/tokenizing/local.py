"""Token ids made here, with a model's own tokenizer and chat template.

    body ──decode──> fields ──chat: `conversation_of`, `ChatTemplate`──> text ──`SegmentTokenizer`──> ids
                       └── completions: its prompts ────────────────────┘

The extra ``cacheway[tokenizers]`` renders and tokenizes.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import TemplateError

from router.gateway.endpoints import Endpoint
from router.tokenizing.chat_template import ChatTemplate
from router.tokenizing.conversation import NOT_RENDERED_HERE, conversation_of
from router.tokenizing.lru import Remembered
from router.tokenizing.refusal import Cause, NotTokenized
from router.tokenizing.segments import SegmentTokenizer
from router.tokenizing.tokenizer_files import UnusableTokenizer, read_tokenizer

RENDERED = frozenset((Endpoint.CHAT, Endpoint.COMPLETIONS))
"""Endpoints whose prompts can be known. Embedded prompts follow rules of their models; each engine turns
prompts of the Responses API and Anthropic's into conversations in its own way."""


class LocalTokenizer:
    """Tokenizer of one folder, or of its ``tokenizer.json``; several threads may use it.

    ``remembered`` holds packed ids by the hash of a text, shared with others. Raise UnusableTokenizer if
    needed.
    """

    def __init__(self, path: Path, remembered: Remembered[bytes, bytes]) -> None:
        files = read_tokenizer(path)
        try:
            self._templates = {
                name: ChatTemplate(source, files.special_tokens) for name, source in files.templates.items()
            }
        except TemplateError as error:
            raise UnusableTokenizer(f"the chat template of {path} is none: {error}") from error
        added = [token.content for token in files.tokenizer.get_added_tokens_decoder().values()]
        shown = [text for text in added if any(text in source for source in files.templates.values())]
        self.texts = SegmentTokenizer(files.tokenizer, (*shown, *files.special_tokens.values()), remembered)
        self._tells_time = any(template.tells_time for template in self._templates.values())

    def variant(self) -> str:
        """Key of a rendering beside its body: the day, if the template prints it."""
        return date.today().isoformat() if self._tells_time else ""  # noqa: DTZ011 - as `strftime_now`

    def packed(self, endpoint: Endpoint, body: bytes) -> list[bytes]:
        """Return the ids of a body's prompts, as 32-bit integers; raise NotTokenized if it fails."""
        try:
            # Exact, as engines decode it: whole numbers of any size stay as they are.
            fields: dict[str, Any] = msgspec.json.decode(body)
        except (ValueError, RecursionError) as error:
            raise NotTokenized(Cause.UNSUPPORTED, "it is JSON in some way of its own") from error
        if endpoint is Endpoint.CHAT:
            text = self._rendered(fields)
            return [self.texts.packed(text, add_special_tokens=fields.get("add_special_tokens") is True)]
        for name in NOT_RENDERED_HERE:
            if fields.get(name) is not None:
                raise NotTokenized(Cause.UNSUPPORTED, f"it has {name}")
        if fields.get("suffix") is not None:
            raise NotTokenized(Cause.UNSUPPORTED, "it has a suffix")
        opened = fields.get("add_special_tokens", True) is not False
        return [self.texts.packed(text, add_special_tokens=opened) for text in _texts(fields.get("prompt"))]

    def _rendered(self, fields: Mapping[str, Any]) -> str:
        name = "tool_use" if fields.get("tools") and "tool_use" in self._templates else "default"
        template = self._templates.get(name)
        if template is None:
            raise NotTokenized(Cause.UNSUPPORTED, "the tokenizer's folder has no chat template")
        chat = conversation_of(fields, template)
        return template.render(
            chat.messages,
            chat.tools,
            chat.documents,
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=chat.continue_final_message,
            values=chat.values,
        )


def _texts(prompt: Any) -> Sequence[str]:
    """Return the prompts of a completion if all of them are texts."""
    prompts: Iterable[Any] = (
        [prompt] if isinstance(prompt, str) else prompt if isinstance(prompt, list) else []
    )
    texts = [each for each in prompts if isinstance(each, str)]
    if not texts or len(texts) != len(list(prompts)):
        raise NotTokenized(Cause.UNSUPPORTED, "its prompts are no texts")
    return texts
