"""Where Redis is: the URL, taken apart and checked once.

    redis://[user:password@]host[:port][/database]           one server
    unix://[user:password@]/path                             one server on this host
    redis+sentinel://[user:password@]host[:port],host.../service[/database]
    redis+cluster://[user:password@]host[:port],host...

``rediss`` instead of ``redis`` means TLS, to Sentinels and data servers alike. The user and password
in front of the hosts are those of the data servers. After a ``?`` come parameters: ``db``,
``username``, ``password``, ``sentinel_username``, ``sentinel_password``, and for TLS ``ssl_ca_certs``,
``ssl_certfile``, ``ssl_keyfile`` (paths), ``ssl_cert_reqs`` (``required`` or ``none``) and
``ssl_check_hostname`` (``true`` or ``false``). Messages never repeat a value: it may be a password.

redis-py reads each host with what follows; what its URLs do not know (several hosts, Sentinels, clusters),
and what it passes over (unknown parameters, a database that is no number), is read here.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote

from redis.asyncio.connection import parse_url

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


class Endpoint(NamedTuple):
    """One listening socket: a host and a port, or the path of a Unix socket in ``host`` with port 0."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.port else self.host


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """A Redis URL, understood.

    Attributes:
        kind: What the endpoints are.
        endpoints: One server; or some Sentinels or cluster nodes, any of which knows the rest.
        service: Name of the primary among what the Sentinels watch.
        login: For data servers: ``username``, ``password`` and ``db``, as redis-py's connections take them.
        sentinel_login: For Sentinels.
        tls: How TLS is spoken; None without.
    """

    kind: Kind
    endpoints: tuple[Endpoint, ...]
    service: str
    login: Mapping[str, Any] = field(repr=False)
    sentinel_login: Mapping[str, Any] = field(repr=False)
    tls: ssl.SSLContext | None


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
        # Messages of urllib and redis-py may quote the URL; ours do not.
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
    if not url.startswith(REDIS_SCHEMES):
        raise _Mistake("the scheme is unknown")
    scheme, _, rest = url.partition("://")
    plain, _, named = scheme.partition("+")
    kind: Kind = "sentinel" if named == "sentinel" else "cluster" if named else "server"
    where, _, query = rest.partition("?")
    authority, _, path = where.partition("/")
    credentials, _, hosts = authority.rpartition("@")
    parameters = {parameter.partition("=")[0] for parameter in query.split("&")} if query else set()
    if parameters - _PARAMETERS:
        raise _Mistake("it has an unknown parameter")
    service = ""
    if kind == "sentinel":
        service, _, path = path.partition("/")
        if not service:
            raise _Mistake("a Sentinel URL needs the name of its service")
    if plain == "unix" and (hosts or not path):
        raise _Mistake("a Unix socket needs an absolute path")
    if kind == "server" and "," in hosts:
        raise _Mistake("several hosts need redis+sentinel:// or redis+cluster://")

    found: list[dict[str, Any]] = [
        dict(parse_url(f"{plain}://{host}/{path}?{query}")) for host in hosts.split(",")
    ]
    given = found[0]
    if plain == "unix":
        endpoints: tuple[Endpoint, ...] = (Endpoint(given["path"], 0),)
        path = ""
    elif all("host" in each for each in found):
        default_port = SENTINEL_PORT if kind == "sentinel" else REDIS_PORT
        endpoints = tuple(Endpoint(each["host"], each.get("port", default_port)) for each in found)
    else:
        raise _Mistake("it names no host")
    number = parsed_whole(str(given.get("db", 0)) if "db" in parameters else path or "0", COUNT_MAX)
    if number is None or (kind == "cluster" and number):
        raise _Mistake("the database is no number, or not 0 in a cluster")
    user, _, password = map(unquote, credentials.partition(":"))
    return RedisAddress(
        kind,
        endpoints,
        unquote(service),
        {"username": given.get("username", user), "password": given.get("password", password), "db": number},
        {
            "username": given.get("sentinel_username", ""),
            "password": given.get("sentinel_password", ""),
        },
        _tls(given) if plain == "rediss" else None,
    )


def _tls(given: Mapping[str, Any]) -> ssl.SSLContext:
    """Build the context that redis-py would, but trust the given authorities only."""
    context = ssl.create_default_context(cafile=given.get("ssl_ca_certs"))
    verified = given.get("ssl_cert_reqs") != "none"
    context.check_hostname = verified and given.get("ssl_check_hostname", True)
    if not verified:
        context.verify_mode = ssl.CERT_NONE
    if "ssl_certfile" in given:
        context.load_cert_chain(given["ssl_certfile"], given.get("ssl_keyfile"))
    return context
