import json
import logging
from typing import Any

import pytest
from fakes.legs import FakeLeg, FakePool, HeardPair, pair, worker

from policies import Usage
from router.errors import HandoverFailed, StreamBroken, WorkerRefused
from router.gateway.endpoints import Endpoint
from router.gateway.usage import find_usage
from router.handover import Leg
from router.handover.nixl import ANSWER_BYTES_MAX, NixlHandover

CHAT = b'{"model":"m","messages":[{"role":"user","content":"hello"}],"stream":true,"max_tokens":50}'
PARAMS = b'{"do_remote_prefill": true, "remote_block_ids": [[1,2]],  "remote_port":5600, "later": 1.0}'
USAGE = b'{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}'
ANSWER = b'{"id":"x","usage":' + USAGE + b',"kv_transfer_params":%b}'


class Sent:
    def __init__(self, body: bytes = CHAT) -> None:
        self.pools = FakePool(), FakePool()
        self.sink = HeardPair()
        self.handover = NixlHandover()
        at = pair(worker("p", self.pools[0]), worker("d", self.pools[1]), body)
        self.legs: Any = self.handover.send(at, self.sink)

    @property
    def prefill(self) -> FakeLeg:
        return self.pools[0].leg

    @property
    def decode(self) -> FakeLeg:
        return self.pools[1].leg


@pytest.fixture
async def sent() -> Sent:
    return Sent()


async def test_the_prefill_leg_comes_first_and_is_asked_for_its_blocks(sent: Sent) -> None:
    assert sent.prefill.fields == json.loads(CHAT) | {
        "stream": False,
        "max_tokens": 1,
        "kv_transfer_params": {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "remote_engine_id": None,
            "remote_block_ids": None,
            "remote_host": None,
            "remote_port": None,
        },
    }
    assert sent.pools[1].legs == []
    assert sent.legs.leg is Leg.PREFILL


async def test_the_decode_leg_has_to_the_byte_what_the_prefill_leg_answered(sent: Sent) -> None:
    sent.prefill.answer(ANSWER % PARAMS)

    assert sent.decode.body == CHAT[:-1] + b',"kv_transfer_params":' + PARAMS + b"}"
    assert sent.decode.lines == sent.prefill.lines
    assert sent.sink.said == ["prefilled"]
    assert sent.legs.leg is Leg.DECODE
    sent.decode.answer(b"tokens")
    assert sent.sink.said == ["prefilled", "shipped", "head", "end"]
    assert sent.sink.body == b"tokens"


async def test_the_counts_of_the_prefill_leg_are_kept_without_its_block_ids(sent: Sent) -> None:
    sent.prefill.answer(ANSWER % PARAMS)

    assert b"remote_block_ids" not in sent.legs.usage
    assert find_usage(Endpoint.CHAT, sent.legs.usage) == Usage(9, 4, None)


@pytest.mark.parametrize("answer", [b"{}", ANSWER % b"null", b"not json", ANSWER % b'"x"', b"[]"])
@pytest.mark.parametrize("forged", [False, True])
async def test_without_parameters_the_decode_worker_prefills_again_and_that_is_told(
    caplog: pytest.LogCaptureFixture, answer: bytes, forged: bool
) -> None:
    """But not what a client made up: it could send an engine to fetch KV from anywhere."""
    body = CHAT[:-1] + b',"kv_transfer_params":{"remote_host":"evil"}}' if forged else CHAT
    sent = Sent(body)
    with caplog.at_level(logging.WARNING):
        sent.prefill.answer(answer)

    assert sent.decode.fields.get("kv_transfer_params") is None
    assert forged or sent.decode.body == CHAT
    assert sent.handover.counts["params_missing"] == 1
    assert [record.event for record in caplog.records] == ["handover.params_missing"]  # type: ignore[attr-defined]


async def test_a_prefill_leg_that_fails_is_to_blame_and_nothing_is_decoded(sent: Sent) -> None:
    error = WorkerRefused("no")
    sent.prefill.sink.upstream_failed(error)

    assert (sent.sink.said, sent.sink.error, sent.legs.leg) == (["failed"], error, Leg.PREFILL)
    assert sent.pools[1].legs == []


async def test_a_prefill_leg_that_breaks_off_may_be_tried_again(sent: Sent) -> None:
    sent.prefill.sink.upstream_head(200, b"", None)
    sent.prefill.sink.upstream_data(b'{"kv')
    sent.prefill.sink.upstream_failed(StreamBroken("reset"))

    assert isinstance(sent.sink.error, HandoverFailed)
    assert sent.legs.leg is Leg.PREFILL


@pytest.mark.parametrize("status", [400, 404, 500, 503])
async def test_an_error_of_the_prefill_leg_is_the_answer(sent: Sent, status: int) -> None:
    sent.prefill.answer(b"why", status)

    assert (sent.sink.said, sent.sink.status, sent.sink.body) == (["head", "end"], status, b"why")
    assert sent.legs.leg is Leg.PREFILL
    assert sent.pools[1].legs == []


async def test_a_decode_leg_that_fails_is_to_blame(sent: Sent) -> None:
    sent.prefill.answer(ANSWER % PARAMS)
    error = WorkerRefused("no")
    sent.decode.sink.upstream_failed(error)

    assert (sent.sink.said, sent.sink.error) == (["prefilled", "failed"], error)
    assert sent.legs.leg is Leg.DECODE
    assert not sent.prefill.aborted


async def test_a_client_that_leaves_ends_whichever_leg_there_is(sent: Sent) -> None:
    sent.legs.abort()
    assert sent.prefill.aborted

    sent = Sent()
    sent.prefill.answer(ANSWER % PARAMS)
    sent.legs.abort()
    assert (sent.prefill.aborted, sent.decode.aborted) == (False, True)
    assert sent.sink.said == ["prefilled"]


async def test_a_client_that_is_slow_already_slows_the_decode_leg_and_never_the_prefill_leg(
    sent: Sent,
) -> None:
    sent.legs.pause()
    assert not sent.prefill.paused
    sent.prefill.answer(ANSWER % PARAMS)
    assert sent.decode.paused
    sent.legs.resume()
    assert not sent.decode.paused


async def test_a_prefill_answer_without_end_is_refused(sent: Sent) -> None:
    sent.prefill.sink.upstream_head(200, b"", None)
    piece = b"x" * (1 << 20)
    while not sent.prefill.aborted:
        sent.prefill.sink.upstream_data(piece)

    assert isinstance(sent.sink.error, HandoverFailed)
    assert sent.legs.leg is Leg.PREFILL
    assert ANSWER_BYTES_MAX % len(piece) == 0


async def test_a_long_answer_does_not_keep_a_long_prompt(sent: Sent) -> None:
    """The pool lets go of a request's body itself when its answer begins."""
    sent.prefill.answer(ANSWER % PARAMS)

    names = [name for kind in type(sent.legs).__mro__ for name in getattr(kind, "__slots__", ())]
    assert not any("hello" in repr(getattr(sent.legs, name, None)) for name in names)
    assert sent.legs._unsent == []
