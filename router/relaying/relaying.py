"""Starts the exchanges of stored responses, and of all paths that are no endpoint with a JSON body."""

from router.gateway.endpoints import ENCODER_PATHS, UPLOADS, Endpoint
from router.gateway.exchange import RequestExchange, ShareRequest
from router.gateway.gateway import Gateway
from router.proxy import ClientConnection, ClientRequest, Exchange, StartExchange, StreamingConnection
from router.relaying.relay import RelayExchange
from router.relaying.responses import RESPONSES_PATH, ResponsesExchange
from router.relaying.routes import Routes
from router.relaying.tunnel import TunnelExchange
from router.relaying.upload import UploadExchange
from router.shared import StoredResponses


class Relaying:
    """Starts them (`router.proxy.StartExchange`); ``encode`` those of encoders, ``share`` pairs."""

    paths = frozenset((RESPONSES_PATH,))
    """JSON endpoints that it starts, too."""

    def __init__(
        self,
        gateway: Gateway,
        routes: Routes,
        encode: StartExchange,
        responses: StoredResponses,
        share: ShareRequest | None = None,
    ) -> None:
        self._gateway, self._routes, self._encode = gateway, routes, encode
        self._responses, self._share = responses, share

    def __call__(self, request: ClientRequest, connection: ClientConnection) -> Exchange:
        """Start one exchange."""
        if request.head.path in ENCODER_PATHS:
            return self._encode(request, connection)
        if request.head.path == RESPONSES_PATH:
            response = ResponsesExchange(self._gateway, request, connection, self._share, self._responses)
            response.begin(self._gateway.reader.relevant(request.head.headers), Endpoint.RESPONSES)
            return response
        # A path that a change of settings has just taken away is served this once.
        endpoint = self._routes.endpoint_of(request.head.method, request.head.path) or Endpoint.MORE
        exchange = self._exchange(endpoint, request, connection)
        exchange.begin(self._gateway.reader.relevant(request.head.headers), None)
        return exchange

    def _exchange(
        self, endpoint: Endpoint, request: ClientRequest, connection: ClientConnection
    ) -> RequestExchange:
        if endpoint not in UPLOADS and endpoint is not Endpoint.REALTIME:
            return RelayExchange(self._gateway, request, connection, endpoint, self._responses)
        streaming: StreamingConnection = connection  # type: ignore[assignment]  # by their `Route`
        if endpoint in UPLOADS:
            return UploadExchange(self._gateway, request, streaming, endpoint)
        return TunnelExchange(self._gateway, request, streaming, endpoint)
