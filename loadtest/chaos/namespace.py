"""A network namespace for the whole run, in which cables can be laid; it ends with its last process.

A process with threads cannot move into one, so it runs itself again under ``unshare``: as root, or in a user
namespace where the system allows that.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from loadtest.chaos.cable import ip
from loadtest.chaos.testbed import INNER_HOST

INSIDE_FLAG = "--inside"
TUN = Path("/dev/net/tun")

_AS_ROOT = ("unshare", "--net")
_AS_ANYBODY = ("unshare", "--user", "--map-root-user", "--net")
_PROBE = ("ip", "tuntap", "add", "dev", "probe", "mode", "tun")


def way_in() -> Sequence[str] | None:
    """The command that runs another in a namespace where cables can be laid; None if there is none."""
    if any(shutil.which(tool) is None for tool in ("unshare", "nsenter", "ip")) or not TUN.exists():
        return None
    for way in (_AS_ROOT, _AS_ANYBODY):
        tried = subprocess.run((*way, *_PROBE), capture_output=True, check=False)  # noqa: S603 - our own words
        if tried.returncode == 0:
            return way
    return None


def go_inside(way: Sequence[str], arguments: Sequence[str]) -> None:
    """Run the chaos suite again, inside; it does not return."""
    os.execvp(way[0], (*way, sys.executable, "-m", "loadtest.chaos", INSIDE_FLAG, *arguments))  # noqa: S606


def furnish() -> None:
    """Give the namespace a loopback device, with an address that replicas reach by their cables."""
    ip("link", "set", "lo", "up")
    ip("address", "add", f"{INNER_HOST}/32", "dev", "lo")
