"""Request bodies as msgspec structs: the fields that are read, for each endpoint.

Large fields that are only compared stay raw, all others are skipped in the same pass. A body that does not
fit these types is decoded generically and brought into shape; see `router.gateway.parsing`. Bounds of numbers
and names are part of the types.

Fields by which engines hand over KV fit only if they are null (`HandoverFields`): so a body with one, however
it is written, does not fit, and is refused.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from radix import ANSWERS_MAX, COUNT_MAX, NAME_CHARS_MAX, WHOLE_MAX, Name
from router.errors import ClientError
from router.gateway.conversation import (
    OPAQUE,
    Digest,
    Part,
    Turn,
    canonical_json,
    content_from,
    loads,
    opaque,
    turns_from,
)
from router.gateway.edits import decodable, members
from router.gateway.endpoints import PASSED_THROUGH, Endpoint
from router.session_fields import SessionFields

ABSENT = msgspec.Raw()
"""Value of a raw field that the body does not have."""

BOM = b"\xef\xbb\xbf"

Tokens = Annotated[int, Meta(le=COUNT_MAX)]
"""A limit of output tokens; below 0, engines take it for none."""

Answers = Annotated[int, Meta(le=ANSWERS_MAX)]

TokenIdsOrTexts = str | list[str | int | list[int]]


class StreamOptions(msgspec.Struct, gc=False):
    """``stream_options``; its type is checked."""

    include_usage: bool | None = None


class SamplingParams(msgspec.Struct, gc=False):
    """``sampling_params`` of /generate."""

    max_new_tokens: Tokens | None = None
    n: Answers | None = None


class ExtraArguments(msgspec.Struct, gc=False):
    """``vllm_xargs``, which vLLM merges with its transfer parameters (``SamplingParams.extra_args``)."""

    kv_transfer_params: None = None
    ec_transfer_params: None = None


class HandoverFields(SessionFields, gc=False):
    """Fields that tell an engine whose KV or media to fetch, where to send its own, and where to compute.

    The first two are vLLM's (``entrypoints/openai/*/protocol.py``), the others SGLang's (``GenerateReqInput``
    in ``managers/io_struct.py``). With them a client could fetch the blocks of others, pin blocks, make an
    engine connect to any host, or read another session.
    """

    kv_transfer_params: None = None
    ec_transfer_params: None = None
    bootstrap_host: None = None
    bootstrap_port: None = None
    bootstrap_room: None = None
    bootstrap_pair_key: None = None
    decode_tp_size: None = None
    routed_dp_rank: None = None
    data_parallel_rank: None = None
    disagg_prefill_dp_rank: None = None
    kv_router_hint: None = None
    http_worker_ipc: None = None
    encoder_urls: None = None
    num_items_assigned: None = None
    need_wait_for_mm_inputs: None = None
    session_params: None = None
    vllm_xargs: ExtraArguments | None = None


HANDOVER_FIELDS = frozenset(HandoverFields.__annotations__) - {"vllm_xargs"}

_handover_fields = msgspec.json.Decoder(
    msgspec.defstruct("_Handover", [(name, None, None) for name in sorted(HANDOVER_FIELDS)], gc=False)
).decode
_extra_arguments = msgspec.json.Decoder(ExtraArguments).decode


class Scalars(HandoverFields, gc=False):
    """Fields of all endpoints that must have their type; the last two are taken out (`client_fields`)."""

    model: Name | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    max_output_tokens: Tokens | None = None
    n: Answers | None = None
    priority: Annotated[int, Meta(ge=-WHOLE_MAX, le=WHOLE_MAX)] | None = None
    service_tier: Name | None = None
    cache_salt: str | msgspec.UnsetType | None = msgspec.UNSET
    prompt_cache_key: Name | None = None
    echo: Any = None
    logprobs: Any = None
    prompt_logprobs: Any = None
    logprob_start_len: Any = None
    rid: msgspec.Raw = ABSENT
    request_id: msgspec.Raw = ABSENT


class Body(Scalars, gc=False):
    """Fields that change the start of the rendered prompt, or that limit sharing."""

    lora_path: msgspec.Raw = ABSENT
    extra_key: msgspec.Raw = ABSENT
    mm_processor_kwargs: msgspec.Raw = ABSENT


class PassedThroughBody(Scalars, gc=False):
    """Endpoints without a prompt that a worker would cache."""


class CompletionBody(Body, gc=False):
    """/v1/completions and /v1/embeddings."""

    prompt: TokenIdsOrTexts | None = None
    input: TokenIdsOrTexts | None = None
    add_special_tokens: msgspec.Raw = ABSENT
    prompt_embeds: msgspec.Raw = ABSENT


class GenerateBody(Body, gc=False):
    """SGLang's /generate."""

    text: str | list[str] | None = None
    input_ids: TokenIdsOrTexts | None = None
    sampling_params: SamplingParams | list[SamplingParams] | None = None
    image_data: msgspec.Raw = ABSENT
    video_data: msgspec.Raw = ABSENT
    audio_data: msgspec.Raw = ABSENT
    input_embeds: msgspec.Raw = ABSENT


