"""Fields of a body that clients may not set: taken out, hashed or refused before a worker sees them.

    model                        an alias (`router.models`)      the name of the model that serves it
    rid, request_id              name a request at its engine    taken out: workers know it by our id
    cache_salt, extra_key        keep caches apart               hashed with the tenant (`salting`)
    kv_transfer_params, ...      say whose KV to fetch or keep   refused (`router.gateway.bodies`)

With another's id a client could mix up answers, or end the other's request. ``rid`` is SGLang's, which aborts
all ids that begin with it; ``request_id`` is vLLM's, by which ``/v1/responses`` also stores answers.
"""

from collections.abc import Callable

from msgspec import UNSET
from msgspec.json import encode

from router.gateway.bodies import ABSENT, BOM, Scalars
from router.gateway.edits import Member, members, removal
from router.gateway.endpoints import Endpoint
from router.gateway.salting import SALT_FIELDS, salt_field, salt_in_place, takes_salt
from router.offsets import Edit
from router.tenant import Tenant

ID_FIELDS = ("rid", "request_id")


def edits_of(
    endpoint: Endpoint,
    fields: Scalars,
    body: bytes,
    tenant: Tenant,
    skeleton: bytes | None = None,
    place: Callable[[int], int] = int,
    *,
    renamed: bool = False,
) -> tuple[Edit, ...]:
    """Return the edits of a body for its worker; none, for most requests.

    Args:
        endpoint: Endpoint of the request.
        fields: Decoded from the body.
        body: The body.
        tenant: Its salt goes in.
        skeleton: The decoded part of the body (`router.gateway.body_outline`); None for all of it.
        place: Maps a place of the skeleton to the body.
        renamed: The model in ``fields`` is another one than in the body, and goes in.

    Raises:
        ClientError: A field occurs too often.
        ValueError: The body has such a field, but is not JSON as the standard has it.
    """
    has_ids = fields.rid is not ABSENT or fields.request_id is not ABSENT
    has_salt = fields.cache_salt is not UNSET or getattr(fields, "extra_key", ABSENT) is not ABSENT
    if not (has_ids or has_salt or tenant.salt or renamed):
        return ()
    salts = SALT_FIELDS if has_salt and takes_salt(endpoint) else ()
    needs_salt = bool(tenant.salt) and takes_salt(endpoint)
    text = body if skeleton is None else skeleton
    mark_bytes = len(text)
    text = text.removeprefix(BOM)
    mark_bytes -= len(text)
    taken: list[Member] = [each for name in ID_FIELDS for each in members(text, name)] if has_ids else []
    edits: list[Edit] = []
    view = memoryview(body)
    for name in salts:
        found = members(text, name)
        if not found:
            continue
        taken += found[:-1]
        start, end = place(mark_bytes + found[-1].start), place(mark_bytes + found[-1].end)
        value = salt_in_place(endpoint, name, view[start:end], tenant)
        if value is not None:
            edits.append((start, end, value))
        if name == salt_field(endpoint):
            needs_salt = False
    if renamed:
        model = encode(fields.model)
        found = members(text, "model")
        edits += [(place(mark_bytes + each.start), place(mark_bytes + each.end), model) for each in found]
    gone = removal(text, taken)
    edits += [(place(mark_bytes + start), place(mark_bytes + end), b"") for start, end, _ in gone]
    if needs_salt:
        at = body.rindex(b"}")
        comma = b"," if _has_members(text, gone) else b""
        edits.append((at, at, b'%b"%b":"%b"' % (comma, salt_field(endpoint).encode(), tenant.salt.encode())))
    return tuple(sorted(edits))


def _has_members(text: bytes, gone: list[Edit]) -> bool:
    at = 0
    for start, end, _ in (*gone, (len(text), 0, b"")):
        if text.find(b'"', at, start) >= 0:
            return True
        at = end
    return False
