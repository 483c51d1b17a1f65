import asyncio
import json
from typing import Any

import msgspec
import pytest
from fakes.legs import FakePool, HeardPair, pair, worker

from router.errors import WorkerRefused
from router.gateway.endpoints import Endpoint
from router.gateway.parsing import Identifier
from router.handover import PairedRequest
from router.handover.sglang import Abort, SglangHandover

CHAT = b'{"model":"m","messages":[{"role":"user","content":"hello"}],"stream":true,"temperature":0.5}'


RANKS = 4


class Sent:
    """A request on its way over fakes."""

    def __init__(
        self,
        body: Any = CHAT,
        endpoint: Endpoint = Endpoint.CHAT,
        prefill_rank: int = -1,
        decode_rank: int = -1,
    ) -> None:
        self.prefill, self.decode, self.sink = FakePool(), FakePool(), HeardPair()
        self.handover = SglangHandover()
        prefill = worker("p", self.prefill, bootstrap_port="9000")
        decode = worker("d", self.decode)
        if prefill_rank >= 0:
            prefill.places = (prefill.worker,) * RANKS
        legs = pair(prefill, decode, body, endpoint)
        legs = msgspec.structs.replace(legs, prefill_rank=prefill_rank, decode_rank=decode_rank)
        self.request: PairedRequest = self.handover.send(legs, self.sink)


async def test_both_legs_are_sent_at_once_and_meet_in_one_room() -> None:
    sent = Sent()
    prefill, decode = sent.prefill.leg.fields, sent.decode.leg.fields
    ours = {"bootstrap_host": "p", "bootstrap_port": 9000, "bootstrap_room": decode["bootstrap_room"]}

    assert decode == json.loads(CHAT) | ours | {"rid": decode["rid"]}
    assert prefill == decode | {"stream": False}
    assert 0 < decode["bootstrap_room"] < 2**63
    assert len(decode["rid"]) == 32
    assert sent.prefill.leg.lines == sent.decode.leg.lines
    assert sent.prefill.leg.path == "/v1/chat/completions"


async def test_no_room_and_no_id_is_used_twice() -> None:
    fields = [Sent().decode.leg.fields for _ in range(1000)]

    assert len({each["bootstrap_room"] for each in fields}) == 1000
    assert len({each["rid"] for each in fields}) == 1000


async def test_a_client_cannot_say_where_its_legs_meet_or_what_they_are_called() -> None:
    forged = {
        "bootstrap_host": ["evil"],
        "bootstrap_port": [1],
        "bootstrap_room": [7],
        "bootstrap_pair_key": "x",
        "rid": "",
        "routed_dp_rank": 3,
        "disagg_prefill_dp_rank": 3,
        "data_parallel_rank": 3,
    }
    sent = Sent(json.dumps(json.loads(CHAT) | forged).encode())

    for leg in (sent.prefill.leg, sent.decode.leg):
        fields = leg.fields
        assert (fields["bootstrap_host"], fields["bootstrap_port"]) == ("p", 9000)
        assert fields["bootstrap_room"] not in (7, [7])
        assert fields["rid"]
        assert {fields[name] for name in forged if "rank" in name or "key" in name} == {None}


@pytest.mark.parametrize("rank", range(4))
async def test_both_legs_name_the_chosen_ranks_and_the_room_leads_to_the_prefill_rank(rank: int) -> None:
    """An engine refuses a rank that the room does not lead to, and takes the header before the field."""
    for _ in range(50):
        sent = Sent(prefill_rank=rank, decode_rank=1)
        prefill, decode = sent.prefill.leg.fields, sent.decode.leg.fields
        assert prefill["routed_dp_rank"] == prefill["data_parallel_rank"] == rank
        assert decode["routed_dp_rank"] == decode["data_parallel_rank"] == 1
        assert prefill["disagg_prefill_dp_rank"] == decode["disagg_prefill_dp_rank"] == rank
        assert prefill["bootstrap_room"] == decode["bootstrap_room"]
        assert prefill["bootstrap_room"] % RANKS == rank
        assert 0 < prefill["bootstrap_room"] < 2**63
    assert b"x-data-parallel-rank: %d\r\n" % rank in sent.prefill.leg.lines
    assert b"x-data-parallel-rank: 1\r\n" in sent.decode.leg.lines


async def test_no_rank_is_named_where_none_was_chosen() -> None:
    one = Sent(decode_rank=2)
    for leg in (one.prefill.leg,):
        assert not [name for name in leg.fields if "rank" in name]
        assert b"rank" not in leg.lines
    assert "disagg_prefill_dp_rank" not in one.decode.leg.fields


