"""Fields of a body that are no client's to say: taken out, hashed or refused before a worker sees them.

    rid, request_id              name a request at its engine    taken out: workers know it by our id
    cache_salt, extra_key        keep caches apart               hashed with the tenant (`salting`)
    kv_transfer_params, ...      say whose KV to fetch or keep   refused (`router.gateway.bodies`)

With another's id a client could have its answer mixed up with theirs, or end it. The engines' own words for
their ids: ``rid`` is SGLang's, which aborts all that begin with it; ``request_id`` is vLLM's, by which
``/v1/responses`` also stores answers.
"""

from collections.abc import Callable

from msgspec import UNSET

from router.gateway.bodies import ABSENT, BOM, Scalars
from router.gateway.edits import Edit, Member, members, removal
from router.gateway.endpoints import Endpoint
from router.gateway.salting import SALT_FIELDS, salt_field, salt_in_place, takes_salt
from router.tenants import Tenant

ID_FIELDS = ("rid", "request_id")


def edits_of(
    endpoint: Endpoint,
    fields: Scalars,
    body: bytes,
    tenant: Tenant,
    skeleton: bytes | None = None,
    place: Callable[[int], int] = int,
) -> tuple[Edit, ...]:
    """Return what a worker gets otherwise than its client wrote it; nothing, for most requests.

    Args:
        endpoint: Where it was sent.
        fields: What was decoded from the body.
        body: The body.
        tenant: Whose it is. Its salt goes in.
        skeleton: What of the body is looked at (`router.gateway.body_outline`); None for all of it.
        place: Where in the body a place of the skeleton is.

    Raises:
        ClientError: A field is there too often.
        ValueError: The body has such a field, but is not JSON as the standard has it.
    """
    has_ids = fields.rid is not ABSENT or fields.request_id is not ABSENT
    has_salt = fields.cache_salt is not UNSET or getattr(fields, "extra_key", ABSENT) is not ABSENT
    if not (has_ids or has_salt or tenant.salt):
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
    gone = removal(text, taken)
    edits += [(place(mark_bytes + start), place(mark_bytes + end), b"") for start, end, _ in gone]
    if needs_salt:
        at = body.rindex(b"}")
        comma = b"," if _has_members(text, gone) else b""
        edits.append((at, at, b'%b"%b":"%b"' % (comma, salt_field(endpoint).encode(), tenant.salt.encode())))
    return tuple(sorted(edits))


def _has_members(text: bytes, gone: list[Edit]) -> bool:
    """Whether anything is left of an object."""
    at = 0
    for start, end, _ in (*gone, (len(text), 0, b"")):
        if text.find(b'"', at, start) >= 0:
            return True
        at = end
    return False
