"""CPU, memory and connections of a process and its descendants (proc(5)).

A process that ended leaves its CPU to its parent, so differences of `cpu_s` stay right when one of several is
replaced. Times are in ticks, mostly 10 ms: measure for seconds.
"""

import os
from collections.abc import Collection, Iterator
from pathlib import Path

PROC = Path("/proc")
_ESTABLISHED = "01"


def tree_of(pid: int) -> list[int]:
    """The process and all its descendants that are alive, itself first, children by age."""
    children: dict[int, list[int]] = {}
    for process in _pids():
        fields = _stat(process)
        if fields and fields[0] != "Z":
            children.setdefault(int(fields[1]), []).append(process)
    found = [pid]
    for process in found:
        found += sorted(children.get(process, ()))
    return found


def cpu_s(pids: Collection[int]) -> float:
    """CPU that processes have used, user and system, with that of their children that ended."""
    ticks = sum(sum(map(int, fields[11:15])) for pid in pids if (fields := _stat(pid)))
    return ticks / os.sysconf("SC_CLK_TCK")


def minor_faults(pid: int) -> int:
    """Pages that one process has faulted in without reading a file; 0 if it is gone."""
    fields = _stat(pid)
    return int(fields[7]) if fields else 0


def rss_bytes(pid: int) -> int:
    """Resident memory of one process; 0 if it is gone."""
    try:
        pages = int((PROC / str(pid) / "statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_rss_bytes(pid: int) -> int:
    """Largest resident memory that one process has had."""
    lines = (PROC / str(pid) / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024


def open_files(pid: int) -> int:
    """File descriptors that one process has open, sockets with them; 0 if it is gone."""
    try:
        return sum(1 for _ in (PROC / str(pid) / "fd").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return 0


def clients_of(pid: int, port: int) -> int:
    """Number of clients of a process on a TCP port of this host (IPv4)."""
    links = (_link(file) for file in (PROC / str(pid) / "fd").iterdir())
    inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
    served = 0
    for line in (PROC / "net" / "tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == _ESTABLISHED and fields[9] in inodes:
            served += int(fields[1].rpartition(":")[2], 16) == port
    return served


def _pids() -> Iterator[int]:
    return (int(path.name) for path in PROC.iterdir() if path.name.isdigit())


def _stat(pid: int) -> list[str]:
    """The fields of ``/proc/PID/stat`` behind the name, which may hold anything; none if it is gone."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _link(file: Path) -> str:
    try:
        return str(file.readlink())
    except FileNotFoundError:
        return ""
