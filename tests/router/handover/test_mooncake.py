import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fakes.legs import FakePool, HeardPair, pair, worker

from router.errors import HandoverFailed, WorkerRefused
from router.handover import Leg
from router.handover.mooncake import MooncakeHandover

CHAT = b'{"model":"m","messages":[{"role":"user","content":"hello"}],"stream":true,"max_tokens":50}'


class BootstrapServer:
    """Answers queries; counts them."""

    def __init__(self) -> None:
        self.engines = {"0": {"engine_id": "engine-a", "worker_addr": {"0": {"0": "10.0.0.1:1"}}}}
        self.queries = 0
        self.silent = False
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"GET /query HTTP/1.1\r\n")
        self.queries += 1
        if self.silent:
            await reader.read()
        else:
            body = json.dumps(self.engines).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
            await writer.drain()
        writer.close()


@pytest.fixture
async def bootstrap() -> AsyncIterator[BootstrapServer]:
    bootstrap = BootstrapServer()
    server = await asyncio.start_server(bootstrap.serve, "127.0.0.1", 0)
    bootstrap.port = server.sockets[0].getsockname()[1]
    yield bootstrap
    server.close()


class Sent:
    def __init__(self, bootstrap: BootstrapServer, handover: MooncakeHandover, body: bytes = CHAT) -> None:
        self.prefill, self.decode, self.sink = FakePool(), FakePool(), HeardPair()
        labels = {"bootstrap_host": "127.0.0.1", "bootstrap_port": str(bootstrap.port)}
        self.at = pair(worker("p", self.prefill, **labels), worker("d", self.decode), body)
        self.legs: Any = handover.send(self.at, self.sink)

    async def begun(self) -> None:
        async with asyncio.timeout(60):
            while not (self.decode.legs or self.sink.said):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.001)


async def test_both_legs_are_sent_when_the_engine_has_told_its_id(bootstrap: BootstrapServer) -> None:
    sent = Sent(bootstrap, MooncakeHandover())
    assert sent.prefill.legs == []
    await sent.begun()

    prefill, decode = sent.prefill.leg.fields, sent.decode.leg.fields
    transfer_id = decode["kv_transfer_params"]["transfer_id"]
    assert prefill == json.loads(CHAT) | {
        "stream": False,
        "max_tokens": 1,
        "kv_transfer_params": {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "transfer_id": transfer_id,
        },
    }
    assert decode == json.loads(CHAT) | {
        "kv_transfer_params": {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "transfer_id": transfer_id,
            "remote_bootstrap_addr": f"http://127.0.0.1:{bootstrap.port}",
            "remote_engine_id": "engine-a",
        }
    }
    assert sent.prefill.leg.lines == sent.decode.leg.lines
    sent.prefill.leg.answer()
    assert sent.sink.said == ["prefilled"]
    sent.decode.leg.answer()
    assert sent.sink.said == ["prefilled", "shipped", "head", "end"]


async def test_a_client_cannot_say_whose_kv_is_fetched(bootstrap: BootstrapServer) -> None:
    forged = CHAT[:-1] + b',"kv_transfer_params":{"remote_bootstrap_addr":"evil","transfer_id":"t"}}'
    sent = Sent(bootstrap, MooncakeHandover(), forged)
    await sent.begun()

    params = sent.decode.leg.fields["kv_transfer_params"]
    assert params["remote_bootstrap_addr"] == f"http://127.0.0.1:{bootstrap.port}"
    assert params["transfer_id"] != "t"


async def test_an_engine_that_is_known_is_not_asked_again(bootstrap: BootstrapServer) -> None:
    handover = MooncakeHandover()
    await Sent(bootstrap, handover).begun()
    second = Sent(bootstrap, handover)

    assert second.decode.leg.fields["kv_transfer_params"]["remote_engine_id"] == "engine-a"
    assert bootstrap.queries == 1


async def test_of_several_ranks_the_one_that_prefills_is_named_to_both(bootstrap: BootstrapServer) -> None:
    bootstrap.engines = {str(rank): {"engine_id": f"engine-{rank}", "worker_addr": {}} for rank in range(3)}
    handover = MooncakeHandover()
    seen = set()
    for _ in range(60):
        sent = Sent(bootstrap, handover)
        await sent.begun()
        rank = sent.decode.leg.fields["kv_transfer_params"]["remote_engine_id"].removeprefix("engine-")
        assert f"x-data-parallel-rank: {rank}\r\n".encode() in sent.prefill.leg.lines
        assert b"x-data-parallel-rank" not in sent.decode.leg.lines
        seen.add(rank)

    assert seen == {"0", "1", "2"}


async def test_an_engine_that_does_not_tell_fails_the_request_before_anything_is_sent(
    bootstrap: BootstrapServer,
) -> None:
    bootstrap.engines = {}
    sent = Sent(bootstrap, MooncakeHandover())
    await sent.begun()

    assert sent.sink.said == ["failed"]
    assert isinstance(sent.sink.error, HandoverFailed)
    assert sent.legs.leg is Leg.PREFILL
    assert (sent.prefill.legs, sent.decode.legs) == ([], [])


async def test_a_client_that_leaves_before_the_engine_told_sends_nothing(bootstrap: BootstrapServer) -> None:
    handover = MooncakeHandover()
    left, stays = Sent(bootstrap, handover), Sent(bootstrap, handover)
    left.legs.abort()
    await stays.begun()

    assert (left.prefill.legs, left.decode.legs, left.sink.said) == ([], [], [])


@pytest.mark.parametrize("whose", ["prefill", "decode"])
async def test_after_a_failure_an_engine_is_asked_anew(bootstrap: BootstrapServer, whose: str) -> None:
    """It may be another one at the same address."""
    handover = MooncakeHandover()
    sent = Sent(bootstrap, handover)
    await sent.begun()
    bootstrap.engines["0"]["engine_id"] = "engine-b"
    if whose == "prefill":
        sent.prefill.leg.sink.upstream_failed(WorkerRefused("no"))
        assert sent.decode.leg.aborted
    else:
        sent.decode.leg.answer(status=500)
    again = Sent(bootstrap, handover)
    await again.begun()

    assert again.decode.leg.fields["kv_transfer_params"]["remote_engine_id"] == "engine-b"
