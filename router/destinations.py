"""Guard of outgoing connections: hosts and addresses that the gateway connects to.

    a URL from outside ──its host as written──> refused (400), or added ──each connection: the addresses
    it resolves to──> refused (the worker is unreachable), or connected to that very address

The admin API, discovery and encoders that register themselves name URLs. Without a guard they could make the
gateway read a cloud's metadata service (`ALWAYS_REFUSED`) and show its answer. So the gateway checks the name
when it arrives and the addresses at each connection, and connects to the address that it checked, which
defeats DNS rebinding.

Hosts in the settings (``fleet.worker_urls`` and the like) are the operator's will and not checked. Without
``fleet.worker_networks`` private addresses are allowed, since engines live there.

The same settings name the workers that get the fleet's key (`Destinations.entrusts`).

Engines connect to bootstrap servers without this guard. So with ``fleet.worker_networks`` such a name must be
in ``fleet.worker_hosts`` (`Destinations.check_engine_host`).
"""

import functools
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable

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
"""Networks without engines, refused unless ``fleet.worker_networks`` contains them."""

_ENDING_IN_IPV4 = tuple(
    ipaddress.IPv6Network(text)
    for text in (
        "64:ff9b::/96",  # RFC 6052: NAT64
        "::ffff:0:0:0/96",  # RFC 2765: IPv4-translated
        "::/96",  # RFC 4291, 2.5.5.1: IPv4-compatible
    )
)
"""Networks of IPv6 addresses whose last 32 bits are the IPv4 address that they stand for."""

_LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")  # RFC 8215: with a prefix of any length of RFC 6052
_ISATAP = frozenset((0x00005EFE, 0x02005EFE))  # RFC 5214, 6.1: in front of the last 32 bits
_THIS_NETWORK = ipaddress.IPv4Network("0.0.0.0/8")

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Finds the addresses that a connection to a host and port may be made to, at least one."""


class DestinationRefused(OSError):
    """A name has only addresses that the gateway does not connect to."""


class Destinations:
    """Checks hosts and their addresses.

    Args:
        networks: Networks of workers; empty for all but `ALWAYS_REFUSED`.
        hosts: Names of workers, or their ends if they begin with a dot; empty for any. With it, addresses are
            refused unless ``networks`` has them.
        loopback: True if workers may be on this machine.
        named: Hosts in the settings, which are not checked.
        keyed: True if workers are shown a key (see `entrusts`).
    """

    def __init__(
        self,
        networks: Iterable[str] = (),
        hosts: Iterable[str] = (),
        *,
        loopback: bool = True,
        named: Iterable[str] = (),
        keyed: bool = False,
    ) -> None:
        self._networks = tuple(ipaddress.ip_network(text) for text in networks)
        self._hosts = tuple(host.lower() for host in hosts)
        self._loopback = loopback
        self._named = frozenset(host.lower() for host in named)
        self._keyed = keyed
        self._lookups = Lookups()

    def check_host(self, host: str) -> None:
        """Check a name or an address as written, without a lookup; raise ClientError if it is not allowed."""
        host = host.strip("[]").lower()
        if host in self._named:
            return
        address = _literal(host)
        if address is None:
            allowed = not self._hosts or self._lists(host)
        else:
            allowed = self._allows(address) and (not self._hosts or bool(self._networks))
        if not allowed:
            raise ClientError(
                f"{host[:260]!r} is not allowed for workers; see fleet.worker_networks and "
                "fleet.worker_hosts.",
                code="worker_host_refused",
                param="url",
            )

    def check_engine_host(self, host: str) -> None:
        """Check a host that engines connect to by themselves; raise ClientError if they may not."""
        self.check_host(host)
        bare = host.strip("[]").lower()
        if self._networks and bare not in self._named and _literal(bare) is None and not self._lists(bare):
            raise ClientError(
                f"{host[:260]!r} is a name that engines would resolve, and may be outside of "
                "fleet.worker_networks; give an address, or name it in fleet.worker_hosts.",
                code="worker_host_refused",
                param="bootstrap_host",
            )

    def entrusts(self, host: str) -> bool:
        """Return True if ``fleet.worker_hosts`` or ``fleet.worker_networks`` contain a host.

        A name counts as in the networks, since connections to it go to addresses in them alone.
        """
        host = host.strip("[]").lower()
        address = _literal(host)
        if address is not None:
            return self._is_in_networks(address)
        if self._hosts:
            return self._lists(host)
        return self._is_confined(host)

    async def resolve(self, host: str, port: int) -> list[str]:
        """Return a host's allowed addresses, in order; raise DestinationRefused if there is none."""
        literal = _literal(host)
        addresses = [str(literal)] if literal is not None else await self._lookups.find(host, port)
        if host.lower() in self._named:
            return addresses
        judge = self._is_in_networks if self._is_confined(host.lower()) else self._allows
        allowed = [address for address in addresses if judge(ipaddress.ip_address(address))]
        if not allowed:
            raise DestinationRefused(f"{host} is at {', '.join(addresses[:3])}, where no workers may be")
        return allowed

    def forget_lookups(self) -> None:
        """Wait for no lookup any more that is under way."""
        self._lookups = Lookups()

    def _allows(self, address: Address) -> bool:
        return all(map(self._allows_plain, _unwrapped(address)))

    def _allows_plain(self, address: Address) -> bool:
        if address.is_loopback:
            return self._loopback
        if self._networks:
            return any(address in network for network in self._networks)
        return not any(address in network for network in ALWAYS_REFUSED)

    def _is_in_networks(self, address: Address) -> bool:
        return self._allows(address) and all(
            any(plain in network for network in self._networks) for plain in _unwrapped(address)
        )

    def _is_confined(self, host: str) -> bool:
        """Return True if a host is a name that leads into the networks only, not even to this machine."""
        return (
            self._keyed
            and bool(self._networks)
            and host not in self._named
            and host.removesuffix(".") != "localhost"
            and _literal(host) is None
        )

    def _lists(self, host: str) -> bool:
        return any(_is_or_ends_with(host, end) for end in self._hosts)


