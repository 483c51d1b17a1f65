"""Request bodies as msgspec structs: the fields that are read, for each endpoint.

Large fields that are only compared stay raw, all others are skipped in the same pass. A body that does not
fit these types is decoded generically and brought into shape; see `router.gateway.parsing`.

Fields by which engines hand over KV fit only if they are null (`HandoverFields`): so a body with one, however
it is written, does not fit, and is refused.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import msgspec

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

TokenIdsOrTexts = str | list[str | int | list[int]]


class StreamOptions(msgspec.Struct, gc=False):
    """``stream_options``; its type is checked."""

    include_usage: bool | None = None


class SamplingParams(msgspec.Struct, gc=False):
    """``sampling_params`` of /generate."""

    max_new_tokens: int | None = None
    n: int | None = None


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

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    n: int | None = None
    priority: int | None = None
    service_tier: str | None = None
    cache_salt: str | msgspec.UnsetType | None = msgspec.UNSET
    prompt_cache_key: str | None = None
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

_DECODERS = {kind: msgspec.json.Decoder(kind) for kind in set(_TYPES.values())}

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

_scope_of = {kind: attrgetter(*names) for kind, names in SCOPE_FIELDS.items() if names}
_NO_SCOPE = {kind: (ABSENT,) * len(names) for kind, names in SCOPE_FIELDS.items()}


def has_scope_fields(fields: Scalars) -> bool:
    """Return True if a body has one of its `SCOPE_FIELDS`; most have none, which is cheap to find out."""
    kind = type(fields)
    return kind in _scope_of and bool(_scope_of[kind](fields) != _NO_SCOPE[kind])


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
    kind = _TYPES[endpoint]
    try:
        return _DECODERS[kind].decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if strictly:
            raise Misfit from error
        return _decode_leniently(kind, body, digest, handover_allowed=handover_allowed)


def _decode_leniently(kind: type[Scalars], body: bytes, digest: Digest, *, handover_allowed: bool) -> Scalars:
    value = loads(body.removeprefix(BOM))
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
        message, _, path = str(error).partition(" - at `$.")
        raise ClientError(
            f"{path.rstrip('`')}: {message}", code="invalid_value", param=path.rstrip("`") or None
        ) from error
    for name in _RAW[kind]:
        if name in value:
            setattr(fields, name, msgspec.Raw(canonical_json(value[name])))
    for name, shape in _SHAPES[kind].items():
        setattr(fields, name, shape(value.get(name), digest))
    return fields  # type: ignore[no-any-return]


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