class ChatBody(Body, gc=False):
    """/v1/chat/completions and /v1/messages."""

    messages: list[Turn] | None = None
    system: str | list[Part] | None = None
    tools: msgspec.Raw = ABSENT
    functions: msgspec.Raw = ABSENT
    chat_template: msgspec.Raw = ABSENT
    chat_template_kwargs: msgspec.Raw = ABSENT
    documents: msgspec.Raw = ABSENT
    reasoning_effort: msgspec.Raw = ABSENT
    output_config: msgspec.Raw = ABSENT


class ResponsesBody(Body, gc=False):
    """/v1/responses."""

    instructions: str | list[Turn] | None = None
    input: str | list[Turn] | None = None
    tools: msgspec.Raw = ABSENT
    reasoning: msgspec.Raw = ABSENT
    previous_response_id: msgspec.Raw = ABSENT
    conversation: msgspec.Raw = ABSENT
    chat_template_kwargs: msgspec.Raw = ABSENT


_TYPES: dict[Endpoint, type[Scalars]] = {
    Endpoint.CHAT: ChatBody,
    Endpoint.MESSAGES: ChatBody,
    Endpoint.INVOCATIONS: ChatBody,
    Endpoint.RESPONSES: ResponsesBody,
    Endpoint.COMPLETIONS: CompletionBody,
    Endpoint.EMBEDDINGS: CompletionBody,
    Endpoint.GENERATE: GenerateBody,
    **dict.fromkeys(PASSED_THROUGH, PassedThroughBody),
}

_DECODERS = {kind: msgspec.json.Decoder(kind).decode for kind in set(_TYPES.values())}

UNFIT = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_MOST = {
    "max_tokens": ("max_tokens", COUNT_MAX),
    "max_completion_tokens": ("max_tokens", COUNT_MAX),
    "max_output_tokens": ("max_tokens", COUNT_MAX),
    "max_new_tokens": ("max_new_tokens", COUNT_MAX),
    "n": ("n", ANSWERS_MAX),
    "priority": ("priority", WHOLE_MAX),
}
"""Bounded numbers: how errors name them, and the most."""

_NAMES = ("model", "prompt_cache_key", "service_tier")

_SCALARS = frozenset(Scalars.__struct_fields__) - {*HandoverFields.__struct_fields__, "rid", "request_id"}

_RAW = {
    kind: tuple(field.name for field in msgspec.structs.fields(kind) if field.type is msgspec.Raw)
    for kind in _DECODERS
}

_NO_SCOPE_FIELDS = ("tools", "functions", "rid", "request_id", *SessionFields.__struct_fields__)

SCOPE_FIELDS = {
    kind: tuple(name for name in _RAW[kind] if name not in _NO_SCOPE_FIELDS) for kind in _DECODERS
}
"""Fields that separate identities, by body."""

_IN_ROOT_OR_IDS = frozenset(
    ("add_special_tokens", "chat_template", "chat_template_kwargs", "documents", "extra_key", "lora_path")
) | {"output_config", "reasoning", "reasoning_effort"}

BESIDE_IDS = {
    kind: tuple(name for name in names if name not in _IN_ROOT_OR_IDS) for kind, names in SCOPE_FIELDS.items()
}
"""Scope fields that add to an engine's prompt beside token ids, by body."""


def _reader(kind: type[Scalars], *names: str) -> tuple[Callable[[Scalars], Any], Any]:
    """Return a reader of some fields, and what it reads from a body without them."""
    read = attrgetter(*names)
    return read, read(kind())


SCOPE = {kind: _reader(kind, *names, "cache_salt") for kind, names in SCOPE_FIELDS.items()}
"""Readers of the fields that separate identities; most bodies have none, which is cheap to find out."""


def _rare(kind: type[Scalars]) -> tuple[Callable[[Scalars], Any], Any]:
    if kind not in (ChatBody, ResponsesBody):
        return attrgetter("model"), None
    names = (*SCOPE_FIELDS[kind], *SessionFields.__struct_fields__, "cache_salt", "rid", "request_id")
    return _reader(kind, *names, "echo", "prompt_logprobs", "logprob_start_len")


READERS: dict[Endpoint, tuple[Callable[[bytes], Any], Callable[[Scalars], Any], Any]] = {
    endpoint: (_DECODERS[kind], *_rare(kind)) for endpoint, kind in _TYPES.items()
}
"""Decoders of bodies that fit, which raise `UNFIT` for others; readers of the fields that few conversations
have, and what they read from one without them (None for other bodies)."""


class Misfit(Exception):
    """A body does not fit the types of its endpoint."""


def decode(
    endpoint: Endpoint,
    body: bytes,
    digest: Digest = opaque,
    *,
    strictly: bool = False,
    handover_allowed: bool = False,
) -> Scalars:
    """Decode a body into the struct of its endpoint.

    ``digest`` hashes unknown shapes; ``handover_allowed`` lets clients set the fields by which engines hand
    over KV.

    Raises:
        Misfit: It does not fit, and has to (``strictly``).
        ClientError: It is no object, a scalar has the wrong type, or a field is forbidden to clients.
        ValueError: It is not JSON.
        RecursionError: It is nested too deeply.
    """
    try:
        return READERS[endpoint][0](body)  # type: ignore[no-any-return]
    except UNFIT as error:
        if strictly:
            raise Misfit from error
        return decode_leniently(endpoint, body, error, digest, handover_allowed=handover_allowed)


