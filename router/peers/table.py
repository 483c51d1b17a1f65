"""All flags of other routers, by name."""

from collections.abc import Mapping
from types import MappingProxyType

from router.peers import others, routers
from router.peers.rows import PeerFlag, rows, taken

FLAGS: Mapping[str, PeerFlag] = MappingProxyType(
    {
        row.flag: row
        for row in (
            *taken(routers.TAKEN),
            *rows(routers.ACCEPTED, "accepted"),
            *rows(routers.REFUSED, "refused"),
            *routers.SPECIAL,
        )
    }
)
"""Flags of the routers whose command lines are taken as they are."""

ANSWERS: Mapping[str, PeerFlag] = MappingProxyType(
    {row.flag: row for row in rows(others.REFUSED, "refused") if row.flag not in FLAGS}
)
"""Flags of the other routers; those that `FLAGS` has as well mean the same there."""
