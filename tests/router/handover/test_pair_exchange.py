"""All ends of two legs, in both orders; the tests of each protocol cover its special cases."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from fakes.legs import FakePool, HeardPair, pair, worker

from router.errors import (
    HandoverFailed,
    StreamBroken,
    TransferFailed,
    UpstreamError,
    WorkerRefused,
    WorkerSilent,
)
from router.fleet import Health
from router.handover import Leg
from router.handover.pair_exchange import ANSWER_TAIL_BYTES, PairExchange

BODY = b'{"model":"m","messages":[{"role":"user","content":"hello"}],"stream":true}'
DECODED = ["prefilled", "shipped", "head", "end"]


class BothLegs(PairExchange):
    """Sends both legs at once, and notes which one it ended."""

    linger_s = 0.001
    verdict_s = 0.001

    def __init__(self, sink: HeardPair, prefill: FakePool, decode: FakePool) -> None:
        self.closed: list[Leg] = []
        self.at = pair(worker("p", prefill), worker("d", decode), BODY)
        super().__init__(sink, self.at.prefill)
        self.begin(self.at, (BODY,), (BODY,))

    def ended(self, leg: Leg) -> None:
        self.closed.append(leg)


class Sent:
    def __init__(self) -> None:
        self.pools = FakePool(), FakePool()
        self.sink = HeardPair()
        self.legs = BothLegs(self.sink, *self.pools)
        self.prefill, self.decode = (pool.leg for pool in self.pools)


@pytest.fixture
async def sent() -> Sent:
    return Sent()


async def until_over(sent: Sent) -> None:
    async with asyncio.timeout(60):
        while not sent.sink.over:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.001)


def head(leg: Any, status: int = 200) -> None:
    leg.sink.upstream_head(status, b"", None)


async def test_the_answer_is_the_decode_leg_s(sent: Sent) -> None:
    sent.prefill.answer(b"first token")
    sent.decode.answer(b"all tokens")

    assert sent.sink.said == DECODED
    assert sent.sink.body == b"all tokens"
    assert (sent.legs.leg, sent.legs.usage) == (Leg.DECODE, b"first token")
    assert sent.legs.closed == []
    assert not sent.prefill.aborted
    assert not sent.decode.aborted


async def test_the_first_byte_of_the_answer_shows_that_the_kv_is_there(sent: Sent) -> None:
    head(sent.decode)
    assert sent.sink.said == []
    sent.decode.sink.upstream_data(b"x")
    assert sent.sink.said == ["prefilled", "shipped", "head"]
    sent.prefill.answer(b"late")
    sent.decode.sink.upstream_end()

    assert sent.sink.said == DECODED
    assert sent.legs.usage == b"late"
    assert sent.legs.closed == []


async def test_an_empty_answer_is_an_answer(sent: Sent) -> None:
    head(sent.decode, 204)
    sent.decode.sink.upstream_end()

    assert sent.sink.said == DECODED
    assert sent.sink.status == 204


async def test_a_prefill_leg_that_does_not_end_is_ended_a_while_after_the_answer_began(sent: Sent) -> None:
    sent.decode.answer()
    assert not sent.prefill.aborted
    await asyncio.sleep(0.01)

    assert sent.prefill.aborted
    assert sent.legs.closed == [Leg.PREFILL]
    assert sent.sink.said == DECODED


async def test_a_prefill_leg_that_ends_by_itself_after_the_answer_keeps_its_connection(sent: Sent) -> None:
    sent.decode.answer()
    sent.prefill.answer()
    await asyncio.sleep(0.01)

    assert not sent.prefill.aborted


@pytest.mark.parametrize("leg", Leg)
@pytest.mark.parametrize("step", ["sent", "prefilled", "headed", "refused", "held"])
async def test_whoever_is_said_to_have_failed_has_and_both_are_ended(sent: Sent, leg: Leg, step: str) -> None:
    match step:
        case "prefilled":
            sent.prefill.answer()
        case "headed":
            head(sent.decode)
        case "refused":
            head(sent.prefill, 500)
        case "held":
            head(sent.decode, 500)
    silent = WorkerSilent("made no progress")
    sent.legs.fail_leg(leg, silent)
    sent.legs.fail_leg(leg, silent)
    await asyncio.sleep(0.01)

    assert sent.sink.error is silent
    assert sent.sink.said[-1] == "failed"
    assert sent.legs.leg is leg
    assert sent.prefill.aborted == (step != "prefilled")
    assert sent.decode.aborted


@pytest.mark.parametrize("late", ["refused", "failed"])
async def test_what_becomes_of_the_prefill_leg_after_the_first_byte_changes_nothing(
    sent: Sent, late: str
) -> None:
    head(sent.decode)
    sent.decode.sink.upstream_data(b"x")
    if late == "refused":
        sent.prefill.answer(status=500)
    else:
        sent.prefill.sink.upstream_failed(StreamBroken("gone"))
    sent.decode.sink.upstream_data(b"y")
    sent.decode.sink.upstream_end()

    assert (sent.sink.said, sent.sink.body, sent.legs.leg) == (DECODED, b"xy", Leg.DECODE)


FAILURES: list[UpstreamError] = [WorkerRefused("nobody"), WorkerSilent("stalled"), HandoverFailed("x")]


@pytest.mark.parametrize("headed", [False, True], ids=["", "decode-headed"])
@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
async def test_a_prefill_leg_that_fails_ends_the_decode_leg_and_is_to_blame(
    sent: Sent, error: UpstreamError, headed: bool
) -> None:
    """Engines send the head of a stream before its content: the head is not passed on."""
    if headed:
        head(sent.decode)
    sent.prefill.sink.upstream_failed(error)

    assert sent.sink.said == ["failed"]
    assert sent.sink.error is error
    assert sent.legs.leg is Leg.PREFILL
    assert sent.decode.aborted
    assert sent.legs.closed == [Leg.DECODE]


@pytest.mark.parametrize(
    "body",
    [
        b'{"choices":[{"index":0,"finish_reason":"abort"}],"usage":{}}',
        b'{"text":"","meta_info":{"finish_reason": {"type": "abort", "message": "Aborted"}}}',
    ],
)
async def test_a_prefill_leg_that_somebody_aborted_has_sent_nothing(sent: Sent, body: bytes) -> None:
    sent.prefill.answer(body)

    assert sent.sink.said == ["failed"]
    assert isinstance(sent.sink.error, HandoverFailed)
    assert (sent.legs.leg, sent.legs.closed) == (Leg.PREFILL, [Leg.DECODE])


async def test_what_a_model_says_of_aborts_is_no_abort(sent: Sent) -> None:
    sent.prefill.answer(json.dumps({"text": '"finish_reason":"abort"', "finish_reason": "length"}).encode())

    assert sent.sink.said == ["prefilled"]


async def test_half_an_answer_of_the_prefill_leg_is_none_of_the_client_s(sent: Sent) -> None:
    """The client has received nothing yet, so the request may be tried again."""
    head(sent.prefill)
    sent.prefill.sink.upstream_failed(StreamBroken("reset"))

    assert isinstance(sent.sink.error, HandoverFailed)
    assert sent.legs.leg is Leg.PREFILL


@pytest.mark.parametrize("status", [400, 429, 500, 503])
async def test_an_error_of_the_prefill_leg_is_the_answer(sent: Sent, status: int) -> None:
    sent.prefill.answer(b"why", status)

    assert (sent.sink.said, sent.sink.status, sent.sink.body) == (["head", "end"], status, b"why")
    assert sent.legs.leg is Leg.PREFILL
    assert sent.decode.aborted
    assert sent.legs.closed == [Leg.DECODE]


async def test_an_error_of_the_prefill_leg_that_breaks_off_is_a_failure(sent: Sent) -> None:
    head(sent.prefill, 500)
    broken = StreamBroken("reset")
    sent.prefill.sink.upstream_failed(broken)

    assert (sent.sink.said, sent.sink.error, sent.legs.leg) == (["head", "failed"], broken, Leg.PREFILL)


async def test_a_sink_may_end_it_all_when_it_hears_of_an_error(sent: Sent) -> None:
    """So a request is redispatched."""
    sent.sink.on_head = sent.legs.abort
    sent.prefill.answer(b"why", 500)

    assert sent.sink.said == ["head"]
    assert sent.prefill.aborted


async def test_a_sink_may_end_it_all_when_the_answer_begins(sent: Sent) -> None:
    sent.sink.on_head = sent.legs.abort
    head(sent.decode)
    sent.decode.sink.upstream_data(b"x")

    assert sent.sink.said == ["prefilled", "shipped", "head"]
    assert sent.sink.body == b""
    assert sent.legs.closed == [Leg.PREFILL, Leg.DECODE]


@pytest.mark.parametrize("prefilled", [False, True], ids=["", "prefilled"])
@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
async def test_a_decode_leg_that_fails_ends_the_prefill_leg_and_is_to_blame(
    sent: Sent, error: UpstreamError, prefilled: bool
) -> None:
    if prefilled:
        sent.prefill.answer()
    sent.decode.sink.upstream_failed(error)

    assert sent.sink.said[-1] == "failed"
    assert (sent.sink.error, sent.legs.leg) == (error, Leg.DECODE)
    assert sent.prefill.aborted is not prefilled
    assert sent.legs.closed == ([] if prefilled else [Leg.PREFILL])


async def test_a_decode_leg_that_breaks_off_after_the_first_byte_breaks_the_answer(sent: Sent) -> None:
    head(sent.decode)
    sent.decode.sink.upstream_data(b"x")
    broken = StreamBroken("reset")
    sent.decode.sink.upstream_failed(broken)

    assert sent.sink.said == ["prefilled", "shipped", "head", "failed"]
    assert (sent.sink.error, sent.legs.leg) == (broken, Leg.DECODE)
    assert sent.prefill.aborted


@pytest.mark.parametrize("status", [400, 500])
async def test_an_error_of_the_decode_leg_is_the_answer(sent: Sent, status: int) -> None:
    sent.decode.answer(b"why", status)
    await until_over(sent)

    assert (sent.sink.said, sent.sink.status, sent.sink.body) == (["head", "end"], status, b"why")
    assert sent.legs.leg is Leg.DECODE
    assert sent.legs.closed == [Leg.PREFILL]


def _refuses(at: Any) -> None:
    at.refused_us = 1


def _is_unwell(at: Any) -> None:
    at.health = Health.UNHEALTHY


def _has_no_connection(at: Any) -> None:
    at.pool.open = 0


@pytest.mark.parametrize("gone", [_refuses, _is_unwell, _has_no_connection])
async def test_an_error_of_a_decode_leg_whose_prefill_worker_is_gone_is_that_worker_s(
    sent: Sent, gone: Callable[[Any], None]
) -> None:
    """A request that the engine itself refuses blames no worker."""
    gone(sent.legs.at.prefill)
    sent.prefill.answer()
    sent.decode.answer(status=500)
    assert sent.legs.leg is Leg.PREFILL

    other = Sent()
    gone(other.legs.at.prefill)
    other.decode.answer(status=400)
    assert other.legs.leg is Leg.DECODE


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"error": {"message": "KVTransferError", "code": 500}}\n\n',
        b'data:{ "error":{}}\n\n',
        b'event: error\ndata: {"type":"error","error":{"type":"internal_error","message":"x"}}\n\n',
    ],
)
async def test_a_stream_that_begins_with_an_error_is_a_failure(sent: Sent, event: bytes) -> None:
    """Nothing was sent yet, so the request may be redispatched."""
    head(sent.decode)
    sent.decode.sink.upstream_data(event)
    await until_over(sent)

    assert sent.sink.said == ["failed"]
    assert isinstance(sent.sink.error, HandoverFailed)
    assert sent.legs.leg is Leg.DECODE
    assert sent.decode.aborted
    assert sent.prefill.aborted


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"error": {"message": "too long", "code": 400}}\n\n',
        b'data: {"id":"x","choices":[{"delta":{"content":"\\"error\\""}}]}\n\n',
    ],
)
async def test_a_stream_that_begins_with_the_client_s_own_error_passes(sent: Sent, event: bytes) -> None:
    head(sent.decode)
    sent.decode.sink.upstream_data(event)
    sent.decode.sink.upstream_end()

    assert (sent.sink.said, sent.sink.body) == (DECODED, event)


ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
LOST = b'data: {"error":{"message":"Internal server error","type":"InternalServerError","code":500}}\n\n'


async def test_how_a_stream_opens_is_held_back_until_its_first_token(sent: Sent) -> None:
    head(sent.decode)
    sent.decode.sink.upstream_data(ROLE)
    assert sent.sink.said == []
    sent.decode.sink.upstream_data(TOKEN)
    assert sent.sink.said == ["prefilled", "shipped", "head"]
    sent.decode.sink.upstream_data(ROLE)
    sent.decode.sink.upstream_end()

    assert (sent.sink.said, sent.sink.body) == (DECODED, ROLE + TOKEN + ROLE)


async def test_a_stream_that_ends_as_it_opens_is_an_answer(sent: Sent) -> None:
    head(sent.decode)
    sent.decode.sink.upstream_data(ROLE)
    sent.decode.sink.upstream_end()

    assert (sent.sink.said, sent.sink.body) == (DECODED, ROLE)


@pytest.mark.parametrize("pieces", [(ROLE, LOST), (ROLE + LOST,), (LOST,)])
async def test_a_stream_that_opens_and_then_fails_has_said_nothing(
    sent: Sent, pieces: tuple[bytes, ...]
) -> None:
    """VLLM's chat streams do so: they name their role before they report that the KV did not come."""
    head(sent.decode)
    for piece in pieces:
        sent.decode.sink.upstream_data(piece)
    await until_over(sent)

    assert (sent.sink.said, sent.sink.body) == (["failed"], b"")
    assert isinstance(sent.sink.error, HandoverFailed)


