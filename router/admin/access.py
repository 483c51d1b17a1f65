"""Who may use the admin API.

    tokens file  gateway's key  presented            may
    yes          any            a token of the file  read, or write, as its role says
    no           yes            the gateway's key    everything (see `router.tenants.door`)
    no           no             anything             everything: nobody was to be kept out

What only reads needs the role *read*: GET, HEAD, and those of `READING_POSTS`. All else needs *write*.

Where nobody is asked for a key, a web page that an operator looks at could still send changes to this
machine's admin API in the background. So what a browser sends on behalf of another site is refused, there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

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
    """

    def __init__(self, door: Door, tokens: TokensWatch | None = None) -> None:
        self._door = door
        self._tokens = tokens

    def actor(self, headers: Sequence[Header]) -> Actor:
        """Who asks.

        Args:
            headers: Of the request, names in lower case.

        Raises:
            InvalidKey: If nobody knows who it is.
            ClientError: If it is a tenant.
        """
        actor = self._known(headers)
        if actor is None:
            if self._door.is_tenant(headers):
                raise ClientError(
                    "This key is a tenant's; one of an administrator is needed here.",
                    code="admin_only",
                    status=403,
                )
            raise InvalidKey(presented=presented_key(headers) is not None)
        return actor

    @staticmethod
    def check(actor: Actor, method: str, path: str, headers: Sequence[Header]) -> None:
        """See whether somebody may do what they ask for.

        Args:
            actor: Who.
            method: Of the request.
            path: Its path, without ``/admin``.
            headers: Its headers, names in lower case.

        Raises:
            ClientError: If they may not.
        """
        if needed_role(method, path) == "write" and actor.role != "write":
            raise ClientError(
                f"{actor.name} may only read; {method} {path} needs a token with the role write.",
                code="read_only",
                status=403,
            )
        if actor.name == ANONYMOUS_ACTOR and _of_another_site(headers):
            raise ClientError(
                "A browser sent this for another site; without a key only pages of this gateway may.",
                code="other_site",
                status=403,
            )

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


def _of_another_site(headers: Sequence[Header]) -> bool:
    """Whether a browser sends this for a page that did not come from here."""
    said = dict(headers)
    origin = said.get(b"origin")
    return origin is not None and origin.partition(b"://")[2] != said.get(b"host")
