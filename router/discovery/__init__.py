"""Workers from a Kubernetes cluster: found by labels, added when ready, drained when not, removed when gone.

    API server ──list + watch──> PodWatch ──pods──> Discovery ──WorkerPut, WorkerGone──> the shared log

For operators: docs/discovery.md. The service account needs exactly this, as a Role in each namespace with
workers; only for the namespace ``*`` as a ClusterRole::

    rules:
      - apiGroups: [""]
        resources: ["pods"]
        verbs: ["list", "watch"]

Every replica discovers by itself. While the API server is lost, workers stay, health checks go on, and
``cacheway_degraded{component="kubernetes"}`` reports it.
"""

from router.discovery.discovery import Discovery
from router.discovery.inference_pool import VERSIONS, PodPool
from router.discovery.rules import DiscoveryRules
from router.discovery.start import check_discovery, make_discovery, scopes_of
from router.discovery.watch import Selection

__all__ = [
    "VERSIONS",
    "Discovery",
    "DiscoveryRules",
    "PodPool",
    "Selection",
    "check_discovery",
    "make_discovery",
    "scopes_of",
]
