"""TLS files, checked before anything starts.

A file that is missing, unreadable or not what it should be is a wrong setting: the start stops with a
sentence that names the setting and the file, in the first process and not in each of ``--workers``.
"""

import ssl

from router.settings import ServerSettings, Settings, UpstreamSettings
from router.sources import SettingsError


def check_tls_files(settings: Settings) -> None:
    """Load every TLS file that the settings name.

    Raises:
        SettingsError: If one of them cannot be used.
    """
    _check_server(settings.server)
    worker_context(settings.upstream)


def worker_context(upstream: UpstreamSettings) -> ssl.SSLContext:
    """How https workers are talked to.

    Raises:
        SettingsError: If a file cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=upstream.ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise _unusable("upstream.ca_file", upstream.ca_file, error) from error
    if upstream.client_cert:
        try:
            context.load_cert_chain(upstream.client_cert, upstream.client_key or None)
        except (OSError, ssl.SSLError) as error:
            files = " with ".join(filter(None, (upstream.client_cert, upstream.client_key)))
            raise _unusable("upstream.client_cert", files, error) from error
    if not upstream.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _check_server(server: ServerSettings) -> None:
    if server.ssl_certfile:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(server.ssl_certfile, server.ssl_keyfile)
        except (OSError, ssl.SSLError) as error:
            files = f"{server.ssl_certfile} with {server.ssl_keyfile}"
            raise _unusable("server.ssl_certfile", files, error) from error


def _unusable(setting: str, files: str, error: Exception) -> SettingsError:
    if isinstance(error, ssl.SSLError):
        reason = f"not PEM files that belong together ({error.reason or error.args[-1]})"
    else:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
    return SettingsError([f"{setting}: cannot use {files}: {reason}"])
