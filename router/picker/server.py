"""The gRPC servers of a picker: one for proxies, one for probes.

    proxy ──Process(stream)──> `ProxyStream`, one each        health: set every `LOOK_S`, for both servers

`Picker.run` serves until it is cancelled, then refuses new streams and gives those that are open the grace of
``server.shutdown_grace_s``, or until `Picker.cut`. Health is that of ``GET /readiness``: it ends before the
streams do.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from router.errors import RequestRejected, StateError
from router.fleet import Health
from router.gateway import Gateway
from router.log_pace import LogPace
from router.metric_families import (
    PICKER_PASSED,
    PICKER_SERVED_ELSEWHERE,
    PICKER_STREAMS,
    PICKER_STREAMS_CUT,
)
from router.metrics import Metrics
from router.picker import messages
from router.picker.certificates import CertificateFolder, self_signed
from router.picker.exchange import Reach
from router.picker.intents import Intents
from router.picker.proto import ext_proc_pb2 as pb
from router.picker.sidecar import SharePair
from router.picker.stream import OutOfOrder, Parts, ProxyStream
from router.proxy import Ending, HeldBytes, error_answer
from router.settings import Settings

logger = logging.getLogger(__name__)

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"

HEALTH_SERVICES = ("", "readiness", SERVICE, "inference-extension")
"""Services that are healthy while requests should be sent here (protocol, Health Checking); the last is the
name in manifests of 2025."""

LIVENESS = "liveness"

LOOK_S = 0.5
"""Between two looks at the health."""

MESSAGE_SLACK_BYTES = 1 << 20
"""Beside a whole body in one message: heads, metadata, framing."""

PROBES_MAX = 100
"""Connections of probes, and calls for health beside the streams of proxies."""

HANDSHAKE_MS = 10_000
"""Time for TLS and the first frames of a connection; gRPC's default is two minutes."""

IDLE_MS = 600_000
"""A connection without a stream is closed after it. A proxy opens another one with its next request."""

ALIVE_MS, ALIVE_ANSWER_MS = 60_000, 20_000
"""Time without a frame after which a connection is asked if it lives, and time for its answer."""

AGE_MS = 900_000
"""Age at which a connection is ended when its streams are, at the latest after the longest answer. Proxies
open another one, so new replicas get their share, and what a proxy does not read is not kept for ever."""

INT_MAX = (1 << 31) - 1
"""The largest number of an option; gRPC takes it for no bound."""


