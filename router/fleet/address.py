"""Worker URLs and the ids made from them.

An id is ``host:port`` (and the base path, if any): readable in headers, logs and metrics, and the same on
every replica.
"""

import re
from urllib.parse import urlsplit

from policies import rank_of
from router.errors import ClientError

_PLAIN = re.compile(r"[!-\[\]-~]+")
"""Printable ASCII without the backslash; host names may be in their ASCII form (``xn--...``)."""


def normal_url(text: str) -> str:
    """Normalise a worker's URL: lower case, with port, no trailing slash; may raise `ClientError`."""
    url = text.strip()
    if "://" not in url:
        url = f"http://{url}"
    try:
        parts, origin = urlsplit(url), origin_of(url)
    except ValueError as error:
        raise _invalid(text) from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise _invalid(text)
    if parts.username is not None or not _PLAIN.fullmatch(url):
        raise _invalid(text)
    if not all(0 < len(label) < 64 for label in parts.hostname.removesuffix(".").split(".")):
        raise _invalid(text)  # no resolver takes such a name
    normal = origin + parts.path.rstrip("/")
    if rank_of(worker_id_of(normal))[1] >= 0:
        raise _invalid(text)  # its id would name a data-parallel rank
    return normal


def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL: lower case, IPv6 in brackets; may raise `ValueError`."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port if parts.port is not None else (443 if parts.scheme == "https" else 80)
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def worker_id_of(url: str) -> str:
    """Return the id of the worker at a `normal_url`."""
    return url.split("://", 1)[1]


def _invalid(text: str) -> ClientError:
    return ClientError(
        f"{text!r} is not a worker URL; write it like http://host:port",
        code="invalid_worker_url",
        param="url",
    )
