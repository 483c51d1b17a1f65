"""How many files this process may have open: each connection is one.

A stream takes two, its client's connection and its worker's. The system gives a process a soft limit, 1024
on most, and a hard one up to which the process may raise it, often half a million. The low soft limit
protects programs that use ``select``, which we do not, so we take what there is. Child processes inherit it.

At the limit clients are dropped as they come, and healthy workers look unreachable. So a process takes on no
more requests than it has files for, and a limit that does not fit the settings is told at the start.
"""

import contextlib
import logging
import resource
import sys

logger = logging.getLogger(__name__)

OTHER_FILES = 256
"""For all that is neither a request nor a health check: Redis, other questions to workers (128 at a time),
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


def raise_open_files(connections_max: int) -> int:
    """Raise the limit as far as the system lets us, and say so; warn if that is too low.

    Args:
        connections_max: Most connections to one worker. To be used, all of them need as many clients.

    Returns:
        For how many requests at a time there are files, at least 1.
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
        return sys.maxsize
    others = OTHER_FILES + probes_max()
    needed = 2 * connections_max + others
    if limit < needed:
        logger.warning(
            "the limit of open files is too low for the connections that the settings allow to one worker; "
            "raise it (ulimit -Hn, LimitNOFILE) or lower upstream.connections_max",
            extra={"event": "files.scarce", "limit": limit, "needed": needed},
        )
    return max((limit - others) // 2, 1)
