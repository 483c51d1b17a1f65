"""Server of each method and path: the one list of what clients reach at workers.

    POST, an endpoint with a JSON body        an exchange, when the body is complete
    POST, a form with files                   an exchange, at once: the body is streamed
    /v1/responses/{id}                        an exchange without a body
    GET /v1/realtime                          an exchange that becomes a tunnel
    GET and POST of `upstream.pass_through`   an exchange
    anything else                             the application: health, models, the admin API, or a 404

So a path that no list names never reaches a worker, and a new release of an engine opens none.
"""

import re

from router.gateway.endpoints import ENCODER_PATHS, ENDPOINTS, PASSED_THROUGH, UPLOADS, Endpoint
from router.pass_through import PassedPaths
from router.proxy import Route
from router.settings import Settings

_WHOLE = ENCODER_PATHS | ENDPOINTS.keys()
_IS_WHOLE = Route.WHOLE

_STREAMED = {endpoint.value.encode(): endpoint for endpoint in UPLOADS}

_RESPONSE = re.compile(rb"/v1/responses/(?!render\Z)([A-Za-z0-9_-]{1,128})(/cancel)?")

_REALTIME = Endpoint.REALTIME.value.encode()
_VERSION = Endpoint.VERSION.value.encode()


class Routes:
    """The choice (`router.proxy.RouteOf`)."""

    def __init__(self, settings: Settings) -> None:
        self.use(settings)

    def use(self, settings: Settings) -> None:
        """Apply new settings to later requests."""
        self._more = PassedPaths(settings.upstream.pass_through)

    def __call__(self, method: bytes, path: bytes) -> Route:
        """Return the server of a method and raw path."""
        if method == b"POST" and path in _WHOLE:
            return _IS_WHOLE
        endpoint = self.endpoint_of(method, path)
        if endpoint is None:
            return Route.APPLICATION
        if endpoint in UPLOADS:
            return Route.STREAMED
        return Route.TUNNELLED if endpoint is Endpoint.REALTIME else Route.WHOLE

    def endpoint_of(self, method: bytes, path: bytes) -> Endpoint | None:
        """Return the endpoint of a request without a JSON body; None if it is none."""
        if method == b"POST" and path in _STREAMED:
            return _STREAMED[path]
        if method == b"GET" and path in (_REALTIME, _VERSION):
            return Endpoint.REALTIME if path == _REALTIME else Endpoint.VERSION
        response = _RESPONSE.fullmatch(path)
        if response is not None:
            if response[2]:
                return Endpoint.RESPONSE_CANCEL if method == b"POST" else None
            return Endpoint.RESPONSE if method in (b"GET", b"DELETE") else None
        return Endpoint.MORE if method in (b"GET", b"POST") and path in self._more else None


def methods_of(endpoint: Endpoint) -> tuple[str, ...]:
    """Return the methods of an endpoint."""
    match endpoint:
        case Endpoint.RESPONSE:
            return ("GET", "DELETE")
        case Endpoint.REALTIME | Endpoint.VERSION:
            return ("GET",)
        case Endpoint.MORE:
            return ("GET", "POST")
    return ("POST",)


def placed_by(endpoint: Endpoint) -> str:
    """Return the basis of choosing an endpoint's worker, in the words of docs/endpoints.md."""
    if endpoint in (Endpoint.RESPONSE, Endpoint.RESPONSE_CANCEL):
        return "by id"
    if endpoint is Endpoint.REALTIME:
        return "by load, then pinned"
    return "by load" if endpoint in PASSED_THROUGH else "by cache"


def response_id_of(path: bytes) -> str:
    """Return the id in the path of a stored response."""
    found = _RESPONSE.fullmatch(path)
    return "" if found is None else found[1].decode()
