"""Where the gateway may connect to: the guard against being sent to places of somebody else's choosing.

    a URL from outside ──its host as written──> refused (400), or added ──each connection: the addresses
    it resolves to──> refused (the worker is unreachable), or connected to that very address

URLs come in by the admin API, by encoders that register themselves, and by discovery. Whoever may name
one could otherwise have the gateway read a cloud's metadata service (`ALWAYS_REFUSED`) and show what it
says. So the name is judged when it comes, and its addresses whenever a connection is made, which goes
to the address that was judged: a name that changes its mind in between (DNS rebinding) gains nothing.

What the settings themselves name (``fleet.worker_urls`` and the like) is the operator's will and not judged.
Without ``fleet.worker_networks`` private addresses are allowed, since engines live there; a gateway that
others may add workers to should name its networks.
"""

import functools
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable
from urllib.parse import urlsplit

from router.errors import ClientError
from router.lookups import Lookups

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

ALWAYS_REFUSED: tuple[Network, ...] = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8",  # RFC 1122: "this host"; Linux takes 0.0.0.0 for itself
        "169.254.0.0/16",  # RFC 3927: link-local; metadata of AWS, Azure, GCP, OpenStack
        "100.100.100.200/32",  # metadata of Alibaba Cloud
        "168.63.129.16/32",  # Azure's WireServer
        "192.0.0.192/32",  # metadata of Oracle Cloud's older hosts
        "224.0.0.0/3",  # RFC 5771 multicast, RFC 1112 reserved, broadcast
        "::/128",
        "fe80::/10",  # RFC 4291: link-local
        "ff00::/8",  # multicast
        "fd00:ec2::/32",  # metadata of AWS over IPv6 (fd00:ec2::254) and its other instance services
        "fd20:ce::254/128",  # metadata of GCP over IPv6
    )
)
"""Where no engine is, unless ``fleet.worker_networks`` says so."""

_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052: the last 32 bits are an IPv4 address
_COMPATIBLE = ipaddress.IPv6Network("::/96")  # RFC 4291, 2.5.5.1: likewise

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Finds the addresses that a connection to a host and port may be made to, at least one."""


class DestinationRefused(OSError):
    """A name has only addresses that the gateway does not connect to."""


class Destinations:
    """Judges hosts and their addresses.

    Args:
        networks: Where workers may be; empty for everywhere but `ALWAYS_REFUSED`.
        hosts: Ends of the names that workers may have, such as ``.engines.svc``; a name without a dot in
            front is meant whole. Empty for any. With it addresses are refused unless ``networks`` has them.
        loopback: Whether workers may be on this machine.
        named: Hosts that the settings name; they are not judged.
    """

    def __init__(
        self,
        networks: Iterable[str] = (),
        hosts: Iterable[str] = (),
        *,
        loopback: bool = True,
        named: Iterable[str] = (),
    ) -> None:
        self._networks = tuple(ipaddress.ip_network(text) for text in networks)
        self._hosts = tuple(host.lower() for host in hosts)
        self._loopback = loopback
        self._named = frozenset(host.lower() for host in named)
        self._lookups = Lookups()

    def check_url(self, url: str) -> None:
        """Judge the host of a URL as it is written; nothing is resolved.

        Raises:
            ClientError: The gateway does not connect there.
        """
        self.check_host(urlsplit(url).hostname or "")

    def check_host(self, host: str) -> None:
        """Judge a name or an address as it is written; nothing is resolved.

        Raises:
            ClientError: The gateway does not connect there.
        """
        host = host.strip("[]").lower()
        if host in self._named:
            return
        address = _literal(host)
        if address is None:
            allowed = not self._hosts or any(_is_or_ends_with(host, end) for end in self._hosts)
        else:
            allowed = self._allows(address) and (not self._hosts or bool(self._networks))
        if not allowed:
            raise ClientError(
                f"{host[:260]!r} is no place where workers may be; see fleet.worker_networks and "
                "fleet.worker_hosts.",
                code="worker_host_refused",
                param="url",
            )

    async def resolve(self, host: str, port: int) -> list[str]:
        """Find the addresses to connect to, in the resolver's order; those that are not allowed are left out.

        Raises:
            DestinationRefused: None is left.
            OSError: The name cannot be resolved.
        """
        literal = _literal(host)
        addresses = [str(literal)] if literal is not None else await self._lookups.find(host, port)
        if host.lower() in self._named:
            return addresses
        allowed = [address for address in addresses if self._allows(ipaddress.ip_address(address))]
        if not allowed:
            raise DestinationRefused(f"{host} is at {', '.join(addresses[:3])}, where no workers may be")
        return allowed

    def forget_lookups(self) -> None:
        """Wait for no lookup any more that is under way."""
        self._lookups = Lookups()

    def _allows(self, address: Address) -> bool:
        address = _unwrapped(address)
        if address.is_loopback:
            return self._loopback
        if self._networks:
            return any(address in network for network in self._networks)
        return not any(address in network for network in ALWAYS_REFUSED)


@functools.lru_cache(maxsize=16_384)
def _literal(host: str) -> Address | None:
    """The address that a host is; None if it is a name.

    Resolvers take more forms of IPv4 addresses than people write (``2852039166``, ``0xa9.254.43518``).
    """
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except OSError:
        return None


def _unwrapped(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for, if it does."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    low = int(address) & 0xFFFFFFFF
    if address in _TRANSLATED or (address in _COMPATIBLE and low > 1):
        return ipaddress.IPv4Address(low)
    return address


def _is_or_ends_with(host: str, end: str) -> bool:
    host = host.removesuffix(".")
    return host.endswith(end) if end.startswith(".") else host == end
