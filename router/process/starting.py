"""Start of a process: its name, the files and collectors it opens, and the first health checks."""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable
from importlib.metadata import version
from typing import TYPE_CHECKING

from router.discovery import Discovery
from router.fleet import Health
from router.process.worker_side import WorkerSide
from router.request_trace import RequestTrace, RequestTraceRules
from router.secret_files import SecretWatch
from router.settings import Settings
from router.tracing import SpanRules, traces_url

if TYPE_CHECKING:
    from router.gateway.spans import Spans

logger = logging.getLogger(__name__)

FIRST_PROBES_S = 3.0
"""Seconds that the start waits for the first round of health checks."""


def replica_id(settings: Settings) -> str:
    """Id of this replica: the one in the settings, or one that no other process has."""
    if settings.shared.replica_id:
        several = settings.server.workers > 1
        return f"{settings.shared.replica_id}-{os.getpid()}" if several else settings.shared.replica_id
    return f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(2)}"


def secret_watches(
    settings: Settings, use_server_key: Callable[[bytes], None], use_workers_key: Callable[[bytes], None]
) -> list[SecretWatch]:
    """Watch the key files that an operator may replace."""
    server_key, workers_key = settings.server.api_key_file, settings.fleet.worker_api_key_file
    return [
        *([SecretWatch(server_key, use_server_key)] if server_key else ()),
        *([SecretWatch(workers_key, use_workers_key)] if workers_key else ()),
    ]


def opened_trace(rules: RequestTraceRules) -> RequestTrace | None:
    """Open the trace of requests, if the settings name one."""
    if not rules.request_trace:
        return None
    return RequestTrace(rules.request_trace, rules.request_trace_bytes_max)


def opened_spans(rules: SpanRules, replica: str) -> "Spans | None":
    """Open the way to the collector; None while tracing is off."""
    if not rules.enable_trace:
        return None
    # An extra of 30 MB, imported in a quarter of a second.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from router.gateway.spans import Spans

    return Spans(
        BatchSpanProcessor(OTLPSpanExporter(traces_url(rules.otlp_traces_endpoint))),
        ratio=rules.trace_ratio,
        resource={
            "service.name": "cacheway",
            "service.version": version("cacheway"),
            "service.instance.id": replica,
        },
    )


def warn_of_unpriced_links(settings: Settings) -> None:
    """Say it if prompts could be prefilled in another site and never will be."""
    if settings.fleet.links and not any(model.known for model in settings.placement.models.values()):
        logger.warning(
            "nothing is prefilled in another site: placement.models gives no model's size of KV",
            extra={"event": "links.unpriced"},
        )


async def first_probes(workers: WorkerSide, discovery: Discovery | None) -> None:
    """Wait until each worker was probed once, but not for long; nothing ends because this does."""
    try:
        async with asyncio.timeout(FIRST_PROBES_S):
            if discovery is not None:
                await discovery.first_settled.wait()
            await workers.health.all_probed()
    except TimeoutError:
        pass
    known = workers.core.registry.all()
    if not known:
        logger.warning(
            "there are no workers yet, so every request gets 503: name them with --worker-urls, add them "
            "with POST /workers of the admin API, or find pods with --service-discovery",
            extra={"event": "worker.missing", "worker_ids": [], "count": 0},
        )
    unwell = [w for w in known if w.health is not Health.HEALTHY]
    if unwell:
        logger.warning(
            "some workers are not healthy yet: this replica serves with the others, and goes on asking",
            extra={
                "event": "worker.missing",
                "worker_ids": [local.worker.worker_id for local in unwell[:20]],
                "count": len(unwell),
                "detail": unwell[0].detail,
            },
        )
