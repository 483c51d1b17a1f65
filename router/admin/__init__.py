"""The admin REST API."""

from router.admin.api import make_api
from router.admin.metrics_listener import serve_metrics
from router.admin.ports import AdminPorts
from router.admin.queue_view import QueuePorts

__all__ = ["AdminPorts", "QueuePorts", "make_api", "serve_metrics"]