async def test_a_stream_that_opens_and_then_breaks_has_said_nothing(sent: Sent) -> None:
    head(sent.decode)
    sent.decode.sink.upstream_data(ROLE)
    broken = StreamBroken("reset")
    sent.decode.sink.upstream_failed(broken)

    assert (sent.sink.said, sent.sink.body, sent.sink.error) == (["failed"], b"", broken)


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(("gone", "failure"), [(False, TransferFailed), (True, HandoverFailed)])
async def test_an_error_after_a_good_prefill_leg_is_a_transfer_that_failed(
    sent: Sent, streamed: bool, gone: bool, failure: type[HandoverFailed]
) -> None:
    """Except for a clear cause: its prefill worker is gone."""
    if gone:
        sent.legs.at.prefill.pool.open = 0  # type: ignore[misc]
    sent.prefill.answer()
    assert sent.sink.said == ["prefilled"]
    if streamed:
        head(sent.decode)
        sent.decode.sink.upstream_data(ROLE + LOST)
    else:
        sent.decode.answer(b"Internal server error", 500)

    assert sent.sink.said == ["prefilled", "failed"]
    assert type(sent.sink.error) is failure
    assert sent.legs.leg is (Leg.PREFILL if gone else Leg.DECODE)
    assert sent.decode.aborted


