"""Limit of open files: each connection is one.

A stream takes two, its client's and its worker's. The soft limit is 1024 on most systems, the hard limit
often half a million. The low soft limit protects programs that use ``select``, which we do not, so the
process raises it to the hard one. Child processes inherit it.

At the limit clients are dropped and healthy workers look unreachable. So a process takes on no more requests
than it has files for, and warns at the start if the limit does not fit the settings.

    limit = OTHER_FILES + each further listener's connections + 2 x clients' connections to the data port

A further listener (admin, metrics) has a share of its own, so a crowd at one port takes no file from another.
"""

import contextlib
import logging
import resource
import sys
from dataclasses import dataclass

logger = logging.getLogger(__name__)

OTHER_FILES = 256
"""Files for uses beside requests and health checks: Redis, other questions to workers (128 at a time),
metrics files, sockets that listen."""

PROBES_MAX = 2048
PROBES_SHARE = 8
"""Health checks at a time: an eighth of the files, and no more than that many. Each has a connection, and of
a worker that does not answer for as long as `fleet.health_check_timeout_s`."""


def probes_max() -> int:
    """Return for how many health checks at a time there are files, at least 32."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return PROBES_MAX
    return max(min(limit // PROBES_SHARE, PROBES_MAX), 32)


LISTENER_CONNECTIONS_MAX = 256
"""Connections at a time to a further listener: its clients are few."""

LISTENER_SHARE = 1 / 8
"""A further listener's share of the files, where there are few."""

LISTENER_CONNECTIONS_MIN = 4


@dataclass(frozen=True, slots=True)
class OpenFiles:
    """Bounds from the open files: requests at a time, >= 1, and connections to each further listener."""

    requests_max: int = sys.maxsize
    listener_connections_max: int = LISTENER_CONNECTIONS_MAX


UNLIMITED = OpenFiles()


def other_files(limit: int) -> int:
    """Return the number of files for all but requests: half of them at most."""
    return min(OTHER_FILES + probes_max(), limit // 2)


def raise_open_files(connections_max: int, listeners: int = 0) -> OpenFiles:
    """Raise the limit as far as the system allows; warn if it is below the needs of the settings.

    A worker's ``connections_max`` are used only with as many clients; ``listeners`` are those beside the
    data port.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # macOS calls its hard limit infinite and refuses that.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != soft:
        logger.info(
            "raised the limit of open files",
            extra={"event": "files.raised", "before": soft, "limit": limit},
        )
    if limit == resource.RLIM_INFINITY:
        return UNLIMITED
    others = other_files(limit)
    share = int((limit - others) * LISTENER_SHARE)
    each = max(LISTENER_CONNECTIONS_MIN, min(LISTENER_CONNECTIONS_MAX, share))
    needed = 2 * connections_max + others + listeners * each
    if limit < needed:
        logger.warning(
            "the limit of open files is too low for the connections that the settings allow to one worker; "
            "raise it (ulimit -Hn, LimitNOFILE) or lower upstream.connections_max",
            extra={"event": "files.scarce", "limit": limit, "needed": needed},
        )
    return OpenFiles(max((limit - others - listeners * each) // 2, 1), each)
