"""The workers of the fleet, and their health."""

from router.fleet.address import normal_url, worker_id_of
from router.fleet.asking import Asker, asked_page, asking_client
from router.fleet.core import Core
from router.fleet.discovered import ORIGIN_LABELS, REGISTERED_LABEL
from router.fleet.engine_info import ServedModel
from router.fleet.engine_metrics import EngineMetrics
from router.fleet.health import INSTANCE_HEADER, HealthChecks, instance_of
from router.fleet.kv_sources import label_hosts
from router.fleet.local_worker import Health, HealthRules, LocalWorker
from router.fleet.registry import Registry
from router.fleet.worker_key import WorkerKey

__all__ = [
    "INSTANCE_HEADER",
    "ORIGIN_LABELS",
    "REGISTERED_LABEL",
    "Asker",
    "Core",
    "EngineMetrics",
    "Health",
    "HealthChecks",
    "HealthRules",
    "LocalWorker",
    "Registry",
    "ServedModel",
    "WorkerKey",
    "asked_page",
    "asking_client",
    "instance_of",
    "label_hosts",
    "normal_url",
    "worker_id_of",
]
