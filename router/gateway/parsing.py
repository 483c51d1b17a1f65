"""Parses the body of a request into the facts that a decision needs.

One typed msgspec pass decodes the fields that are read: large ones once, all others are skipped. Tools and
fields that only separate identities stay raw. A body that does not fit the types is decoded again
generically; then

* not JSON, not an object, no model where one is needed, a scalar of the wrong type, a number or name that
  nothing could serve (`radix.bounds`): `ClientError`;
* anything else passes, since the engine may accept it: known parts of the prompt keep their identity, the
  rest counts as a hash, and without a prompt there is no path.

Scalars are read as leniently as engines read them (``"128"`` is 128, ``null`` is absent).
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
from msgspec.structs import astuple

from policies import Attempt, Slots
from radix import BLOCK_BYTES, BLOCK_TOKENS, chain_prompt
from router.errors import ClientError, RouterError
from router.gateway.bodies import (
    ABSENT,
    BESIDE_IDS,
    READERS,
    SCOPE,
    SCOPE_FIELDS,
    UNFIT,
    ChatBody,
    CompletionBody,
    GenerateBody,
    PassedThroughBody,
    ResponsesBody,
    Scalars,
    check_names,
    decode_leniently,
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
from router.gateway.endpoints import Endpoint
from router.gateway.identity import Identity, Prompt, PromptHasher
from router.gateway.long_string import LONG_BYTES_MIN, cut, put_back
from router.gateway.salting import hashed_salt, seen_salt
from router.offsets import Edit
from router.proxy import Header
from router.session_fields import NO_FIELD, Hints, hints_in
from router.tenant import ANONYMOUS, Tenant

_EMPTY = (b"null", b"[]", b"{}", b'""')
"""Values of unused fields."""

Rename = Callable[[str], str]
"""Maps the model that a client asks for, not empty, to the one that serves it (`router.models`)."""


class ModelChoice(Protocol):
    """A decision on a request's model, or on who may serve it, before its worker (`router.models`)."""

    def among(self, slots: Slots) -> Slots:
        """Return the slots that should serve it; never none of some. Called for each decision."""

    def missing(self) -> RouterError | None:
        """Return the error if no worker serves it; None: the usual one."""

    def told(self) -> dict[str, str]:
        """Return it for logs and views."""

    def ended(self, attempt: Attempt | None) -> dict[str, str]:
        """Count the request, whose last attempt this was, and return the same."""


