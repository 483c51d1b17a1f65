"""TLS contexts of listeners and of connections to workers, which follow their files.

    files ──checked at the start──> a context in force ──a file changed, and can be used──> the next one
                                          ^ each new connection asks, at most once in `LOOK_S`

Kubernetes replaces the files of a Secret under running processes. A new connection takes the newest context
that could be loaded; open connections keep theirs. Certificate, key and authorities change together, in one
assignment, so a certificate never meets the key of another. Files that cannot be used, perhaps half written,
change nothing and are logged once.

A look costs three ``stat`` calls a second at most, so no task is needed. TLS 1.2 is the oldest version, on
both sides.

At the start a wrong file is a wrong setting: the first process stops with a sentence that names the setting
and the file.
"""

import logging
import ssl
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from router.errors import SettingsError
from router.settings import Settings, UpstreamSettings

logger = logging.getLogger(__name__)

LOOK_S = 1.0
"""Shortest time between two looks at the files of one context, in seconds."""

_Signature = tuple[tuple[int, ...] | None, ...]


class RenewedContext(ssl.SSLContext):
    """A context that stands for the newest one that ``make`` could build from ``files``.

    Raise OSError or ssl.SSLError if it cannot be built at first.
    """

    _make: Callable[[], ssl.SSLContext]
    _files: Sequence[str]
    _newest: ssl.SSLContext
    _signature: _Signature
    _look_s: float

    def __new__(cls, make: Callable[[], ssl.SSLContext], files: Sequence[str]) -> Self:
        """Load the files; `ssl.SSLContext` has no ``__init__``."""
        self = super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)
        self._make, self._files = make, files
        self._signature = _signature(files)
        self._newest = make()
        self._look_s = time.monotonic()
        # For callers that ask the context and not a connection.
        self.check_hostname = self._newest.check_hostname
        self.verify_mode = self._newest.verify_mode
        return self

    @property
    def newest(self) -> ssl.SSLContext:
        """The context of the newest usable files."""
        now_s = time.monotonic()
        if now_s - self._look_s >= LOOK_S:
            self._look_s = now_s
            signature = _signature(self._files)
            if signature != self._signature:
                self._signature = signature
                self._renew()
        return self._newest

    def _renew(self) -> None:
        try:
            self._newest = self._make()
        except (OSError, ssl.SSLError) as error:
            event, message, reason = (
                "tls.refused",
                "TLS files cannot be used; the old ones stay",
                _reason(error),
            )
        else:
            event, message, reason = "tls.loaded", "TLS files loaded", ""
        level = logging.ERROR if reason else logging.INFO
        logger.log(level, message, extra={"event": event, "files": list(self._files), "reason": reason})

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Begin one connection; asyncio, uvloop and anyio all do it here."""
        return self.newest.wrap_bio(incoming, outgoing, server_side, server_hostname, session)


def server_context(certfile: str, keyfile: str, ca_certs: str = "") -> ssl.SSLContext:
    """Return the context of an HTTPS listener, which follows its PEM files.

    Clients must show a certificate of one of ``ca_certs``, if given. Raise OSError or ssl.SSLError for bad
    files.
    """

    def make() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        context.load_cert_chain(certfile, keyfile)
        if ca_certs:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(ca_certs)
        return context

    return RenewedContext(make, [file for file in (certfile, keyfile, ca_certs) if file])


def check_tls_files(settings: Settings) -> None:
    """Load every TLS file that the settings name; raise SettingsError if a file cannot be used."""
    for section, listener in (("server", settings.server), ("admin", settings.admin)):
        if listener.ssl_certfile:
            check_listener_files(section, listener.ssl_certfile, listener.ssl_keyfile, listener.ssl_ca_certs)
    _check_worker_files(settings.upstream)


def _check_worker_files(upstream: UpstreamSettings) -> None:
    for setting, files, make in (
        ("ca_file", upstream.ca_file, _verifying),
        ("client_cert", _pair(upstream.client_cert, upstream.client_key), _showing),
    ):
        try:
            if files:
                make(upstream)
        except (OSError, ssl.SSLError) as error:
            raise _unusable(f"upstream.{setting}", files, error) from error


def worker_context(upstream: UpstreamSettings) -> ssl.SSLContext:
    """Return the context of connections to https workers; raise SettingsError if a file is unusable."""
    _check_worker_files(upstream)
    named = (upstream.ca_file, upstream.client_cert, upstream.client_key)
    return RenewedContext(lambda: _showing(upstream), [file for file in named if file])


def _verifying(upstream: UpstreamSettings) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=upstream.ca_file or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not upstream.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _showing(upstream: UpstreamSettings) -> ssl.SSLContext:
    """Verify workers, and show them our own certificate."""
    context = _verifying(upstream)
    if upstream.client_cert:
        context.load_cert_chain(upstream.client_cert, upstream.client_key or None)
    return context


def check_listener_files(section: str, certfile: str, keyfile: str, ca_certs: str = "") -> None:
    """Check the TLS files of a listener; raise SettingsError, with the section, if one is unusable."""
    for setting, files, authorities in (
        ("ssl_certfile", _pair(certfile, keyfile), ""),
        ("ssl_ca_certs", ca_certs, ca_certs),
    ):
        try:
            server_context(certfile, keyfile, authorities)
        except (OSError, ssl.SSLError) as error:
            raise _unusable(f"{section}.{setting}", files, error) from error


def _pair(certificate: str, key: str) -> str:
    return " with ".join(filter(None, (certificate, key)))


def _signature(files: Sequence[str]) -> _Signature:
    found: list[tuple[int, ...] | None] = []
    for file in files:
        try:
            entry = Path(file).stat()
        except OSError:
            found.append(None)
        else:
            found.append((entry.st_dev, entry.st_ino, entry.st_size, entry.st_mtime_ns))
    return tuple(found)


def _unusable(setting: str, files: str, error: Exception) -> SettingsError:
    return SettingsError([f"{setting}: cannot use {files}: {_reason(error)}"])


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"not PEM files that belong together ({error.reason or error.args[-1]})"
    return (getattr(error, "strerror", None) or str(error)).lower()
