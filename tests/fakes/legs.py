"""The two workers of a pair without sockets: a test gives the answers of each leg, in its order."""

import json
from collections.abc import Sequence
from typing import Any

from policies import Worker
from router.fleet import LocalWorker
from router.gateway.endpoints import Endpoint
from router.gateway.parsing import Identifier
from router.handover import Pair
from router.proxy import RequestHead, UpstreamSink


class FakeLeg:
    """A request at a worker, and the calls on it. Drive its ``sink``."""

    def __init__(
        self, path: bytes, lines: bytes, body: Sequence[Any], sink: UpstreamSink, patient: bool
    ) -> None:
        self.path = path.decode()
        self.lines = lines
        self.body = b"".join(body)
        self.sink = sink
        self.patient = patient
        self.paused = False
        self.aborted = False

    @property
    def fields(self) -> Any:
        """Its decoded body; no name is there twice."""
        return json.loads(self.body, object_pairs_hook=_once)

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def abort(self) -> None:
        self.aborted = True

    def answer(self, body: bytes = b"{}", status: int = 200) -> None:
        """Answer all at once, as far as a client listens."""
        for tell in (
            lambda: self.sink.upstream_head(status, b"x-worker: yes\r\n", len(body)),
            lambda: self.sink.upstream_data(body),
            self.sink.upstream_end,
        ):
            if not self.aborted:
                tell()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    assert len(set(names)) == len(names), names
    return dict(pairs)


class FakePool:
    """Takes requests and does nothing with them."""

    def __init__(self) -> None:
        self.legs: list[FakeLeg] = []
        self.aborts: list[str] = []
        self.open = 1

    def send(
        self,
        head: RequestHead,
        lines: bytes,
        body: Sequence[Any],
        sink: UpstreamSink,
        *,
        patient: bool = False,
        resend: bool = True,
    ) -> FakeLeg:
        leg = FakeLeg(head.path, lines, body, sink, patient)
        if leg.path == "/abort_request":
            assert head.method == b"POST"
            self.aborts.append(leg.fields["rid"])
        else:
            self.legs.append(leg)
        return leg

    @property
    def leg(self) -> FakeLeg:
        """The only one."""
        (leg,) = self.legs
        return leg


class HeardPair:
    """A `PairSink` that writes down its calls, and insists on their order."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.status = 0
        self.body = b""
        self.error: Exception | None = None
        self.on_head = lambda: None

    @property
    def over(self) -> bool:
        return bool(self.said) and self.said[-1] in ("end", "failed")

    def _say(self, what: str) -> None:
        assert not self.over
        self.said.append(what)

    def prefill_ended(self) -> None:
        assert self.said == []
        self._say("prefilled")

    def shipped(self) -> None:
        assert self.said == ["prefilled"]
        self._say("shipped")

    def upstream_head(self, status: int, lines: bytes, length: int | None) -> None:
        assert not self.status
        self.status = status
        self._say("head")
        self.on_head()

    def upstream_data(self, data: bytes) -> None:
        assert self.status
        assert not self.over
        self.body += data

    def upstream_end(self) -> None:
        assert self.status
        self._say("end")

    def upstream_failed(self, error: Exception) -> None:
        self.error = error
        self._say("failed")


def worker(name: str, pool: Any, **labels: str) -> LocalWorker:
    """A worker behind a pool."""
    url = getattr(pool, "origin", f"http://{name}:30000")
    return LocalWorker(Worker(name, 0, url, labels=labels), pool, None)


def pair(
    prefill: LocalWorker,
    decode: LocalWorker,
    body: bytes | Sequence[bytes],
    endpoint: Endpoint = Endpoint.CHAT,
) -> Pair:
    """A request with its two workers."""
    pieces = (body,) if isinstance(body, bytes) else tuple(body)
    return Pair(
        Identifier("test", handover_allowed=True).parse(endpoint, b"".join(pieces)),
        RequestHead(b"POST", endpoint.encode()),
        b"authorization: Bearer key\r\nContent-Type: application/json\r\nx-request-id: req-1\r\n",
        pieces,
        b"req-1",
        prefill,
        decode,
    )
