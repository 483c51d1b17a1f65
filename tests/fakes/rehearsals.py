"""A dry run beside the real thing: the state of a gateway, and its real outcome afterwards."""

from typing import Any

from fakes.gateway import Bench

from policies import Decision, Queued, Shed
from radix import chain_bytes
from router.errors import RouterError
from router.explaining.explanation import Explanation, explain
from router.explaining.rehearsal import rehearse
from router.gateway.choosing import choose
from router.gateway.endpoints import Endpoint
from router.gateway.parsing import ParsedRequest
from router.gateway.record import RequestRecord
from router.tenant import ANONYMOUS, Tenant


def digest(bench: Bench) -> tuple[Any, ...]:
    """All state that a request may change, read at one time: rates fade with time in any case."""
    gateway = bench.gateway
    gateway.fleet.loads.rates(bench.time.clock.now_us())
    offloading = gateway.placing.decider.offloading
    return (
        bench.shared.fleet.snapshot(),
        len(bench.shared.ops),
        gateway.placing.decider.placed_count,
        repr(gateway.placing.next_attempt_id.__self__.__reduce__()),  # type: ignore[attr-defined]
        gateway.reports.decisions.cursor,
        gateway.sending.inflight,
        [said.request_id for said in gateway.placing.room.tickets()],
        (dict(offloading.counts), list(offloading.latest), dict(offloading._left_to)),
        (dict(offloading.offload._surges), dict(offloading.offload.states._observed)),
        bench.metrics.exposition()[0],
        bench.log,
    )


def parsed_text(blocks: tuple[int, ...], more_bytes: int = 500, **changes: Any) -> ParsedRequest:
    """A prompt of these blocks of text, each a number below 256, and some bytes that fill none."""
    path = chain_bytes(bytes(blocks), root=1, block_bytes=1)
    key = int.from_bytes(path[-8:], "little") ^ more_bytes
    fields: dict[str, Any] = {
        "endpoint": Endpoint.CHAT,
        "model": "m",
        "stream": True,
        "output_tokens_max": None,
        "n": 1,
        "priority": 0,
        "tenant": "",
        "session": "",
        "lora": None,
        "paths": (path,),
        "prompt_bytes": 1024 * len(blocks) + more_bytes,
        "prompt_token_ids": 0,
        "key": key,
        "prefix_key": int.from_bytes(path[:8], "little") if path else key,
    }
    return ParsedRequest(**{**fields, **changes})


class Real:
    """A request that is really decided, by the gateway itself, but not sent."""

    def __init__(self, bench: Bench, parsed: ParsedRequest, tenant: Tenant = ANONYMOUS) -> None:
        self._gateway = gateway = bench.gateway
        self._parsed = parsed
        flow = gateway.reader.flow_of(parsed, tenant, ())
        self._record = RequestRecord(
            b"", "", gateway.now_s(), 0, gateway=gateway, parsed=parsed, tenant=tenant, flow=flow
        )

    def outcome(self) -> Decision | Queued | Shed | RouterError:
        try:
            return choose(self._gateway, self._gateway.placing.decider, self._record, self._parsed)
        except RouterError as error:
            return error


def explained(bench: Bench, parsed: ParsedRequest, limit: int = 50, **how: Any) -> Explanation:
    """Explain a request, and see that nothing has changed."""
    before = digest(bench)
    found = explain(bench.gateway, rehearse(bench.gateway, parsed, ANONYMOUS, **how), limit)
    assert digest(bench) == before
    return found


def said(outcome: Decision | Queued | Shed | RouterError) -> tuple[str, ...]:
    """Parts of an explanation that must agree with the real outcome."""
    match outcome:
        case Decision(attempt=attempt, decode=decode):
            other = "" if decode is None else decode.attempt.worker_id
            return "place", attempt.worker_id, other, attempt.chosen.reason
        case Queued(waiting=waiting):
            return "wait", waiting.worker, "", ""
        case Shed(reason=reason):
            return "reject", "", "", reason
    return "reject", "", "", outcome.code