class ParsedRequest(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The facts that a decision needs; a frozen dataclass of this size would cost 1.3 us more to make.

    Attributes:
        model: As the client wrote it; None if the body has none and needs none.
        output_tokens_max: The client's limit of output tokens (of each answer), None if absent.
        n: Answers per prompt, >= 1.
        priority: The engine's ``priority`` field, 0 if absent.
        session: A hint which requests belong together; may be empty. First ``prompt_cache_key``, then what
            `router.sessions` chooses among it, headers and ``session_hints``.
        lora: LoRA adapter given beside the model, None if absent.
        paths: Packed block hashes of each prompt (`radix.chain_bytes`); empty bytes for a prompt shorter than
            one block, no paths if the endpoint has no prompt.
        prompt_bytes: Canonical bytes of all prompts; 0 for token ids.
        prompt_token_ids: Token ids of all prompts; 0 for text.
        key: 64-bit hash of all of the prompt, or of its session.
        prefix_key: 64-bit hash of its first block, or of all of it if it is shorter.
        edits: Edits of the body for its workers (`router.gateway.client_fields`).
        ids_root: Root of the prompts' token ids (`PromptHasher.engine_root`), for `router.tokenizing`; None
            if engines see more than ids.
        tokenized_bytes: Canonical bytes of the prompts whose ids were found; otherwise 0.
        computes_all: Engines compute the whole prompt, cached or not, for its log probabilities
            (``skip_reading_prefix_cache`` in vLLM's sampling_params.py, ``logprob_start_len`` in SGLang's
            schedule_policy.py).
        choice: Of its model; None for most requests.
    """

    endpoint: Endpoint
    model: str | None
    stream: bool
    output_tokens_max: int | None
    n: int
    priority: int
    tenant: str
    session: str
    paths: tuple[bytes, ...]
    prompt_bytes: int
    prompt_token_ids: int
    key: int
    prefix_key: int
    service_tier: str = ""
    lora: str | None = None
    edits: tuple[Edit, ...] = ()
    ids_root: int | None = None
    tokenized_bytes: int = 0
    computes_all: bool = False
    choice: ModelChoice | None = None
    session_hints: Hints = ()


class Identifier:
    """Parses and identifies requests of one namespace; one per process.

    Replicas of one namespace compute equal identities. ``block_bytes`` is the block size of text;
    ``cached_as`` maps a request's model to the name that engines cache it under, ``listed_as`` to the name
    that workers list (`router.fleet.Registry.listed_as`). Text gets the root of its token ids, too, if
    ``finds_roots``.
    """

    def __init__(
        self,
        namespace: str,
        *,
        block_tokens: int = BLOCK_TOKENS,
        block_bytes: int = BLOCK_BYTES,
        cached_as: Callable[[str], str] = str,
        listed_as: Callable[[str], str | None] = str,
        handover_allowed: bool = False,
    ) -> None:
        self.hasher = PromptHasher(namespace, block_tokens=block_tokens, block_bytes=block_bytes)
        self._cached_as = cached_as
        self.listed_as = listed_as
        self.handover_allowed = handover_allowed
        self.finds_roots = False

    def parse(
        self,
        endpoint: Endpoint,
        body: bytes,
        tenant: Tenant = ANONYMOUS,
        _headers: Sequence[Header] = (),
        rename: Rename | None = None,
        *,
        whole: bool = False,
    ) -> ParsedRequest:
        """Parse a body and identify its prompts; only a reader that renames models needs the headers.

        Text of another tenant's namespace is never matched, nor token ids of another salt. Only what is a
        plain conversation may be decoded without its longest string, so the rest is decoded ``whole``. Raises
        `ClientError` with code ``invalid_json``, ``not_an_object``, ``missing_model`` or ``invalid_value``.
        """
        try:
            decode, read_rare, without_rare = READERS[endpoint]
            skeleton = body
            text: bytes | memoryview = b""
            if len(body) > LONG_BYTES_MIN and not (
                whole or rename or tenant.salt or self.finds_roots or without_rare is None
            ):
                skeleton, text = cut(body)
            try:
                fields = decode(skeleton)
            except UNFIT as unfit:
                if text:
                    return self.parse(endpoint, body, tenant, (), rename, whole=True)
                fields = decode_leniently(endpoint, body, unfit, handover_allowed=self.handover_allowed)
            name = fields.model
            if (
                name
                and read_rare(fields) == without_rare
                and rename is None
                and not (tenant.salt or self.finds_roots)
                and self.listed_as(name) == name
                and (stream := self.conversation(fields))
                and (prompt := put_back(stream, text) if text else b"".join(stream))
            ):
                root = self.hasher.root((b"chat", tenant.namespace, name.encode(), b""))
                path, key, first = chain_prompt(prompt, root, self.hasher.block_bytes)
                return parsed_request(
                    endpoint, fields, tenant.name, name, (path,), len(prompt), 0, key, first
                )
            if text:
                return self.parse(endpoint, body, tenant, (), rename, whole=True)
            return self._parse_with_options(endpoint, fields, body, tenant, rename)
        except (ValueError, RecursionError) as error:
            raise invalid_json(error) from error

    def _parse_with_options(
        self, endpoint: Endpoint, fields: Scalars, body: bytes, tenant: Tenant, rename: Rename | None
    ) -> ParsedRequest:
        """Do the rest of `parse` for all that is more than a conversation."""
        renamed = rename is not None and use_name(fields, rename)
        listed = self.listed_as(fields.model or "")
        scope = self.scope(endpoint, fields, tenant, listed)
        ids_root = None
        if type(fields) is PassedThroughBody:
            key = self.hasher.body_key(scope, body)
            identity = Identity((), 0, 0, key, key)
        else:
            prompts = self.prompts(fields)
            if self.finds_roots or list in map(type, prompts):
                ids_root = self.ids_root(endpoint, fields, tenant)
            identity = self.hasher.identify(scope, prompts, ids_root)
        edits = edits_of(endpoint, fields, body, tenant, renamed=renamed)
        ids_root = ids_root if self.finds_roots else None
        return with_options(endpoint, fields, tenant.name, listed or None, identity, edits, ids_root)

    def scope(
        self, endpoint: Endpoint, fields: Scalars, tenant: Tenant, listed: str | None, digest: Digest = opaque
    ) -> tuple[bytes, ...]:
        """Return the values that must be equal before blocks may be compared; ``listed`` is of `listed_as`.

        Raises `ClientError` without a model where one is needed, `ValueError` if a field is not JSON after
        all.
        """
        name = fields.model or ""
        if listed != name:
            if listed is not None and not name.startswith(f"{listed}:"):  # an adapter's cache is apart
                name = listed
        elif not name and endpoint.needs_model:
            raise ClientError("The request names no model.", code="missing_model", param="model")
        # Strictly, unlike all text: the name goes into the log, which takes no lone surrogates.
        salt = fields.cache_salt
        scope = (
            tenant.namespace,
            name.encode(),
            hashed_salt(tenant, salt).encode() if isinstance(salt, str) else b"",
        )
        read, without = SCOPE[type(fields)]
        if read(fields) == without:
            return scope
        more: list[bytes] = []
        for name in SCOPE_FIELDS[type(fields)]:
            raw = getattr(fields, name)
            if raw is not ABSENT and (canonical := self.hasher.canonical(raw)) not in _EMPTY:
                more += (name.encode(), digest(canonical))
                if name == "extra_key" and not tenant.salt:  # the key is hashed with the tenant's name
                    more.append(tenant.name.encode())
        return (*scope, *more)

    def ids_root(self, endpoint: Endpoint, fields: Scalars, tenant: Tenant) -> int | None:
        """Return the root of the token ids; None if engines see more than ids (media, embeddings)."""
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
        """Return the prompts of a body."""
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
        """Return the canonical stream of a conversation, in pieces."""
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
        canonical = self.hasher.canonical(raw)
        return [] if canonical in _EMPTY else [TOOLS, canonical]


def use_name(fields: Scalars, rename: Rename) -> bool:
    """Replace the model of a decoded body by the one that serves it; return True if that is another one."""
    asked = fields.model
    if asked:
        fields.model = rename(asked)
        check_names(model=fields.model)
    return fields.model != asked


def parsed_request(
    endpoint: Endpoint,
    fields: Any,
    tenant: str,
    model: str | None,
    paths: tuple[bytes, ...],
    prompt_bytes: int,
    prompt_token_ids: int,
    key: int,
    prefix_key: int,
) -> ParsedRequest:
    """Put the facts of a plain request together; ``model`` is the name that workers list."""
    limit, n = fields.max_completion_tokens, fields.n
    if limit is None:
        limit = fields.max_tokens
        if limit is None:
            limit = fields.max_output_tokens
    return ParsedRequest(
        endpoint,
        model,
        fields.stream is True,
        limit if limit is None or limit >= 0 else None,
        1 if n is None or n < 1 else n,
        fields.priority or 0,
        tenant,
        fields.prompt_cache_key or "",
        paths,
        prompt_bytes,
        prompt_token_ids,
        key,
        prefix_key,
        fields.service_tier or "",
    )


def with_options(
    endpoint: Endpoint,
    fields: Any,
    tenant: str,
    model: str | None,
    identity: Identity,
    edits: tuple[Edit, ...],
    ids_root: int | None,
) -> ParsedRequest:
    """Put the facts of any request together, and SGLang's limits where those of others are."""
    if type(fields) is GenerateBody and (params := fields.sampling_params):
        # A batch may bring one set for each prompt.
        each = params if isinstance(params, list) else [params]
        limits = [one.max_new_tokens for one in each if one.max_new_tokens is not None]
        fields.max_completion_tokens = max(limits, default=fields.max_completion_tokens)
        fields.n = max([one.n for one in each if one.n is not None], default=fields.n)
    raw = getattr(fields, "lora_path", ABSENT)
    lora = None if raw is ABSENT else _first_text(raw)
    if lora:
        check_names(lora_path=lora)
    unnamed = fields.session_id is fields.metadata is fields.user is fields.safety_identifier is NO_FIELD
    hints = () if unnamed else hints_in(fields)
    return msgspec.structs.replace(
        parsed_request(endpoint, fields, tenant, model, *astuple(identity)),
        lora=lora,
        edits=edits,
        ids_root=ids_root,
        computes_all=_computes_all(endpoint, fields),
        session_hints=hints,
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
    """Append Anthropic's system prompt, without the block that differs in every request."""
    if isinstance(system, list):
        system = [part for part in system if not (part.text or "").startswith(BILLING_HEADER)]
    stream += (TURN, b"system")
    append_content(stream, system)


def _split(prompt: Any) -> Sequence[Prompt]:
    if isinstance(prompt, str | bytes):
        return (prompt,)
    if not prompt:
        return ()
    # Numbers among texts are no batch that an engine takes: together they count as one prompt.
    return (prompt,) if int in map(type, prompt) else prompt


def _first_text(raw: msgspec.Raw) -> str | None:
    """Return the first adapter of ``lora_path``: a string, or one for each prompt of a batch."""
    if raw is ABSENT:
        return None
    value = loads(memoryview(raw))
    if isinstance(value, list):
        value = next(iter(value), None)
    return value if isinstance(value, str) else None


def invalid_json(error: Exception) -> ClientError:
    """Return the error for a body that could not be decoded."""
    if isinstance(error, RecursionError):
        return ClientError("The body is nested too deeply.", code="invalid_json")
    return ClientError(f"The body is not valid JSON: {error}", code="invalid_json")