def decode_leniently(
    endpoint: Endpoint, body: bytes, unfit: Exception, digest: Digest = opaque, *, handover_allowed: bool
) -> Scalars:
    """Decode a body that is `UNFIT`; raise as `decode` does."""
    _refuse_beyond(unfit)
    kind, value = _TYPES[endpoint], loads(body.removeprefix(BOM))
    if not isinstance(value, dict):
        raise ClientError("The body must be a JSON object.", code="not_an_object")
    if not handover_allowed:
        _refuse_handover(body.removeprefix(BOM))
    scalars = {name: value[name] for name in _SCALARS & value.keys()}
    if kind is GenerateBody:
        # Here the limits are one level down.
        scalars["sampling_params"] = value.get("sampling_params")
    try:
        fields: Any = msgspec.convert(scalars, kind, strict=False)
    except msgspec.ValidationError as error:
        _refuse_beyond(error)
        message, _, path = str(error).partition(" - at `$.")
        raise ClientError(
            f"{path.rstrip('`')}: {message}", code="invalid_value", param=path.rstrip("`") or None
        ) from error
    check_names(prompt_cache_key=fields.prompt_cache_key, service_tier=fields.service_tier)
    for name in _RAW[kind]:
        if name in value:
            setattr(fields, name, msgspec.Raw(canonical_json(value[name])))
    for name, shape in _SHAPES[kind].items():
        setattr(fields, name, shape(value.get(name), digest))
    return fields  # type: ignore[no-any-return]


def _refuse_beyond(error: Exception) -> None:
    """Raise `ClientError` if a body is unfit because of a value beyond its bound."""
    message, _, path = str(error).partition(" - at `$.")
    name = path.rstrip("`").rpartition(".")[2]  # of sampling parameters, too
    if "= " in message and (name in _MOST or name in _NAMES):
        raise (too_many(*_MOST[name]) if name in _MOST else bad_name(name)) from error


def check_names(**names: str | None) -> None:
    """Raise `ClientError` for a name that is too long, or that the log could not take."""
    for param, name in names.items():
        try:
            sound = not name or (len(name) <= NAME_CHARS_MAX and bool(name.encode()))
        except UnicodeEncodeError:  # a lone surrogate
            sound = False
        if not sound:
            raise bad_name(param)


def bad_name(param: str) -> ClientError:
    """Return the error for a name that is too long, or that the log could not take."""
    return ClientError(
        f"{param} must have at most {NAME_CHARS_MAX} characters, all of them valid Unicode.",
        code="invalid_value",
        param=param,
    )


def too_many(param: str, most: int) -> ClientError:
    """Return the error for a number beyond its bound."""
    return ClientError(f"{param} must be at most {most}.", code="invalid_value", param=param)


def _refuse_handover(text: bytes) -> None:
    """Raise `ClientError` for a JSON object with hand-over fields; of a repeated name each member counts."""
    text = decodable(text)
    _check_null(_handover_fields, text, "")
    for member in members(text, "vllm_xargs"):
        _check_null(_extra_arguments, text[member.start : member.end], "vllm_xargs.")


def _check_null(decode: Callable[[bytes], object], text: bytes, within: str) -> None:
    try:
        decode(text)
    except msgspec.ValidationError as error:
        name = str(error).partition(" - at `$.")[2].rstrip("`")
        if name:  # otherwise it is no object
            raise ClientError(
                f"{within}{name} is for this gateway to say to its engines; leave it out. An operator may "
                "allow it to clients (fleet.allow_client_kv_transfer).",
                code="forbidden_field",
                param=f"{within}{name}",
            ) from error


def _prompt_from(value: Any, digest: Digest) -> Any:
    """Return prompts of generically decoded JSON; an unknown shape becomes a hash."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and value:
        if all(type(item) is int for item in value):
            return value
        return [_prompt_item_from(item, digest) for item in value]
    return OPAQUE + digest(canonical_json(value))


def _prompt_item_from(value: Any, digest: Digest) -> Any:
    if isinstance(value, str) or (isinstance(value, list) and all(type(item) is int for item in value)):
        return value
    return OPAQUE + digest(canonical_json(value))


def _input_from(value: Any, digest: Digest) -> Any:
    return value if isinstance(value, str) else turns_from(value, digest)


_SHAPES: dict[type[Scalars], dict[str, Callable[[Any, Digest], Any]]] = {
    ChatBody: {"messages": turns_from, "system": content_from},
    ResponsesBody: {"instructions": _input_from, "input": _input_from},
    CompletionBody: {"prompt": _prompt_from, "input": _prompt_from},
    GenerateBody: {"text": _prompt_from, "input_ids": _prompt_from},
    PassedThroughBody: {},
}
"""Readers of the prompt fields of each body, of any shape."""