class Picker:
    """Serves proxies. Make it inside a running event loop."""

    def __init__(
        self,
        settings: Settings,
        gateway: Gateway,
        metrics: Metrics,
        *,
        held: HeldBytes,
        ending: Ending,
        settled: Callable[[], bool],
        share: SharePair | None = None,
        serves: Callable[[bytes, bytes], bool] = lambda _method, _path: True,
    ) -> None:
        """Build it.

        Args:
            settings: The effective settings.
            gateway: The parts that decide.
            metrics: Metrics of the process.
            held: The account of bodies that the process holds.
            ending: The end of the process.
            settled: Returns True once discovery knows the pods, or if there is none.
            share: Reserves on the two workers that share a request.
            serves: Returns True if a request of this method and path may go to a worker.
        """
        self._settings, self._gateway, self._metrics = settings, gateway, metrics
        self._ending, self._settled = ending, settled
        self.intents = Intents(settings)
        self._streams, self._pace = 0, LogPace()
        self._cut = asyncio.Event()
        self.port = self.health_port = 0
        """Ports that are bound; 0 before."""
        self._parts = Parts(
            gateway,
            held,
            self.intents,
            lambda: self._settings.server,
            not settings.picker.disable_endpoint_subset_filter,
            lambda: metrics.sums[PICKER_PASSED].add(1),
            lambda: metrics.sums[PICKER_SERVED_ELSEWHERE].add(1),
            Reach(settings.picker.fallback_endpoints, share if settings.picker.decode_sidecars else None),
            serves,
        )

    def use(self, settings: Settings) -> None:
        """Apply new settings to later requests."""
        self._settings = settings
        self.intents.use(settings)

    def report(self, metrics: Metrics) -> None:
        """Tell the number of open streams."""
        metrics.set(PICKER_STREAMS, self._streams)

    @property
    def ready(self) -> bool:
        """True if proxies should send requests here."""
        return (
            not self._ending.begun
            and self._settled()
            and any(
                local.health is Health.HEALTHY and not local.worker.draining
                for local in self._gateway.registry.all()
            )
        )

    async def run(self) -> None:
        """Serve until cancelled; raise `StateError` if a port cannot be bound."""
        rules = self._settings.picker
        probes = health.aio.HealthServicer()
        async with contextlib.AsyncExitStack() as stack:
            calls_max = rules.streams_max + PROBES_MAX
            server = grpc.aio.server(
                options=self._options(rules.proxy_connections_max, calls_max),
                maximum_concurrent_rpcs=calls_max,
            )
            server.add_generic_rpc_handlers((self._handler(),))
            health_pb2_grpc.add_HealthServicer_to_server(probes, server)
            address = _address(rules.grpc_host, rules.grpc_port)
            self.port = _bound(partial(self._bind, server, address), address)
            await self._started(server, stack, self._settings.server.shutdown_grace_s)
            if rules.grpc_health_port:
                second = grpc.aio.server(
                    options=self._options(PROBES_MAX, PROBES_MAX), maximum_concurrent_rpcs=PROBES_MAX
                )
                health_pb2_grpc.add_HealthServicer_to_server(probes, second)
                address = _address(rules.grpc_host, rules.grpc_health_port)
                self.health_port = _bound(partial(second.add_insecure_port, address), address)
                await self._started(second, stack, 0.0)
            logger.info(
                "serving proxies",
                extra={"event": "picker.started", "port": self.port, "tls": rules.secure_serving},
            )
            await probes.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
            while True:
                status = (
                    health_pb2.HealthCheckResponse.SERVING
                    if self.ready
                    else health_pb2.HealthCheckResponse.NOT_SERVING
                )
                for service in HEALTH_SERVICES:
                    await probes.set(service, status)
                await asyncio.sleep(LOOK_S)

    async def _started(
        self, server: grpc.aio.Server, stack: contextlib.AsyncExitStack, grace_s: float
    ) -> None:
        await server.start()
        stack.push_async_callback(self._stopped, server, grace_s)

    async def _stopped(self, server: grpc.aio.Server, grace_s: float) -> None:
        """Stop a server when its streams have ended, after the grace, or at the cut."""
        stopping = asyncio.create_task(server.stop(grace_s), name="picker stops")
        cut = asyncio.create_task(self._cut.wait(), name="picker is cut")
        await asyncio.wait({stopping, cut}, return_when=asyncio.FIRST_COMPLETED)
        cut.cancel()
        if not stopping.done():
            await server.stop(0.0)
        await stopping

    def cut(self) -> None:
        """Break open streams off as soon as the process stops."""
        self._cut.set()

    def _options(self, connections_max: int, streams_max: int) -> list[tuple[str, int]]:
        server = self._settings.server
        return [
            (
                "grpc.max_receive_message_length",
                min(
                    server.body_bytes_max + MESSAGE_SLACK_BYTES, self._settings.picker.proxy_message_bytes_max
                ),
            ),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_allowed_incoming_connections", connections_max),
            ("grpc.max_concurrent_streams", streams_max),
            ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
            ("grpc.max_connection_idle_ms", IDLE_MS),
            ("grpc.max_connection_age_ms", AGE_MS),
            ("grpc.max_connection_age_grace_ms", min(round(server.request_timeout_s * 1e3), INT_MAX)),
            ("grpc.keepalive_time_ms", ALIVE_MS),
            ("grpc.keepalive_timeout_ms", ALIVE_ANSWER_MS),
            ("grpc.max_metadata_size", server.header_bytes_max),
            ("grpc.so_reuseport", int(server.workers > 1)),
            # Proxies keep idle connections open, and ask now and then whether they still are.
            ("grpc.http2.min_ping_interval_without_data_ms", 5000),
            ("grpc.keepalive_permit_without_calls", 1),
        ]

    def _bind(self, server: grpc.aio.Server, address: str) -> int:
        rules = self._settings.picker
        if not rules.secure_serving:
            return server.add_insecure_port(address)
        if not rules.cert_path:
            return server.add_secure_port(address, grpc.ssl_server_credentials([self_signed()]))
        folder = CertificateFolder(rules.cert_path)
        pair = folder.read()
        if not rules.enable_cert_reload:
            return server.add_secure_port(address, grpc.ssl_server_credentials([pair]))

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            changed = folder.changed()
            return None if changed is None else grpc.ssl_server_certificate_configuration([changed])

        first = grpc.ssl_server_certificate_configuration([pair])
        credentials = grpc.dynamic_ssl_server_credentials(
            first,
            renewed,  # type: ignore[arg-type]  # None keeps the present one
            require_client_authentication=False,
        )
        return server.add_secure_port(address, credentials)

    # One stream.

    def _handler(self) -> grpc.GenericRpcHandler:
        process = grpc.stream_stream_rpc_method_handler(
            self._process,
            request_deserializer=pb.ProcessingRequest.FromString,
            response_serializer=pb.ProcessingResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"Process": process})

    async def _process(self, _: Any, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
        """Serve one stream of a proxy."""
        stall_s = self._settings.server.stall_s_max
        if self._streams >= self._settings.picker.streams_max:
            self._count("too_many")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(stall_s):
                    await context.write(self._too_many())
            return
        self._streams += 1
        stream = ProxyStream(self._parts)
        reader = asyncio.create_task(self._read(stream, context), name="picker stream")
        try:
            async for message in stream.outbox.messages():
                async with asyncio.timeout(stall_s):
                    await context.write(message)
        except TimeoutError:
            self._count("stalled")
            # Not `abort`, which would wait behind what is not read. The age of the connection ends the call.
            context.set_code(grpc.StatusCode.ABORTED)
            context.set_details("the proxy reads nothing")
            return
        finally:
            self._streams -= 1
            reader.cancel()
            stream.gone(ending=self._ending.begun)
        if stream.outbox.failed:
            await context.abort(grpc.StatusCode.ABORTED, stream.outbox.failed)

    async def _read(self, stream: ProxyStream, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
        """Read what a proxy sends, until it ends its side."""
        try:
            while True:
                message = await context.read()
                if message is grpc.aio.EOF:
                    stream.gone()
                    return
                stream.heard(message)
                await stream.outbox.room()
        except OutOfOrder as error:
            self._count("out_of_order")
            left_out = self._pace.due()
            if left_out is not None:
                logger.warning(
                    "a proxy broke the protocol: its stream ends, and other streams go on; see which proxies "
                    "reach the picker's port",
                    extra={"event": "picker.out_of_order", "detail": str(error), "left_out": left_out},
                )
            stream.outbox.end(str(error))
        except Exception:
            self._count("crashed")
            logger.exception("a stream of a proxy failed", extra={"event": "picker.crashed"})
            stream.outbox.end("the picker failed; its log says why")

    def _count(self, reason: str) -> None:
        self._metrics.counts[PICKER_STREAMS_CUT].add((reason,))

    def _too_many(self) -> pb.ProcessingResponse:
        error = RequestRejected(
            f"{self._streams} requests of proxies are served already.",
            retry_after_s=1.0,
            code="too_many_requests",
        )
        self._gateway.reports.refusals.add(error.code, "", error.retry_after_s)
        lines, body = error_answer(error)
        return messages.immediate(error.status, lines, body, "cacheway")


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bound(bind: Callable[[], int], address: str) -> int:
    try:
        port = bind()
    except RuntimeError as error:
        raise StateError(f"cannot listen on {address}: {error}") from error
    if not port:
        raise StateError(f"cannot listen on {address}")
    return port
