"""From the bytes of a request to what a decision needs.

One typed msgspec pass decodes the fields that are looked at: large ones once, all others are
skipped. Tools and fields that only separate identities stay raw. A body that does not fit the
types is decoded again generically; then

* not JSON, not an object, no model where one is needed, a scalar of the wrong type: `ClientError`;
* a number or a name that nothing could serve (`radix.bounds`): `ClientError`, too;
* anything else is let through, since the engine may accept it: what we know of the prompt keeps its
  identity, the rest counts as a hash, and if the prompt is not to be found there is no path.

Scalars are read as leniently as engines read them (``"128"`` is 128, ``null`` is absent).
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from radix import ANSWERS_MAX, BLOCK_BYTES, BLOCK_TOKENS, COUNT_MAX, NAME_CHARS_MAX, WHOLE_MAX
from router.errors import ClientError
from router.gateway.bodies import (
    ABSENT,
    BESIDE_IDS,
    SCOPE_FIELDS,
    ChatBody,
    CompletionBody,
    GenerateBody,
    PassedThroughBody,
    ResponsesBody,
    Scalars,
    decode,
    has_scope_fields,
)
from router.gateway.client_fields import edits_of
from router.gateway.conversation import (
    BILLING_HEADER,
    TOOLS,
    TURN,
    Digest,
    Part,
    Turn,
    append_content,
    append_turns,
    loads,
    opaque,
)
from router.gateway.edits import Edit
from router.gateway.endpoints import Endpoint
from router.gateway.identity import Identity, Prompt, PromptHasher
from router.gateway.salting import hashed_salt, seen_salt
from router.tenants import ANONYMOUS, Tenant

_EMPTY = (b"null", b"[]", b"{}", b'""')
"""What clients send for a field that they do not use."""


class ParsedRequest(msgspec.Struct, frozen=True, gc=False):
    """What a decision needs to know of a request.

    Attributes:
        endpoint: Where it was sent.
        model: Model, as the client wrote it; None if the body has none and needs none.
        stream: Whether the answer is a stream.
        output_tokens_max: The client's limit of output tokens (of each answer), None if absent.
        n: Answers per prompt, >= 1.
        include_usage: Whether the client asked for usage in the stream.
        priority: The engine's ``priority`` field, 0 if absent.
        tenant: Name of its tenant, empty for nobody in particular.
        session: ``prompt_cache_key``, a hint which requests belong together; may be empty.
        lora: LoRA adapter given beside the model, None if absent.
        paths: Packed block hashes of each prompt (`radix.chain_bytes`); empty bytes for a prompt
            shorter than one block, no paths if the endpoint has no prompt.
        prompt_bytes: Canonical bytes of all prompts; 0 for token ids.
        prompt_token_ids: Token ids of all prompts; 0 for text.
        key: 64-bit hash of all of the prompt.
        prefix_key: 64-bit hash of its first block, or of all of it if it is shorter.
        service_tier: OpenAI's field, empty if absent.
        edits: What of the body its workers get otherwise (`router.gateway.client_fields`).
        ids_root: Root of the prompts' token ids (`PromptHasher.engine_root`), where they may be found out
            (`router.tokenizing`); None if engines see more than ids.
        tokenized_bytes: Canonical bytes of the prompts whose ids were found out; 0 if they were not.
        computes_all: Whether engines compute the whole prompt, whatever they have cached of it, since its log
            probabilities are asked for (``skip_reading_prefix_cache`` in vLLM's sampling_params.py,
            ``logprob_start_len`` in SGLang's schedule_policy.py).

    A struct, since making a frozen dataclass of this size costs 1.3 us more, an eighth of a short parse.
    """

    endpoint: Endpoint
    model: str | None
    stream: bool
    output_tokens_max: int | None
    n: int
    include_usage: bool
    priority: int
    tenant: str
    session: str
    lora: str | None
    paths: tuple[bytes, ...]
    prompt_bytes: int
    prompt_token_ids: int
    key: int
    prefix_key: int
    service_tier: str = ""
    edits: tuple[Edit, ...] = ()
    ids_root: int | None = None
    tokenized_bytes: int = 0
    computes_all: bool = False


class Identifier:
    """Parses and identifies requests of one namespace; one per process.

    Args:
        namespace: Replicas of one namespace compute equal identities.
        block_tokens: Block size of token ids.
        block_bytes: Block size of text, bytes.
        cached_as: Under which name engines cache what a request calls a model.
        handover_allowed: Whether clients may say how engines hand over KV.

    Attributes:
        handover_allowed: As given.
        finds_roots: Whether text gets the root that its token ids would have, too.
    """

    def __init__(
        self,
        namespace: str,
        *,
        block_tokens: int = BLOCK_TOKENS,
        block_bytes: int = BLOCK_BYTES,
        cached_as: Callable[[str], str] = str,
        handover_allowed: bool = False,
    ) -> None:
        self.hasher = PromptHasher(namespace, block_tokens=block_tokens, block_bytes=block_bytes)
        self._cached_as = cached_as
        self.handover_allowed = handover_allowed
        self.finds_roots = False

    def parse(self, endpoint: Endpoint, body: bytes, *, tenant: Tenant = ANONYMOUS) -> ParsedRequest:
        """Parse a body and identify its prompts.

        Args:
            endpoint: Where it was sent.
            body: The whole body.
            tenant: Whose it is. Text of another namespace is never matched, token ids of another salt.

        Raises:
            ClientError: With code ``invalid_json``, ``not_an_object``, ``missing_model`` or
                ``invalid_value``.
        """
        try:
            fields = decode(endpoint, body, handover_allowed=self.handover_allowed)
            scope = self.scope(endpoint, fields, tenant)
            ids_root = None
            if type(fields) is PassedThroughBody:
                key = self.hasher.body_key(scope, body)
                identity = Identity((), 0, 0, key, key)
            else:
                prompts = self.prompts(fields)
                if self.finds_roots or list in map(type, prompts):
                    ids_root = self.ids_root(endpoint, fields, tenant)
                identity = self.hasher.identify(scope, prompts, ids_root)
            edits = edits_of(endpoint, fields, body, tenant)
            known = ids_root if self.finds_roots else None
            return parsed_request(endpoint, fields, tenant, identity, edits, known)
        except (ValueError, RecursionError) as error:
            raise invalid_json(error) from error

    def scope(
        self, endpoint: Endpoint, fields: Scalars, tenant: Tenant, digest: Digest = opaque
    ) -> tuple[bytes, ...]:
        """What must be equal before blocks may be compared.

        Raises:
            ClientError: If it names no model where one is needed.
            ValueError: If a field is not JSON after all.
        """
        if not fields.model and endpoint.needs_model:
            raise ClientError("The request names no model.", code="missing_model", param="model")
        # Strictly, unlike all text: the name goes into the log, which takes no lone surrogates.
        salt = fields.cache_salt
        scope = (
            tenant.namespace,
            (fields.model or "").encode(),
            hashed_salt(tenant, salt).encode() if isinstance(salt, str) else b"",
        )
        if not has_scope_fields(fields):
            return scope
        more: list[bytes] = []
        for name in SCOPE_FIELDS[type(fields)]:
            raw = getattr(fields, name)
            if raw is not ABSENT and (canonical := self.hasher.canonical(raw)) not in _EMPTY:
                more += (name.encode(), digest(canonical))
                if name == "extra_key" and not tenant.salt:  # it is hashed with the name
                    more.append(tenant.name.encode())
        return (*scope, *more)

    def ids_root(self, endpoint: Endpoint, fields: Scalars, tenant: Tenant) -> int | None:
        """The root of a request's token ids; None if engines do not see the ids alone (media, embeddings).

        Args:
            endpoint: Where it was sent.
            fields: What was decoded from its body.
            tenant: Whose it is.

        Raises:
            ValueError: If a field is not JSON after all.
        """
        for name in BESIDE_IDS[type(fields)]:
            if (
                getattr(fields, name) is not ABSENT
                and self.hasher.canonical(getattr(fields, name)) not in _EMPTY
            ):
                return None
        seen = seen_salt(endpoint, fields, tenant)
        if seen is None:
            return None
        adapter = _first_text(getattr(fields, "lora_path", ABSENT))
        return self.hasher.engine_root(adapter or self._cached_as(fields.model or ""), seen)

    def prompts(self, fields: Any) -> Sequence[Prompt]:
        """The prompts of a body."""
        match fields:
            case ChatBody() | ResponsesBody():
                stream = self.conversation(fields)
                return (b"".join(stream),) if stream else ()
            case CompletionBody(prompt=prompt, input=None):
                return _split(prompt)
            case CompletionBody(input=prompt):
                return _split(prompt)
            case GenerateBody(text=text, input_ids=input_ids):
                return _split(text if input_ids is None else input_ids)
        return ()

    def conversation(self, fields: ChatBody | ResponsesBody) -> list[bytes]:
        """The canonical stream of a conversation, in pieces."""
        stream: list[bytes] = []
        if fields.tools is not ABSENT:
            stream += self._tools(fields.tools)
        if isinstance(fields, ChatBody):
            if fields.functions is not ABSENT:
                stream += self._tools(fields.functions)
            if fields.system:
                _append_system(stream, fields.system)
            if fields.messages:
                append_turns(stream, fields.messages)
            return stream
        instructions, items = fields.instructions, fields.input
        if isinstance(instructions, str):
            instructions = [Turn(role="system", content=instructions)] if instructions else []
        if isinstance(items, str):
            items = [Turn(role="user", content=items)]
        append_turns(stream, instructions or ())
        append_turns(stream, items or ())
        return stream

    def _tools(self, raw: msgspec.Raw) -> list[bytes]:
        if raw is ABSENT or (canonical := self.hasher.canonical(raw)) in _EMPTY:
            return []
        return [TOOLS, canonical]


def parsed_request(
    endpoint: Endpoint,
    fields: Any,
    tenant: Tenant,
    identity: Identity,
    edits: tuple[Edit, ...],
    ids_root: int | None,
) -> ParsedRequest:
    """Put together what a decision needs."""
    output_tokens_max, n = _limits(fields)
    model, session = fields.model or None, fields.prompt_cache_key or ""
    lora, tier = _first_text(getattr(fields, "lora_path", ABSENT)), fields.service_tier or ""
    names = f"{model or ''}{session}{lora or ''}{tier}"
    if len(names) > NAME_CHARS_MAX or not names.isascii():
        _check_names(model=model, prompt_cache_key=session, lora_path=lora, service_tier=tier)
    priority = fields.priority or 0
    if not -WHOLE_MAX <= priority <= WHOLE_MAX:
        raise _too_many("priority", WHOLE_MAX)
    options = fields.stream_options
    return ParsedRequest(
        endpoint,
        model,
        bool(fields.stream),
        output_tokens_max,
        n,
        options is not None and bool(options.include_usage),
        priority,
        tenant.name,
        session,
        lora,
        identity.paths,
        identity.prompt_bytes,
        identity.prompt_token_ids,
        identity.key,
        identity.prefix_key,
        tier,
        edits,
        ids_root,
        0,
        _computes_all(endpoint, fields),
    )


def _computes_all(endpoint: Endpoint, fields: Any) -> bool:
    if fields.prompt_logprobs is not None:
        return True
    if fields.echo:
        return endpoint is Endpoint.CHAT or fields.logprobs is not None
    start = fields.logprob_start_len
    if start is None or endpoint is not Endpoint.GENERATE:
        return False
    return any(
        isinstance(each, int) and each >= 0 for each in (start if isinstance(start, list) else (start,))
    )


def _append_system(stream: list[bytes], system: str | list[Part]) -> None:
    """The system prompt of Anthropic, without the block that differs in every request."""
    if isinstance(system, list):
        system = [part for part in system if not (part.text or "").startswith(BILLING_HEADER)]
    stream += (TURN, b"system")
    append_content(stream, system)


def _split(prompt: Any) -> Sequence[Prompt]:
    """One prompt, or the prompts of a batch."""
    if isinstance(prompt, str | bytes):
        return (prompt,)
    if not prompt:
        return ()
    # Numbers among texts are no batch that an engine takes: together they count as one prompt.
    return (prompt,) if int in map(type, prompt) else prompt


def _check_names(**names: str | None) -> None:
    """Refuse names that are too long, or have lone surrogates.

    Raises:
        ClientError: One of them is not a name.
    """
    for param, name in names.items():
        if name and (len(name) > NAME_CHARS_MAX or not _can_be_written(name)):
            raise ClientError(
                f"{param} must have at most {NAME_CHARS_MAX} characters, all of them valid Unicode.",
                code="invalid_value",
                param=param,
            )


def _can_be_written(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _too_many(param: str, most: int) -> ClientError:
    return ClientError(f"{param} must be at most {most}.", code="invalid_value", param=param)


def _limits(fields: Any) -> tuple[int | None, int]:
    """Output tokens at most (None if unknown), and answers per prompt.

    Raises:
        ClientError: If one of them is more than anything could serve.
    """
    limit, total, output = fields.max_completion_tokens, fields.max_tokens, fields.max_output_tokens
    if max(limit or 0, total or 0, output or 0) > COUNT_MAX:
        raise _too_many("max_tokens", COUNT_MAX)
    if limit is None:
        limit = output if total is None else total
    n = fields.n
    if n is not None and n > ANSWERS_MAX:
        raise _too_many("n", ANSWERS_MAX)
    if type(fields) is GenerateBody and fields.sampling_params:
        params = fields.sampling_params
        # A batch may bring one set for each prompt.
        each = params if isinstance(params, list) else [params]
        limit = max((one.max_new_tokens for one in each if one.max_new_tokens is not None), default=limit)
        n = max((one.n for one in each if one.n is not None), default=n)
        if limit is not None and limit > COUNT_MAX:
            raise _too_many("max_new_tokens", COUNT_MAX)
        if n is not None and n > ANSWERS_MAX:
            raise _too_many("n", ANSWERS_MAX)
    return (limit if limit is not None and limit >= 0 else None), max(n or 1, 1)


def _first_text(raw: msgspec.Raw) -> str | None:
    """The first adapter of ``lora_path``: a string, or one for each prompt of a batch."""
    if raw is ABSENT:
        return None
    value = loads(memoryview(raw))
    if isinstance(value, list):
        value = next(iter(value), None)
    return value if isinstance(value, str) else None


def invalid_json(error: Exception) -> ClientError:
    """What the client is told of a body that could not be decoded."""
    if isinstance(error, RecursionError):
        return ClientError("The body is nested too deeply.", code="invalid_json")
    return ClientError(f"The body is not valid JSON: {error}", code="invalid_json")
