"""The link's API: transfers of engines, and faults of tests.

POST   /transfers  {"name", "bytes", "ready_bytes", "held_bytes", "over_s"}: answered when the bytes have
arrived (200) or the link failed (503); closing the connection gives up
POST   /computed   {"name"}: the prefill of this transfer is over; 404 if it is not under way
POST   /_fault     {"kind": "slow", "ratio": 0.1, "seconds": 60} or {"kind": "dead", "seconds": 0}: for so
long, 0 until it is ended; a newer one replaces an older
DELETE /_fault     ends it
GET    /_stats     capacity, transfers under way, egress by tenths of a second
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

import orjson

from loadtest.engine.handover.side_port import HeldCall, SidePort
from loadtest.engine.link.egress import BUCKETS_PER_S
from loadtest.engine.link.shaped import ShapedLink, Transfer
from loadtest.engine.server import Answer, Request

_TEXT = b"text/plain; charset=utf-8"


class LinkServer:
    """One link of ``gbps`` > 0 and a round trip of ``rtt_ms`` behind a listening socket."""

    def __init__(self, gbps: float, rtt_ms: float = 0.0, port: int = 0) -> None:
        self.link = ShapedLink(asyncio.get_running_loop(), gbps * 1e9 / 8, rtt_ms / 1e3)
        self._side = SidePort(port, self._serve)
        self._named: dict[str, Transfer] = {}
        self._mending: asyncio.TimerHandle | None = None

    @property
    def url(self) -> str:
        """Value for the engines' ``--kv-link``."""
        return f"http://{self._side.host}:{self._side.port}"

    async def open(self, host: str = "127.0.0.1") -> None:
        """Listen; `OSError` if the port is taken."""
        await self._side.open(host)

    def close(self) -> None:
        """Stop at once."""
        self._mend()
        self._side.close()

    def _serve(self, request: Request, answer: Answer) -> None:
        try:
            fields = orjson.loads(request.body) if request.body else {}
            self._route(request, fields, answer)
        except (KeyError, TypeError, ValueError) as error:
            answer.send(400, orjson.dumps({"error": f"{type(error).__name__}: {error}"}))

    def _route(self, request: Request, fields: Mapping[str, Any], answer: Answer) -> None:
        match request.method, request.path:
            case "POST", "/transfers":
                self._begin(fields, answer)
            case "POST", "/computed":
                transfer = self._named.get(fields["name"])
                if transfer is not None:
                    self.link.computed(transfer)
                answer.send(200 if transfer is not None else 404, b"{}")
            case "POST", "/_fault":
                self._fault(fields)
                answer.send(200, b"{}")
            case "DELETE", "/_fault":
                self._mend()
                answer.send(200, b"{}")
            case "GET", "/_stats":
                answer.send(200, orjson.dumps(self.stats()))
            case _:
                answer.send(404, b"Not Found", _TEXT)

    def _begin(self, fields: Mapping[str, Any], answer: Answer) -> None:
        name = str(fields["name"])
        held = HeldCall(answer, lambda _: self.link.cancel(self._named.pop(name)))
        self._named[name] = self.link.begin(
            float(fields["bytes"]),
            partial(self._ended, name, held),
            ready_bytes=float(fields["ready_bytes"]),
            held_bytes=float(fields["held_bytes"]),
            over_s=float(fields["over_s"]),
        )

    def _ended(self, name: str, held: HeldCall, problem: str | None) -> None:
        del self._named[name]
        if problem is None:
            held.answer.send(200, b"{}")
        else:
            held.answer.send(503, problem.encode(), _TEXT)

    def _fault(self, fields: Mapping[str, Any]) -> None:
        kind, seconds = fields["kind"], float(fields.get("seconds", 0.0))
        if kind not in ("slow", "dead"):
            raise ValueError("kind must be slow or dead")
        ratio = float(fields["ratio"]) if kind == "slow" else 0.0
        if not 0 <= ratio <= 1 or seconds < 0:
            raise ValueError("ratio must be from 0 to 1, and seconds at least 0")
        self._mend()
        if kind == "slow":
            self.link.slow(ratio)
        else:
            self.link.die()
        if seconds:
            self._mending = asyncio.get_running_loop().call_later(seconds, self._mend)

    def _mend(self) -> None:
        if self._mending is not None:
            self._mending.cancel()
            self._mending = None
        self.link.restore()

    def stats(self) -> dict[str, Any]:
        """Body of ``/_stats``."""
        link = self.link
        link.advance()
        return {
            "bytes_per_s": link.bytes_per_s,
            "rtt_s": link.rtt_s,
            "under_way": link.under_way,
            "arrived": link.arrived,
            "lost": link.lost,
            "sent_bytes": link.egress.total_bytes,
            "pulled": list(link.pulled),
            "age_s": link.age_s,
            "egress": {"buckets_per_s": BUCKETS_PER_S, "buckets": link.egress.buckets()},
        }
