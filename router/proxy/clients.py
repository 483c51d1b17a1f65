"""Connections and requests of clients at this process, by address.

    a connection ──room for one more of its client?──no──> closed at once, counted
        └──room for it?──no──> an idle one is closed for it, counted; closed at once if there is none
    a request's head ──does its client's rate allow one more?──no──> 429 with Retry-After, and closed

A client is an IPv4 address or the /64 of an IPv6 address, as a household has. ``x-forwarded-for`` counts only
from a peer in ``trusted_proxies``: from the right, past other trusted proxies. The rate is a token bucket,
stored as the time when it will be full again (the generic cell rate algorithm, ITU-T I.371); forgetting the
client that asked least recently gives away one burst.
"""

import ipaddress
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from policies import setting
from router.errors import RequestRejected
from router.proxy.ports import Header
from router.values import Networks

logger = logging.getLogger(__name__)

BUCKETS_MAX = 65_536
"""Clients with a stored rate; 10 MB at most."""

FORWARDED_MAX = 16
"""Addresses of ``x-forwarded-for`` that are read, from the right."""

LOG_S = 60.0
"""Seconds between two log lines about refusals for the same reason."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Refusal(StrEnum):
    """Reason to refuse a client before its request is read.

    ``IDLE``: a connection that was let in is closed for another one.
    """

    CONNECTIONS = "connections"
    IDLE = "idle"
    CONNECTIONS_PER_CLIENT = "connections_per_client"
    REQUESTS_PER_CLIENT = "requests_per_client"
    HELD_BYTES = "held_bytes"


@dataclass(frozen=True)
class ClientQuota:
    """Limits of clients at one process; 0 turns a limit off."""

    connections_max: int = setting(
        0,
        "Client connections that one process has open at a time. For one more, the oldest connection without "
        "a request under way is closed; if there is none, the new one is, so that a load balancer tries "
        "another replica. 0: half the files that the process may have open, since a request in flight takes "
        "one at a worker, too; never more than that. The admin and metrics listeners have bounds of their "
        "own, up to 256 connections each.",
        ge=0,
        live=True,
    )
    connections_per_client_max: int = setting(
        0,
        "Connections that one client address (of IPv6, its /64) may have at one process; more are closed as "
        "they are made. 0 turns the limit off, which is the default because behind a load balancer all "
        "clients have its address.",
        ge=0,
        live=True,
    )
    requests_per_client_per_s: float = setting(
        0.0,
        "Requests per second that one client address may keep up at one process; more get 429. It is for "
        "floods, and counts every request to this port; what tenants may use is said in tenancy.keys_file. "
        "0 turns the limit off, which is the default for the same reason.",
        ge=0,
        live=True,
    )
    requests_per_client_burst: int = setting(
        20, "Requests that such a client may send at once after a pause.", ge=1, le=100_000, live=True
    )
    trusted_proxies: Networks = setting(
        (),
        "Networks of load balancers and proxies whose x-forwarded-for is believed: limits per client, logs "
        "and audit lines then mean the client's address. They are not limited themselves. Of everybody else "
        "the header is ignored.",
        allowed="networks such as 10.0.0.0/8 or fd00::/8",
    )


@dataclass(slots=True, eq=False)
class Client:
    """The peer of a connection; its limits are counted by `key`. A trusted one forwards for others."""

    key: str
    trusted: bool


class Clients:
    """Connection and request counts of one process. For use from the event loop's thread.

    `refused` is called on each refusal; `files_max` bounds the connections, unless it is 0.
    """

    def __init__(
        self,
        quota: ClientQuota,
        now_s: Callable[[], float],
        refused: Callable[[Refusal], None],
        files_max: int = 0,
    ) -> None:
        self.connections = 0
        self._now_s = now_s
        self._refused = refused
        self._files_max = files_max
        self._trusted = tuple(ipaddress.ip_network(network) for network in quota.trusted_proxies)
        self._counts: Counter[str] = Counter()
        self._full_s: dict[str, float] = {}
        self._logged_s: dict[Refusal, float] = {}
        self.use(quota)

    def use(self, quota: ClientQuota) -> None:
        """Apply other limits, but not other trusted proxies; connected clients stay."""
        self._quota = quota
        self.connections_max = quota.connections_max
        if self._files_max:
            self.connections_max = min(quota.connections_max or self._files_max, self._files_max)
        self.watches_requests = quota.requests_per_client_per_s > 0 or bool(self._trusted)
        self._interval_s = 1 / quota.requests_per_client_per_s if quota.requests_per_client_per_s else 0.0
        self._burst_s = (quota.requests_per_client_burst - 1) * self._interval_s

    def enter(self, peer: str, make_room: Callable[[], bool] = lambda: False) -> Client | None:
        """Count a new connection of a peer; return None to have it closed without `leave`.

        `make_room` makes another connection `leave`, or returns False. A Unix socket's peer is empty.
        """
        quota = self._quota
        client = self._client(peer)
        counted = client.key and not client.trusted
        if counted and 0 < quota.connections_per_client_max <= self._counts[client.key]:
            self.refuse(Refusal.CONNECTIONS_PER_CLIENT, peer)
            return None
        while 0 < self.connections_max <= self.connections:
            if not make_room():
                self.refuse(Refusal.CONNECTIONS, peer)
                return None
            self.refuse(Refusal.IDLE, peer)
        if counted:
            self._counts[client.key] += 1
        self.connections += 1
        return client

    def leave(self, client: Client) -> None:
        """Count out a connection that `enter` let in."""
        self.connections -= 1
        if client.key and not client.trusted:
            left = self._counts[client.key] - 1
            if left:
                self._counts[client.key] = left
            else:
                del self._counts[client.key]

    def forwarded_for(self, client: Client, headers: Iterable[Header]) -> str:
        """Return the address for which a trusted proxy asks, or an empty string."""
        if not client.trusted:
            return ""
        lines = [value for name, value in headers if name == b"x-forwarded-for"]
        found = ""
        for text in reversed(b",".join(lines).decode("latin-1").split(",")[-FORWARDED_MAX:]):
            address = _address(text)
            if address is None:
                break
            found = str(address)
            if not self._is_trusted(address):
                break
        return found

    def take(self, client: Client, forwarded_for: str) -> None:
        """Count a request; raise `RequestRejected` beyond its client's rate."""
        if not self._interval_s:
            return
        if client.trusted:
            address = _address(forwarded_for)
            if address is None:
                return
            key = _key(address)
        else:
            key = client.key
        if not key:
            return
        now_s = self._now_s()
        full_s = max(self._full_s.pop(key, 0.0), now_s)
        ahead_s = full_s - now_s - self._burst_s
        # Rounding must not cost the last request of a burst.
        if ahead_s > 1e-9:
            self._full_s[key] = full_s
            self.refuse(Refusal.REQUESTS_PER_CLIENT, forwarded_for or key)
            rate_per_s = self._quota.requests_per_client_per_s
            raise RequestRejected(
                f"More than {rate_per_s:g} requests per second come from this address.",
                retry_after_s=ahead_s,
                code="client_rate_limit_exceeded",
            )
        self._full_s[key] = full_s + self._interval_s
        if len(self._full_s) > BUCKETS_MAX:
            del self._full_s[next(iter(self._full_s))]

    def _client(self, peer: str) -> Client:
        address = _address(peer)
        if address is None:
            return _ANYBODY
        return Client(_key(address), trusted=self._is_trusted(address))

    def _is_trusted(self, address: Address) -> bool:
        return any(address in network for network in self._trusted)

    def refuse(self, why: Refusal, peer: str = "") -> None:
        """Count a refusal, and log it now and then."""
        self._refused(why)
        now_s = self._now_s()
        if now_s - self._logged_s.get(why, -LOG_S) >= LOG_S:
            self._logged_s[why] = now_s
            logger.warning(
                "clients are refused; a metric counts them",
                extra={"event": "clients.refused", "reason": why.value, "client": peer},
            )


_ANYBODY = Client("", trusted=False)
"""A client without an address: limits per client do not apply."""


def _address(text: str) -> Address | None:
    """Parse an address of a peer or proxy, perhaps with port or zone; None if malformed."""
    text = text.strip().partition("%")[0]
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return (address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None) or address


def _key(address: Address) -> str:
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(ipaddress.IPv6Address(int(address) >> 64 << 64))
