"""The first words of a process: where it serves, where its console is, and which policy decides.

    {"event":"gateway.started","address":"http://0.0.0.0:30000","console":"http://127.0.0.1:29100/",...}
    Cacheway 1.4.0 serves http://0.0.0.0:30000, console http://127.0.0.1:29100/, policy expected_cost, ...

The second form is for people: `router.logs` writes it in place of the first where standard error is a
terminal. The owner of several processes says it, once.
"""

import multiprocessing
from importlib.metadata import version
from typing import Any

from router.settings import Settings

ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - to be shown, not to be bound
"""Addresses that a browser on this machine can open, by those that mean all of its interfaces."""


def greeting(settings: Settings, replica: str, workers: int, healthy: int) -> dict[str, Any]:
    """Return the fields of the event ``gateway.started``, with ``plain`` for a terminal."""
    address, console, policy = data_url(settings), console_url(settings), settings.placement.policy
    alone = multiprocessing.parent_process() is None
    counted = "1 worker" if workers == 1 else f"{workers:,} workers"
    return {
        "event": "gateway.started",
        "replica": replica,
        "address": address,
        "console": console,
        "policy": policy,
        "workers": workers,
        "workers_healthy": healthy,
        "plain": f"Cacheway {version('cacheway')} serves {address}, console {console}, policy {policy}, "
        f"{counted}{f' ({healthy:,} healthy)' if workers else ''}"
        if alone
        else None,
    }


def processes_greeting(settings: Settings) -> dict[str, Any]:
    """Return the fields of the event ``gateway.processes``, of the owner of several processes."""
    address, console, policy = data_url(settings), console_url(settings), settings.placement.policy
    count = settings.server.workers
    return {
        "event": "gateway.processes",
        "address": address,
        "console": console,
        "policy": policy,
        "processes": count,
        "plain": f"Cacheway {version('cacheway')} serves {address} in {count} processes, console {console}, "
        f"policy {policy}",
    }


def data_url(settings: Settings) -> str:
    """Return the address for clients, as it was bound."""
    server = settings.server
    scheme = "https" if server.ssl_certfile else "http"
    return f"{scheme}://{_bracketed(server.host)}:{server.port}"


def console_url(settings: Settings) -> str:
    """Return an address of the console, for a browser on this machine where all interfaces are bound."""
    server, admin = settings.server, settings.admin
    own = bool(admin.port)
    host, port = (admin.host, admin.port) if own else (server.host, server.port)
    scheme = "https" if (admin.ssl_certfile if own else server.ssl_certfile) else "http"
    return f"{scheme}://{ANY_HOST.get(host, _bracketed(host))}:{port}/"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
