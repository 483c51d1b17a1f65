"""locust with our own users (`loadtest.locustfile`): people who chat, two of them.

Its row ``TTFT`` goes from before the connection to the first content, read by gevent and requests in the
process that makes the load. It rounds percentiles to two digits, so only means are compared.
"""

import csv
from collections.abc import Mapping
from pathlib import Path

from loadtest.bench.clients.client import Install, Load, Report, ReportUnreadable

PREFIX = "locust"
LOCUSTFILE = Path(__file__).parents[2] / "locustfile.py"


class Locust:
    """The client; it is part of the extra ``loadtest``."""

    name = "locust"
    install = Install("", "locust", module="locust")
    variables: Mapping[str, str] = {}

    def command(self, program: Path, load: Load, folder: Path) -> list[str]:
        """The preset smoke, as long as the other clients take."""
        return [
            *(str(program), "-f", str(LOCUSTFILE), "--host", load.url, "--headless", "--only-summary"),
            *("ChatUser", "--preset", "smoke", "--users", str(max(load.concurrency, 2))),
            *("--run-time", f"{load.requests / load.rate_per_s:.0f}s", "--model", load.model),
            *("--seed", str(load.seed), "--csv", str(folder / PREFIX)),
            *("--html", str(folder / f"{PREFIX}.html")),
        ]

    def read(self, folder: Path) -> Report:
        """Read its statistics."""
        path = folder / f"{PREFIX}_stats.csv"
        try:
            with path.open(newline="") as file:
                rows = {(row["Type"], row["Name"]): row for row in csv.DictReader(file)}
            chat = rows["completed", "chat"]
            sent, failed = int(chat["Request Count"]), int(chat["Failure Count"])
            first = rows.get(("TTFT", "chat"))
            ttft_s = float(first["Average Response Time"]) / 1000 if first else None
        except (OSError, KeyError, ValueError) as error:
            raise ReportUnreadable(f"{path.name}: {error!r}") from error
        return Report(completed=sent - failed, failed=failed, ttft_s=ttft_s)
