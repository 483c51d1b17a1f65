"""Files of results, one a line, that an interrupted run goes on with."""

from pathlib import Path


def whole_lines(path: Path) -> list[bytes]:
    """Read the lines of a file and remove a last one that was cut off; none without a file.

    May raise `OSError`.
    """
    data = path.read_bytes() if path.exists() else b""
    whole = data[: data.rfind(b"\n") + 1]
    if whole != data:
        path.write_bytes(whole)
    return whole.splitlines()