@pytest.mark.parametrize("status", [429, 503])
async def test_an_engine_that_is_busy_has_lost_no_transfer(sent: Sent, status: int) -> None:
    sent.prefill.answer()
    sent.decode.answer(b"busy", status)

    assert (sent.sink.status, sent.sink.body) == (status, b"busy")


async def test_a_prefill_engine_that_dies_is_to_blame_for_the_error_that_its_partner_answers(
    sent: Sent,
) -> None:
    """The partner hears of it first, and the gateway of both in either order."""
    sent.decode.answer(b"why", 500)
    assert sent.sink.said == []
    error = WorkerRefused("reset")
    sent.prefill.sink.upstream_failed(error)
    await asyncio.sleep(0.005)

    assert (sent.sink.said, sent.sink.error, sent.legs.leg) == (["failed"], error, Leg.PREFILL)


async def test_of_two_engines_that_answer_with_errors_the_first_one_is_to_blame(sent: Sent) -> None:
    """SGLang's prefill engine is told that its partner failed."""
    sent.decode.answer(b"no memory", 500)
    sent.prefill.answer(b"Aborted by AbortReq.", 500)

    assert (sent.sink.said, sent.sink.body, sent.legs.leg) == (["head", "end"], b"no memory", Leg.DECODE)


async def test_a_prefill_leg_that_ends_well_is_not_to_blame(sent: Sent) -> None:
    sent.decode.answer(b"why", 500)
    sent.prefill.answer()

    assert (sent.sink.said, sent.sink.body, sent.legs.leg) == (["head", "end"], b"why", Leg.DECODE)


