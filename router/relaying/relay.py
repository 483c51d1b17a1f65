"""Requests that need no body to be placed: answers by id, and the paths of `upstream.pass_through`.

A worker is chosen as for every request without a prompt, by load; its failure is redispatched likewise.

    body of a path of `upstream.pass_through`      where its model is
    JSON, or a form                                in the body
    none, or one of another type                   in the query, as ``model``; the body passes unread
"""

from collections.abc import Sequence

import msgspec

from router.errors import ClientError
from router.fleet import LocalWorker
from router.gateway.endpoints import WITHOUT_CACHE, Endpoint
from router.gateway.exchange import RequestExchange
from router.gateway.gateway import Gateway
from router.gateway.large import LARGE_BODY_BYTES
from router.gateway.parsing import ParsedRequest
from router.gateway.reader import RequestReader
from router.proxy import ClientConnection, ClientRequest, Header
from router.relaying.forms import FormReader, boundary_of
from router.relaying.model_query import ModelQuery
from router.relaying.responses import find_worker, pinned_to
from router.relaying.routes import response_id_of
from router.shared import StoredResponses
from router.tenant import Tenant

PIECE_BYTES = 64 * 1024
"""Pieces in which a form that came as a whole is read."""


class RelayExchange(RequestExchange):
    """Serves one request through the `router.proxy` ports."""

    def __init__(
        self,
        gateway: Gateway,
        request: ClientRequest,
        client: ClientConnection,
        endpoint: Endpoint,
        responses: StoredResponses,
    ) -> None:
        super().__init__(gateway, request, client)
        self._endpoint, self._responses = endpoint, responses

    def _read_otherwise(self, tenant: Tenant, headers: Sequence[Header]) -> None:
        request, endpoint = self._request, self._endpoint
        self._record.endpoint = endpoint
        keep_apart(endpoint, tenant)
        if endpoint in (Endpoint.RESPONSE, Endpoint.RESPONSE_CANCEL):
            self._ask_keeper(endpoint, tenant, headers)
            return
        content_type = header_of(request.head.headers, b"content-type")
        if endpoint is Endpoint.MORE and _is_json(content_type) and request.body:
            if self._record.request_bytes >= LARGE_BODY_BYTES:
                self._parsing = self._parse_large(endpoint, tenant, headers)
                self._gateway.lane.add(self._parsing)
                return
            parsed = self._gateway.reader.parse(endpoint, request.body, tenant, headers)
            self._begin_dispatch(parsed, headers)
            return
        form = None
        boundary = boundary_of(content_type) if endpoint is Endpoint.MORE else b""
        if endpoint is Endpoint.MORE and not boundary and content_type.strip()[:10].lower() == b"multipart/":
            raise ClientError(
                "A form has one boundary: content-type: multipart/form-data; boundary=...",
                code="unsupported_media_type",
                status=415,
            )
        if boundary:
            form = FormReader(boundary, handover_allowed=self._gateway.reader.identifier.handover_allowed)
            for start in range(0, len(request.body), PIECE_BYTES):
                form.feed(request.body[start : start + PIECE_BYTES])
        reader, request_id = self._gateway.reader, self._record.worker_request_id
        if form is not None:
            parsed = reader.chosen(without_prompt(endpoint, form.model, tenant, request_id), headers)
            parsed = renamed(form, parsed)
        elif endpoint is Endpoint.MORE:
            query = ModelQuery(request.head.query)
            parsed = reader.chosen(without_prompt(endpoint, query.model, tenant, request_id), headers)
            self._request = query.renamed_in(request, parsed.model)
        else:
            self._begin_dispatch(without_prompt(endpoint, None, tenant, request_id), headers)
            return
        self._begin_dispatch(listed(reader, parsed), headers)

    def _ask_keeper(self, endpoint: Endpoint, tenant: Tenant, headers: Sequence[Header]) -> None:
        """Ask the worker that keeps the response."""
        parsed = without_prompt(endpoint, None, tenant, self._record.worker_request_id)

        def found(local: LocalWorker | None) -> None:
            if local is not None:
                pinned_to(self._record, local)
            self._begin_dispatch(parsed, headers)

        response_id = response_id_of(self._request.head.path)
        if self._responses.is_on:
            find_worker(self._gateway, self._responses, tenant, response_id, found, self._go_on)
        else:
            found(None)


def keep_apart(endpoint: Endpoint, tenant: Tenant) -> None:
    """Raise `ClientError` if a tenant's cache is kept apart and a request has no place for its salt."""
    if tenant.salt and endpoint not in WITHOUT_CACHE:
        raise ClientError(
            f"Your cache is kept apart, which is not possible at {endpoint}.", code="isolation_unsupported"
        )


def without_prompt(endpoint: Endpoint, model: str | None, tenant: Tenant, request_id: bytes) -> ParsedRequest:
    """Return the facts of a request without a prompt; its id stands for its content."""
    key = int(request_id[-16:], 16)
    return ParsedRequest(
        endpoint=endpoint,
        model=model or None,
        stream=False,
        output_tokens_max=None,
        n=1,
        priority=0,
        tenant=tenant.name,
        session="",
        lora=None,
        paths=(),
        prompt_bytes=0,
        prompt_token_ids=0,
        key=key,
        prefix_key=key,
    )


def renamed(form: FormReader, parsed: ParsedRequest) -> ParsedRequest:
    """Return a request with the edit that writes another model than the client's into its form, if any."""
    if not parsed.model or parsed.model == form.model:
        return parsed
    return msgspec.structs.replace(parsed, edits=((*form.model_at, parsed.model.encode()),))


def listed(reader: RequestReader, parsed: ParsedRequest) -> ParsedRequest:
    """Return a request without JSON with the name that workers list for its model, as JSON requests have it.

    `fleet.unlisted_models` decides on a name that no worker lists; the request's bytes stay.
    """
    model = reader.identifier.listed_as(parsed.model or "") or None
    return parsed if model == parsed.model else msgspec.structs.replace(parsed, model=model)


def header_of(headers: Sequence[Header], wanted: bytes) -> bytes:
    """Return the value of a header, or empty bytes."""
    return next((value for name, value in headers if name == wanted), b"")


def _is_json(content_type: bytes) -> bool:
    kind = content_type.partition(b";")[0].strip().lower()
    return kind in (b"", b"application/json") or kind.endswith(b"+json")