@functools.lru_cache(maxsize=16_384)
def _literal(host: str) -> Address | None:
    """Return the address that a host is; None if it is a name.

    Resolvers also take IPv4 addresses as ``2852039166`` or ``0xa9.254.43518``, and some take a dot at the
    end.
    """
    host = host.rstrip(".")
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except (OSError, UnicodeError):
        return None


def _unwrapped(address: Address) -> tuple[Address, ...]:
    """Return the IPv4 addresses that an IPv6 address may stand for; else itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return (address,)
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    if address.sixtofour is not None:
        return (address.sixtofour,)
    if address.teredo is not None:
        return address.teredo  # the server that relays, and the client behind it
    if address in _LOCAL_NAT64:
        return _of_local_nat64(int(address))
    low, above = int(address) & 0xFFFFFFFF, int(address) >> 32 & 0xFFFFFFFF
    if above in _ISATAP:
        return (address, ipaddress.IPv4Address(low))
    if low > 1 and any(address in network for network in _ENDING_IN_IPV4):
        return (ipaddress.IPv4Address(low),)
    return (address,)


def _of_local_nat64(bits: int) -> tuple[ipaddress.IPv4Address, ...]:
    """Return the IPv4 addresses in one of `_LOCAL_NAT64`, for each length of its prefix (RFC 6052, 2.2).

    A reading that begins with zeros is the rest of a longer prefix, unless all readings do.
    """
    without_u = bits >> 64 << 56 | bits & (1 << 56) - 1
    found = {ipaddress.IPv4Address(without_u >> (120 - length - 32) & 0xFFFFFFFF) for length in (48, 56, 64)}
    found.add(ipaddress.IPv4Address(bits & 0xFFFFFFFF))
    return tuple(sorted(address for address in found if address not in _THIS_NETWORK)) or tuple(found)


def _is_or_ends_with(host: str, end: str) -> bool:
    host = host.removesuffix(".")
    return host.endswith(end) if end.startswith(".") else host == end