async def test_an_error_that_is_held_back_and_breaks_off_is_a_failure(sent: Sent) -> None:
    head(sent.decode, 500)
    broken = StreamBroken("reset")
    sent.decode.sink.upstream_failed(broken)
    await until_over(sent)

    assert (sent.sink.said, sent.sink.error, sent.legs.leg) == (["head", "failed"], broken, Leg.DECODE)


def _nothing(_: Sent) -> None:
    pass


def _decode_headed(sent: Sent) -> None:
    head(sent.decode)


def _prefill_headed(sent: Sent) -> None:
    head(sent.prefill)
    sent.prefill.sink.upstream_data(b"x")


def _prefilled(sent: Sent) -> None:
    sent.prefill.answer()


def _begun(sent: Sent) -> None:
    head(sent.decode)
    sent.decode.sink.upstream_data(b"x")


def _prefilled_begun(sent: Sent) -> None:
    _prefilled(sent)
    _begun(sent)


def _refused(sent: Sent) -> None:
    head(sent.prefill, 500)


def _decode_refused(sent: Sent) -> None:
    head(sent.decode, 500)


STEPS = {
    _nothing: [Leg.PREFILL, Leg.DECODE],
    _decode_headed: [Leg.PREFILL, Leg.DECODE],
    _prefill_headed: [Leg.PREFILL, Leg.DECODE],
    _prefilled: [Leg.DECODE],
    _begun: [Leg.PREFILL, Leg.DECODE],
    _prefilled_begun: [Leg.DECODE],
    _refused: [Leg.DECODE, Leg.PREFILL],
    _decode_refused: [Leg.PREFILL, Leg.DECODE],
}


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
async def test_a_client_that_leaves_ends_what_is_under_way_at_every_step(
    sent: Sent, step: Callable[[Sent], None]
) -> None:
    step(sent)
    said = list(sent.sink.said)
    sent.legs.abort()
    sent.legs.abort()
    await asyncio.sleep(0.01)

    assert sent.sink.said == said
    assert sent.legs.closed == STEPS[step]


