"""The admin REST API."""

from router.admin.api import make_admin_api, make_api, make_data_api
from router.admin.fleet_sights import FleetSights
from router.admin.link_view import LinkPorts
from router.admin.listener import Listener, admin_tls
from router.admin.metrics_listener import make_metrics_api, serve_metrics
from router.admin.offload_view import OffloadPorts
from router.admin.ports import AdminPorts
from router.admin.queue_view import QueuePorts
from router.admin.replica_sights import ReplicaSights
from router.admin.settings_view import SettingsPorts

__all__ = [
    "AdminPorts",
    "FleetSights",
    "LinkPorts",
    "Listener",
    "OffloadPorts",
    "QueuePorts",
    "ReplicaSights",
    "SettingsPorts",
    "admin_tls",
    "make_admin_api",
    "make_api",
    "make_data_api",
    "make_metrics_api",
    "serve_metrics",
]
