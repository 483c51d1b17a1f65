"""Starts the exchanges of all paths that are no endpoint with a JSON body."""

from router.gateway.endpoints import ENCODER_PATHS, UPLOADS, Endpoint
from router.gateway.exchange import RequestExchange
from router.gateway.gateway import Gateway
from router.proxy import ClientConnection, ClientRequest, Exchange, StartExchange, StreamingConnection
from router.relaying.relay import RelayExchange
from router.relaying.routes import Routes
from router.relaying.tunnel import TunnelExchange
from router.relaying.upload import UploadExchange


class Relaying:
    """Starts them (`router.proxy.StartExchange`); ``encode`` those of encoders."""

    def __init__(self, gateway: Gateway, routes: Routes, encode: StartExchange) -> None:
        self._gateway, self._routes, self._encode = gateway, routes, encode

    def __call__(self, request: ClientRequest, connection: ClientConnection) -> Exchange:
        """Start one exchange."""
        if request.path in ENCODER_PATHS:
            return self._encode(request, connection)
        # A path that a change of settings has just taken away is served this once.
        endpoint = self._routes.endpoint_of(request.method, request.path) or Endpoint.MORE
        exchange = self._exchange(endpoint, request, connection)
        exchange.begin()
        return exchange

    def _exchange(
        self, endpoint: Endpoint, request: ClientRequest, connection: ClientConnection
    ) -> RequestExchange:
        if endpoint not in UPLOADS and endpoint is not Endpoint.REALTIME:
            return RelayExchange(self._gateway, request, connection, endpoint)
        streaming: StreamingConnection = connection  # type: ignore[assignment]  # by their `Route`
        if endpoint in UPLOADS:
            return UploadExchange(self._gateway, request, streaming, endpoint)
        return TunnelExchange(self._gateway, request, streaming, endpoint)