async def test_only_who_answers_is_slowed_down(sent: Sent) -> None:
    sent.legs.pause()
    assert (sent.prefill.paused, sent.decode.paused) == (False, True)
    sent.legs.resume()
    assert (sent.prefill.paused, sent.decode.paused) == (False, False)
    sent.legs.pause()
    head(sent.prefill, 500)
    assert sent.prefill.paused
    sent.legs.resume()
    assert not sent.prefill.paused


async def test_of_a_long_prefill_answer_its_end_is_kept(sent: Sent) -> None:
    head(sent.prefill)
    for _ in range(10):
        sent.prefill.sink.upstream_data(b"x" * ANSWER_TAIL_BYTES)
    sent.prefill.sink.upstream_data(b"end")

    assert len(sent.legs.usage) == ANSWER_TAIL_BYTES
    assert sent.legs.usage.endswith(b"xend")


async def test_an_answer_that_comes_whole_may_take_its_time_but_a_first_token_may_not(sent: Sent) -> None:
    assert (sent.prefill.patient, sent.decode.patient) == (False, False)
    whole = FakePool(), FakePool()

    class Whole(PairExchange):
        pass

    at = pair(worker("p", whole[0]), worker("d", whole[1]), BODY.replace(b"true", b"false"))
    Whole(HeardPair(), at.prefill).begin(at, (BODY,), (BODY,))
    assert (whole[0].leg.patient, whole[1].leg.patient) == (False, True)
