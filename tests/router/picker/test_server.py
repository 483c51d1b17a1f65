"""A picker's servers on real sockets, asked by clients that play a proxy, well or badly."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import orjson
import pytest
import trustme
from fakes.gateway import chat
from fakes.proxy_stream import CHAT, destination_of
from fakes.running import Fleet, RunningGateway, until, until_async
from grpc_health.v1 import health_pb2, health_pb2_grpc

from loadtest.processes import free_port
from router.metric_families import PICKER_STREAMS_CUT
from router.picker.proto import ext_proc_pb2 as pb
from router.picker.server import HEALTH_SERVICES, LIVENESS, SERVICE, Picker

HEAD = pb.ProcessingRequest(
    request_headers=pb.HttpHeaders(
        headers=pb.HeaderMap(
            headers=[
                pb.HeaderValue(key=":method", raw_value=b"POST"),
                pb.HeaderValue(key=":path", raw_value=CHAT),
            ]
        )
    )
)


def body(data: bytes, *, ends: bool = True) -> pb.ProcessingRequest:
    return pb.ProcessingRequest(request_body=pb.HttpBody(body=data, end_of_stream=ends))


ASK = body(orjson.dumps(chat(model="emulated")))


@contextlib.asynccontextmanager
async def serving(redis_url: str, namespace: str, **sections: Any) -> AsyncIterator[RunningGateway]:
    async with contextlib.AsyncExitStack() as stack:
        fleet = Fleet(redis_url, namespace, stack)
        engine = await fleet.engine()
        rules = {
            "enabled": True,
            "grpc_host": "127.0.0.1",
            "grpc_port": free_port(),
            "grpc_health_port": free_port(),
            "secure_serving": False,
            **sections.pop("picker", {}),
        }
        running = await fleet.gateway(engine.url, picker=rules, **sections)
        await until(lambda: of(running).health_port and of(running).ready)
        yield running
        await until(running.idle)


def of(running: RunningGateway) -> Picker:
    assert running.process.picker is not None
    return running.process.picker


def asking(channel: grpc.aio.Channel) -> Any:
    """Begin a stream."""
    method = channel.stream_stream(
        f"/{SERVICE}/Process",
        request_serializer=pb.ProcessingRequest.SerializeToString,
        response_deserializer=pb.ProcessingResponse.FromString,
    )
    return method()


def connect(running: RunningGateway) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"127.0.0.1:{of(running).port}")


async def said(call: Any, *messages: pb.ProcessingRequest) -> Sequence[pb.ProcessingResponse]:
    """Send messages, end, and read until the picker has ended, too."""
    for message in messages:
        await call.write(message)
    await call.done_writing()
    return [answer async for answer in call]


async def test_a_stream_gets_its_choice_and_ends_with_its_proxy(redis_url: str, namespace: str) -> None:
    async with serving(redis_url, namespace) as running, connect(running) as channel:
        call = asking(channel)
        await call.write(HEAD)
        await call.write(ASK)
        assert destination_of(await call.read())
        assert (await call.read()).HasField("request_body")
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


async def test_a_proxy_that_breaks_the_protocol_is_told(redis_url: str, namespace: str) -> None:
    async with serving(redis_url, namespace) as running, connect(running) as channel:
        call = asking(channel)
        await call.write(ASK)
        with pytest.raises(grpc.aio.AioRpcError, match="cannot come in state head"):
            await call.read()
        again = asking(channel)  # the connection goes on
        assert destination_of((await said(again, HEAD, ASK))[0])


async def test_a_proxy_that_resets_its_stream_frees_the_worker(redis_url: str, namespace: str) -> None:
    async with serving(redis_url, namespace) as running, connect(running) as channel:
        call = asking(channel)
        await call.write(HEAD)
        await call.write(ASK)
        await call.read()
        assert running.process.gateway.sending.inflight == 1
        call.cancel()
        await until(lambda: running.process.gateway.sending.inflight == 0)


async def test_streams_beyond_the_bound_get_429(redis_url: str, namespace: str) -> None:
    async with (
        serving(redis_url, namespace, picker={"streams_max": 2}) as running,
        connect(running) as channel,
    ):
        first, second = asking(channel), asking(channel)
        for call in (first, second):
            await call.write(HEAD)
        await until(lambda: of(running)._streams == 2)
        (answer,) = await said(asking(channel), HEAD)
        assert answer.immediate_response.status.code == 429
        first.cancel()
        await until(lambda: of(running)._streams == 1)
        third = asking(channel)
        await third.write(HEAD)
        await third.write(ASK)
        assert destination_of(await third.read())
        for call in (second, third):
            call.cancel()


async def test_a_message_beyond_the_bound_ends_its_stream_only(redis_url: str, namespace: str) -> None:
    """Bodies of up to ``server.body_bytes_max``, and a megabyte beside them."""
    server = {"body_bytes_max": 1024, "held_bytes_max": 0}
    async with serving(redis_url, namespace, server=server) as running, connect(running) as channel:
        call = asking(channel)
        await call.write(HEAD)
        await call.write(body(b"x" * 3_000_000))
        with pytest.raises(grpc.aio.AioRpcError):
            await call.read()
        (answer,) = await said(asking(channel), HEAD, body(b"x" * 2000))
        assert answer.immediate_response.status.code == 413


async def test_bytes_that_are_no_message_end_their_stream_only(redis_url: str, namespace: str) -> None:
    async with serving(redis_url, namespace) as running, connect(running) as channel:
        raw = channel.stream_stream(
            f"/{SERVICE}/Process", request_serializer=bytes, response_deserializer=bytes
        )()
        await raw.write(b"\xff" * 100)
        with pytest.raises(grpc.aio.AioRpcError):
            await raw.read()
        assert destination_of((await said(asking(channel), HEAD, ASK))[0])


async def test_a_body_in_single_bytes_is_joined(redis_url: str, namespace: str) -> None:
    data = orjson.dumps(chat("hi", model="emulated"))
    async with serving(redis_url, namespace) as running, connect(running) as channel:
        parts = [body(data[at : at + 1], ends=False) for at in range(len(data))]
        choice, piece = await said(asking(channel), HEAD, *parts, body(b""))
        assert destination_of(choice)
        assert piece.request_body.response.body_mutation.streamed_response.body == data


def cut(running: RunningGateway, reason: str) -> float:
    """Streams that were ended early for a reason."""
    count = running.process.metrics.counts[PICKER_STREAMS_CUT]
    count.flush()
    return count.totals("reason").get(reason, 0)


async def test_a_proxy_that_reads_nothing_loses_its_stream(redis_url: str, namespace: str) -> None:
    """The body of 12 MB has to go back, and gRPC takes some 4 MB for a reader that does not read."""
    server = {"stall_s_max": 0.3}
    async with serving(redis_url, namespace, server=server) as running, connect(running) as channel:
        call = asking(channel)
        await call.write(HEAD)
        await call.write(body(orjson.dumps(chat("x" * 12_000_000, model="emulated"))))
        await until(lambda: cut(running, "stalled") == 1)
        await until(lambda: of(running)._streams == 0)
        await until(running.idle)
        assert running.process.clients.held.count == 0
        assert destination_of((await said(asking(channel), HEAD, ASK))[0])
        call.cancel()


async def test_connections_beyond_the_bound_are_closed(redis_url: str, namespace: str) -> None:
    async with serving(redis_url, namespace, picker={"proxy_connections_max": 2}) as running:
        port = of(running).port
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for reader, _ in held:
            assert await reader.read(1)  # the server's first frame
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        for _, each in (*held, (reader, writer)):
            each.close()

        async def serves() -> bool:
            async with connect(running) as channel:
                try:
                    return bool(destination_of((await said(asking(channel), HEAD, ASK))[0]))
                except grpc.aio.AioRpcError:
                    return False

        await until_async(serves)


async def test_thousands_of_streams_hold_what_the_bound_allows_and_leave_nothing(
    redis_url: str, namespace: str
) -> None:
    async with (
        serving(redis_url, namespace, picker={"streams_max": 500}) as running,
        connect(running) as channel,
    ):
        calls = [asking(channel) for _ in range(2000)]
        writes = [asyncio.create_task(call.write(HEAD)) for call in calls]
        await until(lambda: of(running)._streams == 500)
        for each in (*calls, *writes):
            each.cancel()
        await asyncio.gather(*writes, return_exceptions=True)
        await until(lambda: of(running)._streams == 0)
        await until(running.idle)

        async def serves() -> bool:
            return bool(destination_of((await said(asking(channel), HEAD, ASK))[0]))

        await until_async(serves)


async def test_a_body_of_nothing_without_an_end_is_408(redis_url: str, namespace: str) -> None:
    server = {"read_timeout_s": 0.5}
    async with serving(redis_url, namespace, server=server) as running, connect(running) as channel:
        call = asking(channel)
        await call.write(HEAD)

        async def forever() -> None:
            while True:
                await call.write(body(b"", ends=False))

        writing = asyncio.create_task(forever())
        answer = await call.read()
        assert answer.immediate_response.status.code == 408
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        call.cancel()
        await until(lambda: of(running)._streams == 0)


async def test_a_proxy_that_closes_its_side_in_the_middle_frees_all(redis_url: str, namespace: str) -> None:
    answer = pb.ProcessingRequest(response_headers=pb.HttpHeaders())
    whole = (HEAD, ASK, answer)
    async with serving(redis_url, namespace) as running, connect(running) as channel:
        for count in range(len(whole) + 1):
            assert isinstance(await said(asking(channel), *whole[:count]), list)
            await until(lambda: of(running)._streams == 0)
        await until(running.idle)


async def test_messages_in_any_order_crash_nothing(redis_url: str, namespace: str) -> None:
    drawn = random.Random(11)
    kinds = [
        HEAD,
        ASK,
        body(b"{", ends=False),
        pb.ProcessingRequest(),
        pb.ProcessingRequest(request_trailers=pb.HttpTrailers()),
        pb.ProcessingRequest(response_headers=pb.HttpHeaders()),
        pb.ProcessingRequest(response_body=pb.HttpBody(body=b"x")),
        pb.ProcessingRequest(response_body=pb.HttpBody(end_of_stream=True)),
        pb.ProcessingRequest(response_trailers=pb.HttpTrailers()),
    ]
    async with serving(redis_url, namespace) as running, connect(running) as channel:
        for _ in range(300):
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await said(asking(channel), HEAD, *drawn.choices(kinds, k=drawn.randint(1, 6)))
        assert cut(running, "crashed") == 0
        assert cut(running, "out_of_order") > 50
        await until(lambda: of(running)._streams == 0)


async def test_health_is_the_gateways_readiness_and_liveness_is_not(redis_url: str, namespace: str) -> None:
    async with (
        serving(redis_url, namespace) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{of(running).health_port}") as probes,
        connect(running) as channel,
    ):
        stubs = [health_pb2_grpc.HealthStub(each) for each in (probes, channel)]

        async def are(status: int) -> bool:
            found = [
                (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status
                for stub in stubs
                for name in HEALTH_SERVICES
            ]
            return found == [status] * len(found)

        await until_async(lambda: are(health_pb2.HealthCheckResponse.SERVING))
        (local,) = running.process.registry.all()
        running.process.registry.change(local.worker.worker_id, draining=True)
        await until_async(lambda: are(health_pb2.HealthCheckResponse.NOT_SERVING))
        alive = await stubs[0].Check(health_pb2.HealthCheckRequest(service=LIVENESS))
        assert alive.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError, match="NOT_FOUND"):
            await stubs[0].Check(health_pb2.HealthCheckRequest(service="nobody"))


async def test_a_renewed_certificate_is_shown_to_the_next_connection(
    redis_url: str, namespace: str, tmp_path: Path
) -> None:
    def issue() -> trustme.CA:
        authority = trustme.CA()
        issued = authority.issue_cert("localhost")
        (tmp_path / "tls.key").write_bytes(issued.private_key_pem.bytes())
        (tmp_path / "tls.crt").write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        return authority

    async def asked(running: RunningGateway, authority: trustme.CA) -> bool:
        credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.ssl_target_name_override", "localhost")]
        address = f"127.0.0.1:{of(running).port}"
        async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
            try:
                return bool(destination_of((await said(asking(channel), HEAD, ASK))[0]))
            except grpc.aio.AioRpcError:
                return False

    authority = issue()
    rules = {"secure_serving": True, "cert_path": str(tmp_path)}
    async with serving(redis_url, namespace, picker=rules) as running:
        assert await asked(running, authority)
        renewed = issue()
        await until_async(lambda: asked(running, renewed))
        assert not await asked(running, authority)


async def test_a_taken_port_is_named_and_tried_again(
    redis_url: str, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = taken.sockets[0].getsockname()[1]
        fleet = Fleet(redis_url, namespace, stack)
        running = await fleet.gateway(
            picker={"enabled": True, "grpc_host": "127.0.0.1", "grpc_port": port, "grpc_health_port": 0}
        )
        await until(lambda: f"cannot listen on 127.0.0.1:{port}" in caplog.text)
        taken.close()
        await taken.wait_closed()
        await until(lambda: of(running).port == port)
