"""The admin REST API."""

from router.admin.api import make_api
from router.admin.link_view import LinkPorts
from router.admin.metrics_listener import serve_metrics
from router.admin.offload_view import OffloadPorts
from router.admin.ports import AdminPorts
from router.admin.queue_view import QueuePorts

__all__ = [
    "AdminPorts",
    "LinkPorts",
    "OffloadPorts",
    "QueuePorts",
    "make_api",
    "serve_metrics",
]
