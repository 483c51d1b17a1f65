"""Large bodies, parsed in steps so that the event loop is never held for long.

    cut (`router.gateway.body_outline`) ──► decode the outline ──► fill and chain by piece ──► ParsedRequest

The result is that of `Identifier.parse`. Decoded at once are

* the skeleton: all strings of up to 2 KB, 0.3 to 0.7 ms per MB, and bounded (`too_complex`);
* tools, a tool's arguments given as an object, and unknown shapes, 1 ms per MB or more;
* a body of up to `UNUSUAL_BYTES_MAX` with numbers where text or objects belong: no engine takes it, so it is
  rare, and refused if it is larger.
"""

from collections.abc import Generator, Iterable, Iterator
from typing import Any

from radix import BlockChain
from router.gateway.bodies import (
    ChatBody,
    CompletionBody,
    GenerateBody,
    Misfit,
    PassedThroughBody,
    ResponsesBody,
    decode,
)
from router.gateway.body_outline import (
    DEFAULT_SIZES,
    BodyOutline,
    Piece,
    Sizes,
    Unusual,
    packed_ids,
    too_complex,
)
from router.gateway.client_fields import edits_of
from router.gateway.conversation import encode
from router.gateway.endpoints import Endpoint
from router.gateway.identity import ID_BYTES, PATHS_MAX, Identity, keys_with, reusable
from router.gateway.parsing import (
    Identifier,
    ParsedRequest,
    Rename,
    invalid_json,
    use_name,
    with_options,
)
from router.session_fields import drop_cut
from router.tenant import ANONYMOUS, Tenant

LARGE_BODY_BYTES = 256 * 1024
"""From here a body is parsed in steps; below, parsing it at once takes less than 0.3 ms."""

UNUSUAL_BYTES_MAX = 4 * 1024 * 1024

PROMPTS_MAX = 16_384
"""Prompts of one batch, of 14 us each; OpenAI takes 2,048."""

Parsing = Generator[None, None, ParsedRequest]
"""A body being parsed; each `next` makes a step."""


def parse_in_steps(
    identifier: Identifier,
    endpoint: Endpoint,
    body: bytes,
    *,
    tenant: Tenant = ANONYMOUS,
    sizes: Sizes = DEFAULT_SIZES,
    rename: Rename | None = None,
) -> Parsing:
    """Parse a body as `Identifier.parse` does, in steps of ``sizes``, which do not change the result.

    Raises `ClientError` as that does, or with code ``too_complex``.
    """
    outline = BodyOutline(body, sizes)
    yield from outline.cut()
    try:
        fields: Any = decode(
            endpoint,
            outline.skeleton,
            outline.digest,
            strictly=outline.has_arrays,
            handover_allowed=identifier.handover_allowed,
        )
        outline.refuse(fields.model)
        renamed = rename is not None and use_name(fields, rename)
        outline.refuse(fields.cache_salt or None, bytes(getattr(fields, "extra_key", b"")).decode())
        listed = identifier.listed_as(fields.model or "")
        scope = tuple(
            (yield from _filled(identifier.scope(endpoint, fields, tenant, listed, outline.digest), outline))
        )
        ids_root = None
        if isinstance(fields, PassedThroughBody):
            key = identifier.hasher.body_key(scope, body)
            identity = Identity((), 0, 0, key, key)
        else:
            if identifier.finds_roots or isinstance(fields, CompletionBody | GenerateBody):
                outline.refuse(bytes(fields.lora_path).decode())
                ids_root = identifier.ids_root(endpoint, fields, tenant)
            identity = yield from _identified(identifier, scope, fields, ids_root, outline)
        edits = edits_of(endpoint, fields, body, tenant, outline.skeleton, outline.place, renamed=renamed)
        drop_cut(fields, outline.mark)
        ids_root = ids_root if identifier.finds_roots else None
        request = with_options(endpoint, fields, tenant.name, listed or None, identity, edits, ids_root)
        outline.refuse(request.session, request.lora, request.service_tier)
    except (Unusual, Misfit):
        if len(body) > UNUSUAL_BYTES_MAX:
            raise too_complex() from None
        request = identifier.parse(endpoint, body, tenant=tenant, rename=rename)
    except (ValueError, RecursionError) as error:
        raise invalid_json(error) from error
    return request


def _filled(parts: Iterable[bytes], outline: BodyOutline) -> Generator[None, None, list[bytes]]:
    filled = []
    for part in parts:
        pieces = []
        for piece in outline.filled((part,)):
            pieces.append(piece)
            yield
        filled.append(b"".join(pieces))
    return filled


def _identified(
    identifier: Identifier, scope: tuple[bytes, ...], fields: Any, ids_root: int | None, outline: BodyOutline
) -> Generator[None, None, Identity]:
    hasher = identifier.hasher
    paths: list[bytes] = []
    prompt_bytes = prompt_token_ids = key = prefix_key = 0
    for index, (kind, pieces) in enumerate(_prompts(identifier, fields, outline)):
        if index >= PROMPTS_MAX:
            raise too_complex()
        are_ids = kind == b"ids"
        root = hasher.root((kind, *scope)) if ids_root is None or not are_ids else ids_root
        chain = BlockChain(root, hasher.block_tokens * ID_BYTES if are_ids else hasher.block_bytes)
        for piece in pieces:
            if are_ids:
                prompt_token_ids += len(piece) // ID_BYTES
            else:
                prompt_bytes += len(piece)
            if index < PATHS_MAX:
                chain.add(piece)
            yield
        if index < PATHS_MAX:
            paths.append(reusable(chain.path, chain.tail) if are_ids else chain.path)
            key, prefix_key = keys_with(index, key, prefix_key, *chain.whole_and_first)
    return Identity(tuple(paths), prompt_bytes, prompt_token_ids, key, prefix_key)


def _prompts(
    identifier: Identifier, fields: Any, outline: BodyOutline
) -> Iterator[tuple[bytes, Iterable[Piece]]]:
    """Yield the kind of each prompt (`PromptHasher.root`), and its pieces."""
    if isinstance(fields, ChatBody | ResponsesBody):
        stream = identifier.conversation(fields)
        if stream:
            yield b"chat", outline.filled(stream)
        return
    if isinstance(fields, GenerateBody) and fields.input_ids is not None:
        outline.refuse_arrays(fields.text)
    for prompt in identifier.prompts(fields):
        if isinstance(prompt, bytes):
            yield b"chat", outline.filled((prompt[:1], prompt[1:]))  # a mark and a hash
        elif isinstance(prompt, list):
            yield b"ids", (packed_ids(prompt),)
        elif (ids := outline.token_ids(prompt)) is not None:
            yield b"ids", ids
        else:
            yield b"text", outline.filled((encode(prompt),))
