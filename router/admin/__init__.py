"""The admin REST API."""

from router.admin.api import make_admin_api, make_api, make_data_api
from router.admin.fleet_view import ProcessFleetView
from router.admin.listener import Listener, admin_tls, make_metrics_api, serve_metrics
from router.admin.parts import AdminParts

__all__ = [
    "AdminParts",
    "Listener",
    "ProcessFleetView",
    "admin_tls",
    "make_admin_api",
    "make_api",
    "make_data_api",
    "make_metrics_api",
    "serve_metrics",
]
