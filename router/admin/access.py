"""Who may use the admin API, and who may register encoders.

    tokens file  gateway's key  presented            may administer
    yes          any            a token of the file  read, or write, as its role says
    no           yes            the gateway's key    everything (see `router.tenants.door`)
    no           no             anything             everything: nobody was to be kept out

What only reads needs the role *read*: GET, HEAD, and those of `READING_POSTS`. All else needs *write*.

Encoders register themselves on the data port, which changes the fleet, too. They need a token of the role
*write*, or the gateway's key, wherever a token, the gateway's key or keys of tenants are configured.

Where nobody is asked for a key, a web page that an operator looks at could still send changes to this
machine's admin API in the background. So what a browser sends on behalf of another site is refused, there.
A page may also have its own name lead to this machine (DNS rebinding); browsers then take both for one site.
So the name in ``Host`` must be an address, ``localhost``, or one of ``admin.allowed_hosts``, which no page of
another site can have. Encoders may call this machine by any name, as they are no browsers, and send neither
``Origin`` nor ``Sec-Fetch-Site``.
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
    """Who asks.

    Attributes:
        name: For the audit.
        role: What they may do.
    """

    name: str
    role: AccessRole


class Access:
    """Decides who may do what.

    Args:
        door: Knows the gateway's own key.
        tokens: Knows those of the tokens file; None without one.
        hosts: Names by which browsers may call the admin API where it asks for no key, beside addresses and
            ``localhost``; with a dot in front the end of a name.
    """

    def __init__(self, door: Door, tokens: TokensWatch | None = None, hosts: Iterable[str] = ()) -> None:
        self._door = door
        self._tokens = tokens
        self._hosts = tuple(host.lower() for host in hosts)

    def actor(self, headers: Sequence[Header], *, registers: bool = False) -> Actor:
        """Who asks.

        Args:
            headers: Of the request, names in lower case.
            registers: Whether it asks for a route of encoders, for which the gateway's key is enough.

        Raises:
            InvalidKey: If nobody knows who it is.
            ClientError: If it is a tenant.
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

    def check(
        self, actor: Actor, method: str, path: str, headers: Sequence[Header], *, registers: bool = False
    ) -> None:
        """See whether somebody may do what they ask for.

        Args:
            actor: Who.
            method: Of the request.
            path: Its path, without ``/admin``.
            headers: Its headers, names in lower case.
            registers: Whether the route is one of encoders.

        Raises:
            ClientError: If they may not.
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
        """Whether the request calls this gateway by a name that no page of another site can have."""
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
    """What a route needs."""
    return "read" if method in ("GET", "HEAD") or (method, path) in _READING else "write"


_READING = frozenset(("POST", path) for path in READING_POSTS)


def _of_another_site(headers: Sequence[Header], *, writes: bool) -> bool:
    """Whether a browser sends this for a page that did not come from here."""
    said = dict(headers)
    origin = said.get(b"origin")
    if origin is not None and origin.partition(b"://")[2] != said.get(b"host"):
        return True
    return writes and said.get(b"sec-fetch-site", b"none").strip().lower() not in _OF_THIS_SITE


_OF_THIS_SITE = frozenset((b"none", b"same-origin"))
"""``Sec-Fetch-Site`` of what a person typed, or a page of ours sent (W3C Fetch Metadata, section 2.4)."""


def _is_no_browser(headers: Sequence[Header]) -> bool:
    """Whether a request that changes something comes from no page: browsers name its origin."""
    return not any(name in (b"origin", b"sec-fetch-site") for name, _ in headers)


def _is_address(host: str) -> bool:
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
