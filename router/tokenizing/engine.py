"""Token ids from an engine of the model.

    body ──question──> POST /tokenize ──answer──> ids

vLLM's route renders conversations, too (``entrypoints/serve/tokenize/serving.py``); SGLang's takes texts only
(``entrypoints/openai/protocol.py``), so there conversations keep their text identity. A batch would need a
question for each prompt: it keeps its text identity.
"""

from array import array
from collections.abc import Callable
from typing import Any

import httpx
import msgspec

from router.gateway.endpoints import Endpoint
from router.tokenizing.conversation import NOT_RENDERED_HERE, template_values
from router.tokenizing.refusal import Cause, NotTokenized

_PASSED_ON = ("add_generation_prompt", "continue_final_message", "add_special_tokens", "tools")

_TEXTUAL = frozenset(("text", "refusal", "thinking"))


class _Answer(msgspec.Struct, gc=False):
    tokens: list[int]


_answers = msgspec.json.Decoder(_Answer)


class EngineTokenizer:
    """Asks engines; ``worker_of`` returns the base URL of a healthy worker of a model, None without one."""

    def __init__(self, client: httpx.AsyncClient, worker_of: Callable[[str], str | None]) -> None:
        self._client = client
        self._worker_of = worker_of

    async def asked(self, model: str, question: bytes, timeout_s: float) -> bytes:
        """Ask a worker of a model, with a timeout for each step; raise NotTokenized if none answers."""
        url = self._worker_of(model)
        if url is None:
            raise NotTokenized(Cause.FAILED, "no worker of the model can be asked")
        try:
            answer = await self._client.post(
                f"{url}/tokenize",
                content=question,
                headers={"content-type": "application/json"},
                timeout=timeout_s,
            )
        except httpx.HTTPError as error:
            raise NotTokenized(Cause.FAILED, f"an engine did not answer ({type(error).__name__})") from error
        if answer.status_code != httpx.codes.OK:
            raise NotTokenized(Cause.FAILED, f"an engine answered {answer.status_code}")
        return answer.content


def question_of(endpoint: Endpoint, body: bytes, served: str = "") -> bytes:
    """Return the question for a request's body; raise NotTokenized if its ids cannot be asked for.

    ``served`` is the model that serves it, if that is another one than in the body.
    """
    try:
        fields: dict[str, Any] = msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:
        raise NotTokenized(Cause.UNSUPPORTED, "it is JSON in some way of its own") from error
    for name in (*NOT_RENDERED_HERE, "suffix"):
        if fields.get(name) is not None:
            raise NotTokenized(Cause.UNSUPPORTED, f"it has {name}")
    question: dict[str, Any] = {"model": served or fields.get("model")}
    if endpoint is Endpoint.COMPLETIONS:
        prompt = fields.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1:
            (prompt,) = prompt
        if not isinstance(prompt, str):
            raise NotTokenized(Cause.UNSUPPORTED, "it has not one text as its prompt")
        question["prompt"] = prompt
        if "add_special_tokens" in fields:
            question["add_special_tokens"] = fields["add_special_tokens"]
        return msgspec.json.encode(question)
    messages = fields.get("messages")
    if not isinstance(messages, list):
        raise NotTokenized(Cause.UNSUPPORTED, "it has no list of messages")
    question["messages"] = [_message(message) for message in messages]
    question.update((name, fields[name]) for name in _PASSED_ON if fields.get(name) is not None)
    values = template_values(fields)
    if fields.get("documents") is not None:
        values["documents"] = fields["documents"]
    if values:
        question["chat_template_kwargs"] = values
    return msgspec.json.encode(question)


def answered(answer: bytes) -> list[bytes]:
    """Return the ids of an answer, as 32-bit integers; raise NotTokenized if it has none."""
    try:
        return [array("I", _answers.decode(answer).tokens).tobytes()]
    except (ValueError, OverflowError) as error:
        raise NotTokenized(Cause.FAILED, "an engine's answer makes no sense") from error


def _message(message: Any) -> Any:
    """Rename the fields of a message to those of chat requests."""
    if not isinstance(message, dict):
        return message
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type") not in _TEXTUAL:
            raise NotTokenized(Cause.UNSUPPORTED, "it has content that is no text")
    if "reasoning_content" not in message:
        return message
    message = dict(message)
    reasoning = message.pop("reasoning_content")
    if reasoning is not None and message.get("reasoning") is None:
        message["reasoning"] = reasoning
    return message
