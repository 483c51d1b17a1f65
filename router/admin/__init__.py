"""The admin REST API."""

from router.admin.api import AdminPorts, make_api
from router.admin.metrics_listener import serve_metrics

__all__ = ["AdminPorts", "make_api", "serve_metrics"]
