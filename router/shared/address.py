"""Address of Redis: the URL, taken apart and checked once.

    redis://[user:password@]host[:port][/database]           one server
    unix://[user:password@]/path                             one server on this host
    redis+sentinel://[user:password@]host[:port],host.../service[/database]
    redis+cluster://[user:password@]host[:port],host...

``rediss`` instead of ``redis`` means TLS, to both Sentinels and data servers. The user and password
in front of the hosts are those of the data servers. After a ``?`` come parameters: ``db``,
``username``, ``password``, ``sentinel_username``, ``sentinel_password``, and for TLS ``ssl_ca_certs``,
``ssl_certfile``, ``ssl_keyfile`` (paths), ``ssl_cert_reqs`` (``required`` or ``none``) and
``ssl_check_hostname`` (``true`` or ``false``). Messages never repeat a value: it may be a password.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from radix import COUNT_MAX, parsed_whole
from router.errors import StateError
from router.values import REDIS_SCHEMES

REDIS_PORT = 6379
SENTINEL_PORT = 26379

Kind = Literal["server", "sentinel", "cluster"]
_PARAMETERS = frozenset(
    (
        *("db", "username", "password", "sentinel_username", "sentinel_password"),
        *("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname"),
    )
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One listening socket: a host and a port, or the path of a Unix socket in ``host`` with port 0."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.port else self.host


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """A Redis URL, understood.

    Attributes:
        kind: Kind of the endpoints.
        endpoints: One server; or some Sentinels or cluster nodes, any of which knows the rest.
        service: Name of the primary among the Sentinels' services.
        data: Options of a connection to a data server, as redis-py takes them; ``tls`` is how TLS is spoken,
            None without.
        sentinel: Options of a connection to a Sentinel.
    """

    kind: Kind
    endpoints: tuple[Endpoint, ...]
    service: str
    data: Mapping[str, Any] = field(repr=False)
    sentinel: Mapping[str, Any] = field(repr=False)


def parse_address(url: str) -> RedisAddress:
    """Take a Redis URL apart.

    Args:
        url: As in the module's description.

    Raises:
        StateError: The URL makes no sense, or a certificate cannot be read.
    """
    try:
        return _parse(url)
    except ValueError as error:
        # urllib's own messages may quote the URL; ours do not.
        known = error.args[0] if isinstance(error, _Mistake) else "it cannot be taken apart"
        raise StateError(
            f"the Redis URL is not redis://, rediss://, unix://, redis+sentinel://host:port/service "
            f"or redis+cluster://host:port: {known}"
        ) from None
    except OSError as error:
        raise StateError(f"a certificate of the Redis URL cannot be read: {error.strerror}") from error


class _Mistake(ValueError):
    """Something in a URL that its writer can mend; quotes no values."""


def _parse(url: str) -> RedisAddress:
    scheme, _, rest = url.partition("://")
    if not url.startswith(REDIS_SCHEMES):
        raise _Mistake("the scheme is unknown")
    rest, _, query = rest.partition("?")
    given = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    if given.keys() - _PARAMETERS:
        raise _Mistake("it has an unknown parameter")
    authority, slash, path = rest.partition("/")
    credentials, _, hosts = authority.rpartition("@")
    user, _, password = credentials.partition(":")
    kind: Kind = "server"
    service = ""
    if scheme == "unix":
        if hosts or not path:
            raise _Mistake("a Unix socket needs an absolute path")
        endpoints: tuple[Endpoint, ...] = (Endpoint(slash + unquote(path), 0),)
        path = ""
    elif scheme.endswith("+sentinel"):
        kind, endpoints = "sentinel", _endpoints(hosts, SENTINEL_PORT)
        service, _, path = path.partition("/")
        if not service:
            raise _Mistake("a Sentinel URL needs the name of its service")
    else:
        kind = "cluster" if scheme.endswith("+cluster") else "server"
        endpoints = _endpoints(hosts, REDIS_PORT)
        if kind == "server" and len(endpoints) > 1:
            raise _Mistake("several hosts need redis+sentinel:// or redis+cluster://")
    database = given.get("db", path) or "0"
    number = parsed_whole(database, COUNT_MAX)
    if number is None or (kind == "cluster" and number):
        raise _Mistake("the database is no number, or not 0 in a cluster")
    tls = _tls(given) if scheme.startswith("rediss") else None
    return RedisAddress(
        kind,
        endpoints,
        unquote(service),
        {
            "username": given.get("username", unquote(user)),
            "password": given.get("password", unquote(password)),
            "db": number,
            "tls": tls,
        },
        {
            "username": given.get("sentinel_username", ""),
            "password": given.get("sentinel_password", ""),
            "tls": tls,
        },
    )


def _endpoints(hosts: str, default_port: int) -> tuple[Endpoint, ...]:
    found = []
    for host in hosts.split(","):
        parts = urlsplit(f"//{host}")
        if not parts.hostname:
            raise _Mistake("it names no host")
        found.append(Endpoint(parts.hostname, parts.port or default_port))
    return tuple(found)


def _tls(given: dict[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=given.get("ssl_ca_certs"))
    if given.get("ssl_check_hostname") == "false" or given.get("ssl_cert_reqs") == "none":
        context.check_hostname = False
    if given.get("ssl_cert_reqs") == "none":
        context.verify_mode = ssl.CERT_NONE
    if "ssl_certfile" in given:
        context.load_cert_chain(given["ssl_certfile"], given.get("ssl_keyfile"))
    return context
