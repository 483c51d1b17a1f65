"""Metrics of many workers as one page in Prometheus's text format."""

import re

TOTAL_BYTES_MAX = 64 << 20
"""Longest page of all, in bytes; pages beyond it are left out, and the last line says so."""

FAMILIES_MAX = 10_000

_SAMPLE = re.compile(
    r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?(\s+[-+]?(?:[0-9.][0-9.eE+-]*|Inf|NaN)(?:\s+-?[0-9]+)?)\s*"
)
_ABOUT = re.compile(r"# (HELP|TYPE) ([a-zA-Z_:][a-zA-Z0-9_:]*)(?: .*)?")
_PARTS = re.compile(r"_(bucket|sum|count|total|created|info)$")


class MetricsPage:
    """Gathers pages; not for several threads at a time."""

    def __init__(self) -> None:
        self._families: dict[str, tuple[dict[str, str], list[str]]] = {}
        self._bytes = 0
        self._left_out = 0

    def add(self, url: str, page: bytes) -> None:
        """Add the page of the worker at a URL; lines that are none of the format are left out."""
        if self._bytes + len(page) > TOTAL_BYTES_MAX:
            self._left_out += 1
            return
        self._bytes += len(page)
        address = url.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "")
        for line in page.decode("utf-8", "replace").splitlines():
            about = _ABOUT.fullmatch(line)
            if about:
                family = self._family(about[2])
                if family is not None:
                    family[0].setdefault(about[1], line)
                continue
            sample = _SAMPLE.fullmatch(line)
            if sample:
                name, labels, rest = sample.groups()
                family = self._family(name if name in self._families else _PARTS.sub("", name))
                if family is not None:
                    more = f",{labels}" if labels else ""
                    family[1].append(f'{name}{{worker_addr="{address}"{more}}}{rest}')

    def text(self) -> str:
        """Return the page of all."""
        lines = [line for about, samples in self._families.values() for line in (*about.values(), *samples)]
        if self._left_out:
            lines.append(
                f"# {self._left_out} workers left out: the page is longer than {TOTAL_BYTES_MAX} bytes"
            )
        return "\n".join(lines) + "\n"

    def _family(self, name: str) -> tuple[dict[str, str], list[str]] | None:
        if name not in self._families and len(self._families) >= FAMILIES_MAX:
            return None
        return self._families.setdefault(name, ({}, []))
