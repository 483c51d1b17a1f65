"""Settings of tracing, and the check that its extra is installed.

OpenTelemetry is an extra, ``cacheway[tracing]``, of 30 MB, and imported only when tracing is on.
"""

from dataclasses import dataclass
from importlib.util import find_spec

from policies import setting
from router.errors import SettingsError
from router.values import HttpUrl


@dataclass(frozen=True)
class SpanRules:
    """Requests that are traced, and the collector of their spans."""

    enable_trace: bool = setting(
        False,  # noqa: FBT003 - a default
        "Report requests as OpenTelemetry spans (queue, decision, prefill, hand-over, decode). The client's "
        "traceparent is their parent, and the worker gets one of ours. Needs cacheway[tracing]. Off, a "
        "client's traceparent passes through.",
    )
    otlp_traces_endpoint: HttpUrl = setting(
        "http://localhost:4318",
        "URL of the collector that takes spans over OTLP/HTTP; without a path, /v1/traces there. Spans that "
        "it does not take in time are dropped. The port is the protocol's; the peers' 4317 is for gRPC.",
    )
    trace_ratio: float = setting(
        0.1,
        "Share of the requests that are traced if their client does not say (by the flag of its "
        "traceparent), 0 to 1. A traced request costs as much CPU as two or three others.",
        ge=0,
        le=1,
    )


def check_tracing(rules: SpanRules) -> None:
    """Check that requests can be traced, before anything starts; raise SettingsError if they cannot."""
    if rules.enable_trace and not _installed():
        raise SettingsError(
            ["observability.enable_trace needs OpenTelemetry: install Cacheway with the extra tracing"]
        )


def _installed() -> bool:
    """Return True if the exporter is installed; other packages bring OpenTelemetry's API alone."""
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:  # not even what it is part of
        return False


def traces_url(endpoint: str) -> str:
    """Return the URL that spans are sent to: ``/v1/traces`` at the endpoint if it has no path."""
    url = endpoint.rstrip("/")
    return url if url.count("/") > 2 else f"{url}/v1/traces"
