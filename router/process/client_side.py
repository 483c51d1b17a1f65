"""The client's side of one process: connections and their limits, on the data port and on the others."""

import dataclasses
import socket
import ssl
import time

from fastapi import FastAPI

from router.admin import Listener, admin_tls, make_metrics_api, serve_metrics
from router.metrics import Metrics
from router.open_files import OpenFiles
from router.process.loops import Loop
from router.proxy import (
    ClientLimits,
    ClientQuota,
    Clients,
    Ending,
    GatewayProtocol,
    HeldBytes,
    JudgeHead,
    Refusal,
    RouteOf,
    StartExchange,
    make_protocol,
)
from router.settings import Settings


class ClientSide:
    """Connections of clients, and their limits. Make it inside a running event loop."""

    def __init__(self, settings: Settings, metrics: Metrics, files: OpenFiles) -> None:
        self._settings, self._metrics, self._files = settings, metrics, files
        self.ending = Ending()
        self.clients = Clients(settings.server, time.monotonic, metrics.client_refused, files.requests_max)
        self.held = HeldBytes(
            _held_bytes_max(settings.server), lambda: self.clients.refuse(Refusal.HELD_BYTES)
        )
        self._protocols: list[type[GatewayProtocol]] = []
        self._listeners: list[tuple[Listener, bool]] = []
        """Beside the data port, and whether each is for scrapes only."""
        self._loops: list[Loop] = []
        if settings.observability.prometheus_port is not None:
            self._listen_for_scrapes(
                settings.observability.prometheus_host, settings.observability.prometheus_port
            )

    def protocol(
        self, start: StartExchange, route_of: RouteOf, judge: JudgeHead | None
    ) -> type[GatewayProtocol]:
        """Make the class for ``uvicorn.Config(http=...)``; see `make_protocol`."""
        made = make_protocol(
            start,
            route_of,
            self._settings.server,
            self.ending,
            self.clients,
            judge,
            self.held,
        )
        self._protocols.append(made)
        return made

    def listen_for_admins(self, api: FastAPI, listener: socket.socket) -> None:
        """Serve the admin API on the port that a listener is bound to."""
        tls = admin_tls(self._settings.admin)
        admin = self._listener(api, self._settings.server, tls)
        self._listeners.append((admin, False))
        # A copy, so that there is a port to start again with if it ever fails.
        self._loops.append(("admin listener", lambda: admin.serve(listener.dup())))

    def loops(self) -> list[Loop]:
        """Return the tasks to run while the process serves."""
        return self._loops

    def use(self, new: Settings) -> None:
        """Apply new settings."""
        self._settings = new
        self.clients.use(new.server)
        self.held.use(_held_bytes_max(new.server))
        limits = dataclasses.replace(new.server)  # a new object even if they are the same
        for protocol in self._protocols:
            protocol.limits = limits
            protocol.watches_requests = self.clients.watches_requests
        for listener, scrapes in self._listeners:
            listener.use(scrape_limits(new.server) if scrapes else new.server)

    def _listen_for_scrapes(self, host: str, port: int) -> None:
        api = make_metrics_api(self._metrics.exposition)
        scrapes = self._listener(api, scrape_limits(self._settings.server))
        self._listeners.append((scrapes, True))
        alone = self._settings.server.workers == 1
        self._loops.append(("metrics listener", lambda: serve_metrics(scrapes, host, port, alone=alone)))

    def _listener(self, api: FastAPI, limits: ClientLimits, tls: ssl.SSLContext | None = None) -> Listener:
        server = self._settings.server
        quota = ClientQuota(trusted_proxies=server.trusted_proxies)
        files_max = self._files.listener_connections_max
        clients = Clients(quota, time.monotonic, self._metrics.client_refused, files_max)
        return Listener(api, clients, limits, server.keepalive_s, tls)


def scrape_limits(limits: ClientLimits) -> ClientLimits:
    """Return the limits of a scraper's connection: it sends no body."""
    return ClientLimits(
        body_bytes_max=0,
        header_count_max=limits.header_count_max,
        header_bytes_max=limits.header_bytes_max,
        read_timeout_s=limits.read_timeout_s,
    )


def _held_bytes_max(limits: ClientLimits) -> int:
    """Return the most bytes of bodies that a process holds, 0 for any number; the longest body must fit."""
    return limits.held_bytes_max and max(limits.held_bytes_max, limits.body_bytes_max)
