"""Stored responses (`POST /v1/responses`): the worker that keeps one, and the tenant that may ask for it.

    POST /v1/responses ──> its answer names an id ──keep──> `router.shared.StoredResponses`
         previous_response_id, GET, DELETE, cancel ──find──> the worker ──> that one only
                                                      ├─ gone ────> 410 `response_gone`
                                                      ├─ unknown ─> a tenant: 404; else any worker is asked
                                                      └─ cannot be told (Redis is away) ──> 503

Engines keep the responses that they stored in their own memory, so only the one that answered knows an id. It
makes the ids, and they pass unchanged. An engine that serves tenants knows nothing of them, so an id that is
not known to be a tenant's own never reaches one in its name.
"""

import re
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from router.errors import ClientError, NoWorker
from router.fleet import LocalWorker
from router.gateway.endpoints import Endpoint
from router.gateway.exchange import RequestExchange, ShareRequest
from router.gateway.gateway import Gateway
from router.gateway.parsing import ParsedRequest
from router.gateway.record import RequestRecord
from router.proxy import ClientConnection, ClientRequest, Header
from router.shared import StoredResponses
from router.tenant import Tenant

RESPONSES_PATH = Endpoint.RESPONSES.value.encode()

LOOKED_AT_BYTES_MAX = 64 * 1024
"""The id is in the first event of a stream, and at the begin of any other answer."""

_ID = re.compile(rb'"id"\s*:\s*"(resp_[A-Za-z0-9_-]{1,123})"')
_VALID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_NAMES = (b'"previous_response_id"', b'"store"')
_ESCAPED = re.compile(rb"\\u00[567]")
"""A letter of their names, written as an escape."""


class _Fields(msgspec.Struct, gc=False):
    previous_response_id: str | None = None
    store: bool | None = None


_fields = msgspec.json.Decoder(_Fields)


def fields_of(body: bytes) -> tuple[str, bool]:
    """Return the response that a request goes on from, empty for none, and whether its own is stored."""
    if not any(name in body for name in _NAMES) and _ESCAPED.search(body) is None:
        return "", True
    try:
        fields = _fields.decode(body)
    except (ValueError, RecursionError):
        return "", True  # the engine will refuse it
    return fields.previous_response_id or "", fields.store is not False


def find_worker(
    gateway: Gateway,
    responses: StoredResponses,
    tenant: Tenant,
    response_id: str,
    found: Callable[[LocalWorker | None], None],
    failed: Callable[[Callable[[], None]], None],
) -> None:
    """Find the worker that keeps a response, and call ``found`` with it; None if any may be asked.

    ``failed`` runs a step that raises the error of a request whose response cannot be had: `ClientError` or
    `NoWorker`. Either is called before this returns, or later.
    """

    def told(worker_id: str | None) -> None:
        failed(lambda: found(worker_of(gateway, tenant, response_id, worker_id)))

    if _VALID.fullmatch(response_id):
        responses.find(tenant.name, response_id, told)
    else:
        told("")


def worker_of(
    gateway: Gateway, tenant: Tenant, response_id: str, worker_id: str | None
) -> LocalWorker | None:
    """Return the worker of an id; None if no replica knows the response, and any worker may be asked."""
    shown = response_id[:128]
    if worker_id is None:
        raise NoWorker(
            f"The worker that keeps the response {shown!r} cannot be found out now.", retry_after_s=1.0
        )
    if not worker_id:
        if tenant.name:
            raise ClientError(f"The response {shown!r} is not found.", code="response_not_found", status=404)
        return None
    local = gateway.registry.get(worker_id)
    if local is None:
        raise ClientError(
            f"The response {shown!r} is lost: the worker that kept it is gone. Send the conversation again.",
            code="response_gone",
            status=410,
        )
    return local


def pinned_to(record: RequestRecord, local: LocalWorker) -> None:
    """Let only the worker that keeps a response serve a request, unless it serves in pairs only."""
    if local.worker.role == "plain":
        record.only = np.array(local.slots, dtype=np.intp)


class ResponsesExchange(RequestExchange):
    """Serves ``POST /v1/responses``: on the worker of the response before it, and notes where its own is."""

    def __init__(
        self,
        gateway: Gateway,
        request: ClientRequest,
        client: ClientConnection,
        share: ShareRequest | None,
        responses: StoredResponses,
    ) -> None:
        self._previous, self._stored = fields_of(request.body)
        self._responses = responses
        super().__init__(
            gateway, request, IdReader(client, self._answered) if self._stored else client, share
        )

    def _begin_dispatch(self, parsed: ParsedRequest, headers: Sequence[Header]) -> None:
        if not self._previous or not self._responses.is_on:
            super()._begin_dispatch(parsed, headers)
            return
        self._record.parsed = parsed

        def found(local: LocalWorker | None) -> None:
            if local is not None:
                pinned_to(self._record, local)
            super(ResponsesExchange, self)._begin_dispatch(parsed, headers)

        find_worker(self._gateway, self._responses, self._record.tenant, self._previous, found, self._go_on)

    def _answered(self, response_id: str) -> None:
        """Note the worker that keeps the response."""
        record = self._record
        attempt = record.attempt if record.pair is None else record.pair.decode_attempt
        if attempt is not None:
            self._responses.keep(record.tenant.name, response_id, attempt.worker_id)


class IdReader:
    """Passes an answer on to its client, and reads the id of the response at its begin."""

    __slots__ = ("_client", "_found", "_read")

    def __init__(self, client: ClientConnection, found: Callable[[str], None]) -> None:
        self._client, self._found = client, found
        self._read: bytearray | None = bytearray()

    def send_head(self, status: int, lines: bytes, *, length: int | None = None, body: bytes = b"") -> None:
        """Read, then pass on: the client may ask for the response at once."""
        if status >= 300:
            self._read = None
        elif body:
            self._look(body)
        self._client.send_head(status, lines, length=length, body=body)

    def send_body(self, data: bytes) -> None:
        """Read, then pass on."""
        if self._read is not None:
            self._look(data)
        self._client.send_body(data)

    def finish(self) -> None:
        """End the answer."""
        self._client.finish()

    def abort(self) -> None:
        """Close the connection."""
        self._client.abort()

    def release_body(self) -> None:
        """Count the request's body no longer."""
        self._client.release_body()

    def _look(self, data: bytes) -> None:
        if self._read is None:
            return
        self._read += data[: LOOKED_AT_BYTES_MAX - len(self._read)]
        found = _ID.search(self._read)
        if found is not None:
            self._found(found[1].decode())
        if found is not None or len(self._read) >= LOOKED_AT_BYTES_MAX:
            self._read = None
