"""A hand-over protocol without sockets: the test plays both workers of a pair."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from fakes.gateway import Bench, FakeUpstream

from policies import HAND_OVERS, Finished, FirstToken, FleetRules, Placed
from router.fleet import LocalWorker
from router.gateway.spans import Spans
from router.handover import Leg, Pair, PairSink
from router.tenants import Keyring

if TYPE_CHECKING:
    from fakes.gateway import FakePool

    from router.gateway.parsing import ParsedRequest


class FakePaired(FakeUpstream):
    """A request on its way to two fake workers."""

    workers = 2

    def __init__(self, pair: Pair, sink: PairSink) -> None:
        super().__init__(cast("FakePool", pair.decode.pool), {"sink": sink, "body": pair.body})
        self.pair = pair
        self.leg = Leg.DECODE
        self.usage = b""
        self._pair_sink = sink

    def prefilled(self, usage: bytes = b"{}") -> None:
        """The prefill leg's answer is complete."""
        assert self.live
        self.usage = usage
        self._pair_sink.prefill_ended()

    def shipped(self) -> None:
        """The KV has arrived."""
        assert self.live
        self._pair_sink.shipped()

    def began(self) -> None:
        """Both, as the first byte of the decode leg's answer says."""
        self._pair_sink.prefill_ended()
        self._pair_sink.shipped()

    def fail_leg(self, leg: Leg, error: Exception) -> None:
        """One of the legs fails, and so does the request."""
        self.leg = leg
        self.fail(error)

    def refuse(self, leg: Leg, status: int, body: bytes = b'{"theirs":1}') -> None:
        """One of the legs answers with an error."""
        self.leg = leg
        self.answer(body, status)


class FakeHandover:
    """See `router.handover.Handover`; notes each request in the bench's list of requests at workers."""

    def __init__(self, name: str, sent: Callable[[FakeUpstream], None]) -> None:
        self.name = name
        self._sent = sent

    def splits(self, parsed: "ParsedRequest") -> bool:
        return parsed.endpoint == "/v1/chat/completions" and parsed.n == 1

    def alone(self, body: Sequence[bytes | memoryview]) -> Sequence[bytes | memoryview]:
        return (*body, b" ")

    def send(self, pair: Pair, sink: PairSink) -> FakePaired:
        request = FakePaired(pair, sink)
        self._sent(request)
        return request


class PairBench(Bench):
    """A gateway in front of pairs. Each decode worker already decodes a request of another replica.

    So it takes no whole requests, where its protocol would let it, while a prefill worker is idle.

    Args:
        prefill: Number of prefill workers, named ``p0:80`` and so on.
        decode: Number of decode workers, named ``d0:80`` and so on.
        plain: Number of plain workers, named ``w0:80`` and so on.
        protocol: Protocol of their handover.
        keys: Keys of tenants; None without a keys file.
        rules: See `Bench`.
        sections: Sections of the settings.
    """

    def __init__(
        self,
        prefill: int = 2,
        decode: int = 2,
        plain: int = 0,
        protocol: str = "sglang",
        keys: Keyring | None = None,
        spans: Spans | None = None,
        rules: FleetRules | None = None,
        **sections: dict[str, object],
    ) -> None:
        super().__init__(plain, keys=keys, spans=spans, rules=rules, **sections)
        self.handovers |= {name: FakeHandover(name, self.upstreams.append) for name in HAND_OVERS}
        for role, count in (("prefill", prefill), ("decode", decode)):
            for number in range(count):
                self.add_half(f"{role[0]}{number}:80", role, protocol)
        self._foreign = [f"foreign-{number}" for number in range(decode)]
        for number, request_id in enumerate(self._foreign):
            now_us = self.time.clock.now_us()
            self.shared.fleet.apply(Placed(request_id, now_us, f"d{number}:80", "r2", 0, 0, 0))
            self.shared.fleet.apply(FirstToken(request_id, now_us))

    def add_half(self, worker_id: str, role: str, protocol: str = "sglang", **labels: str) -> LocalWorker:
        """Add a healthy worker with a role."""
        self.registry.add(f"http://{worker_id}", role=role, labels={"handover": protocol, **labels})
        local = self.local(worker_id)
        self.registry.probed(local, ok=True, refused=False, detail="")
        return local

    def check(self) -> None:
        """See `Bench`; the other replica has nothing left, either."""
        for request_id in self._foreign:
            self.shared.fleet.apply(Finished(request_id, self.time.clock.now_us()))
        super().check()

    @property
    def own(self) -> list[str]:
        """Workers of the requests that this replica has in flight, by the log."""
        fleet = self.shared.fleet
        return sorted(
            fleet.at_slot(request.slot).worker_id
            for request in fleet.loads.requests.values()
            if request.replica == "r1"
        )

    @property
    def paired(self) -> FakePaired:
        """The one request that two workers share now."""
        upstream = self.upstream
        assert isinstance(upstream, FakePaired)
        return upstream

    def course(self, worker: str) -> list[str]:
        """Operations in the log on the attempts on a worker, in order."""
        ids = {op.request_id for op in self.shared.said(Placed) if op.worker.startswith(worker)}
        return [type(op).__name__ for op in self.shared.ops if getattr(op, "request_id", None) in ids]