async def test_usage_in_the_stream_is_asked_of_the_decode_leg_only() -> None:
    body = json.dumps(json.loads(CHAT) | {"stream_options": {"include_usage": True}}).encode()
    sent = Sent(body)

    assert sent.prefill.leg.fields["stream_options"] is None
    assert sent.decode.leg.fields["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("endpoint", "more", "splits"),
    [
        (Endpoint.CHAT, {"messages": []}, True),
        (Endpoint.CHAT, {"messages": [], "n": 2}, False),
        (Endpoint.COMPLETIONS, {"prompt": ["a", "b"]}, True),
        (Endpoint.GENERATE, {"input_ids": [[1, 2], [3]]}, True),
        (Endpoint.GENERATE, {"text": "a", "sampling_params": {"n": 3}}, False),
        (Endpoint.RESPONSES, {"input": "a"}, False),
        (Endpoint.MESSAGES, {"messages": []}, False),
        (Endpoint.EMBEDDINGS, {"input": "a"}, False),
        (Endpoint.SCORE, {}, False),
        (Endpoint.TOKENIZE, {}, False),
    ],
)
def test_what_the_engines_cannot_share_is_not_split(endpoint: Endpoint, more: Any, splits: bool) -> None:
    parsed = Identifier("test").parse(endpoint, json.dumps({"model": "m"} | more).encode())

    assert SglangHandover().splits(parsed) is splits


async def test_the_prefill_leg_says_by_its_answer_that_the_kv_has_been_sent() -> None:
    sent = Sent()
    sent.prefill.leg.answer(b'{"usage":{"prompt_tokens":9}}')

    assert sent.sink.said == ["prefilled", "shipped"]
    assert sent.request.usage == b'{"usage":{"prompt_tokens":9}}'


async def test_whoever_fails_first_the_other_one_is_aborted_by_its_id() -> None:
    sent = Sent()
    sent.prefill.leg.sink.upstream_failed(WorkerRefused("no"))

    assert sent.decode.leg.aborted
    assert sent.decode.aborts == [sent.decode.leg.fields["rid"]]
    assert sent.prefill.aborts == []
    assert sent.handover.counts["aborted"] == 1

    sent = Sent()
    sent.decode.leg.answer(status=429)
    assert sent.prefill.aborts == [sent.prefill.leg.fields["rid"]]
    assert sent.decode.aborts == []


async def test_a_client_that_leaves_ends_both_legs_by_their_id() -> None:
    sent = Sent()
    sent.request.abort()
    sent.request.abort()

    rid = sent.decode.leg.fields["rid"]
    assert (sent.prefill.aborts, sent.decode.aborts) == ([rid], [rid])
    assert sent.prefill.leg.aborted
    assert sent.decode.leg.aborted


async def test_every_prompt_of_a_batch_is_aborted_by_the_id_that_the_engine_gives_it() -> None:
    sent = Sent(b'{"model":"m","prompt":["a","b","c"]}', Endpoint.COMPLETIONS)
    sent.request.abort()

    rid = sent.decode.leg.fields["rid"]
    assert sent.decode.aborts == [rid, f"{rid}_0", f"{rid}_1", f"{rid}_2"]


async def test_an_abort_is_json_and_has_the_key_of_the_request() -> None:
    sent = Sent()
    seen: list[bytes] = []

    class Pool(FakePool):
        def send(self, *args: Any, **kwargs: Any) -> Any:
            seen.append(args[1])
            return super().send(*args, **kwargs)

    Abort(Pool(), b"authorization: Bearer key\r\nContent-Type: text/plain\r\n", "r")  # type: ignore[arg-type]

    assert seen == [b"authorization: Bearer key\r\ncontent-type: application/json\r\n"]
    assert sent.prefill.aborts == []


async def test_an_engine_that_does_not_answer_to_an_abort_is_not_waited_for() -> None:
    class Pool(FakePool):
        def send(self, *args: Any, **kwargs: Any) -> Any:
            self.request = super().send(*args, **kwargs)
            return self.request

    silent, quick = Pool(), Pool()
    Abort(silent, b"", "r", 0.0)  # type: ignore[arg-type]
    Abort(quick, b"", "r", 0.01)  # type: ignore[arg-type]
    quick.request.answer()
    await asyncio.sleep(0.02)

    assert silent.request.aborted
    assert not quick.request.aborted
