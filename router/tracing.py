"""Whether requests are traced, and the way to the collector.

OpenTelemetry is an extra, ``cacheway[tracing]``, and imported only when tracing is on: it costs 30 MB and a
quarter of a second.
"""

from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from router.settings import ObservabilitySettings
from router.sources import SettingsError

if TYPE_CHECKING:
    from router.gateway.spans import Spans


def check_tracing(observability: ObservabilitySettings) -> None:
    """See that requests can be traced, before anything starts.

    Raises:
        SettingsError: They cannot.
    """
    if observability.enable_trace and not _installed():
        raise SettingsError(
            ["observability.enable_trace needs OpenTelemetry: pip install 'cacheway[tracing]'"]
        )


def _installed() -> bool:
    """Whether the last of what is needed is there; other packages bring OpenTelemetry's API alone."""
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:  # not even what it is part of
        return False


def opened_spans(observability: ObservabilitySettings, replica: str) -> "Spans | None":
    """Open the way to the collector; None while tracing is off."""
    if not observability.enable_trace:
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from router.gateway.spans import Spans

    return Spans(
        BatchSpanProcessor(OTLPSpanExporter(traces_url(observability.otlp_traces_endpoint))),
        ratio=observability.trace_ratio,
        resource={
            "service.name": "cacheway",
            "service.version": version("cacheway"),
            "service.instance.id": replica,
        },
    )


def traces_url(endpoint: str) -> str:
    """Where spans are sent: the endpoint itself, or ``/v1/traces`` there if it has no path."""
    url = endpoint.rstrip("/")
    return url if url.count("/") > 2 else f"{url}/v1/traces"
