"""Access to the admin API, and to the registration of encoders.

    tokens file  gateway's key  presented            may administer
    yes          any            a token of the file  read, or write, as its role says
    no           yes            the gateway's key    everything (see `router.tenants.door`)
    no           no             anything             everything: the API is open

GET, HEAD and `READING_POSTS` need the role *read*, all else *write*.

Encoders register themselves on the data port, which changes the fleet. They need a token of the role *write*,
or the gateway's key, if a token, the gateway's key or keys of tenants are configured.

An open API is still closed to web pages of other sites, which an operator's browser could send changes for.
So requests that a browser sends for another site are refused, and the name in ``Host`` must be an address,
``localhost``, or one of ``admin.allowed_hosts``: against DNS rebinding, a page whose own name leads to this
machine. Encoders may call this machine by any name: they are no browsers, and send neither ``Origin`` nor
``Sec-Fetch-Site``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from router.errors import ClientError, InvalidKey
from router.proxy import Header
from router.tenants import AccessRole, Door, TokensWatch, presented_key

READING_POSTS = frozenset(("/explain",))
"""Questions that are too long for a URL."""

ANONYMOUS_ACTOR = "anonymous"
KEY_HOLDER = "api_key"


@dataclass(frozen=True, slots=True)
class Actor:
    """Author of a request: a name for the audit, and a role."""

    name: str
    role: AccessRole


class Access:
    """Decides whether a request is allowed.

    Args:
        door: Holds the gateway's own key.
        tokens: Those of the tokens file; None without one.
        hosts: Names by which browsers may call an open API, beside addresses and ``localhost``; with a dot in
            front the end of a name.
    """

    def __init__(self, door: Door, tokens: TokensWatch | None = None, hosts: Iterable[str] = ()) -> None:
        self._door = door
        self._tokens = tokens
        self._hosts = tuple(host.lower() for host in hosts)

    def actor(self, headers: Sequence[Header], *, registers: bool = False) -> Actor:
        """Return the author of a request.

        A route that ``registers`` encoders also takes the gateway's key. Raise InvalidKey without a valid
        key or token, ClientError for a tenant's.
        """
        actor = self._known(headers)
        if actor is None and registers and not self._door.is_open and self._door.is_admin(headers):
            actor = Actor(KEY_HOLDER, "write")
        if actor is None:
            if self._door.is_tenant(headers):
                raise ClientError(
                    "This key is a tenant's; one of an administrator is needed here.",
                    code="admin_only",
                    status=403,
                )
            raise InvalidKey(presented=presented_key(headers) is not None)
        return actor

    def is_known(self, headers: Sequence[Header]) -> bool:
        """Return True if a request carries an administrator's key or token, or the API is open."""
        return self._known(headers) is not None

    def check(
        self, actor: Actor, method: str, path: str, headers: Sequence[Header], *, registers: bool = False
    ) -> None:
        """Check that an actor may send a request; raise ClientError if not.

        The path is without ``/admin``; ``registers`` is True for a route of encoders.
        """
        writes = needed_role(method, path) == "write"
        if writes and actor.role != "write":
            raise ClientError(
                f"{actor.name} may only read; {method} {path} needs a token with the role write.",
                code="read_only",
                status=403,
            )
        if actor.name != ANONYMOUS_ACTOR:
            return
        if not (registers and _is_no_browser(headers)) and not self._knows_host(headers):
            raise ClientError(
                "Without a key the admin API is called by an address or as localhost. Name the host in "
                "admin.allowed_hosts, or ask for a key (admin.tokens_file, server.api_key).",
                code="other_host",
                status=403,
            )
        if _of_another_site(headers, writes=writes):
            raise ClientError(
                "A browser sent this for another site; without a key only pages of this gateway may.",
                code="other_site",
                status=403,
            )

    def _knows_host(self, headers: Sequence[Header]) -> bool:
        """Return True if the request names this gateway in a way that no page of another site can."""
        hosts = [value for name, value in headers if name == b"host"]
        return bool(hosts) and all(self._is_ours(host.decode("latin-1").strip().lower()) for host in hosts)

    def _is_ours(self, authority: str) -> bool:
        host, colon, port = authority.rpartition(":")
        if not colon or not (port.isascii() and port.isdigit()):
            host = authority
        if host == "localhost" or _is_address(host):
            return True
        return any(host.endswith(name) if name.startswith(".") else host == name for name in self._hosts)

    def _known(self, headers: Sequence[Header]) -> Actor | None:
        if self._tokens is not None:
            token = presented_key(headers)
            holder = None if token is None else self._tokens.holder(token)
            return None if holder is None else Actor(holder.name, holder.role)
        if not self._door.is_admin(headers):
            return None
        return Actor(ANONYMOUS_ACTOR if self._door.is_open else KEY_HOLDER, "write")


def needed_role(method: str, path: str) -> AccessRole:
    """Return the role that a route needs."""
    return "read" if method in ("GET", "HEAD") or (method, path) in _READING else "write"


_READING = frozenset(("POST", path) for path in READING_POSTS)


def _of_another_site(headers: Sequence[Header], *, writes: bool) -> bool:
    """Return True if a browser sends this for a page of another site."""
    fields = dict(headers)
    origin = fields.get(b"origin")
    if origin is not None and origin.partition(b"://")[2] != fields.get(b"host"):
        return True
    return writes and fields.get(b"sec-fetch-site", b"none").strip().lower() not in _OF_THIS_SITE


_OF_THIS_SITE = frozenset((b"none", b"same-origin"))
"""``Sec-Fetch-Site`` of typed addresses and of our own pages (W3C Fetch Metadata, section 2.4)."""


def _is_no_browser(headers: Sequence[Header]) -> bool:
    """Return True if a changing request comes from no page: browsers name its origin."""
    return not any(name in (b"origin", b"sec-fetch-site") for name, _ in headers)


def _is_address(host: str) -> bool:
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
