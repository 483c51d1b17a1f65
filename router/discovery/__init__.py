"""Workers from a Kubernetes cluster: found by labels, added when ready, drained when not, removed when gone.

    API server ──list + watch──> PodWatch ──pods──> Discovery ──WorkerPut, WorkerGone──> the shared log

What a pod must say, and which names of the peers are understood: `router.discovery.pods`. When workers are
added, changed, drained and removed: `router.discovery.settling`. How nothing is missed:
`router.discovery.watch`. For operators: docs/discovery.md.

The service account needs exactly this, as a Role in each namespace where workers are, bound to the gateway's
service account; only for the namespace ``*`` as a ClusterRole::

    rules:
      - apiGroups: [""]
        resources: ["pods"]
        verbs: ["list", "watch"]

Every replica of the gateway discovers by itself. Losing the API server costs nothing but news: known workers
stay, health checks go on, and ``cacheway_degraded{component="kubernetes"}`` says so.

The client of the API server is an extra, ``cacheway[kubernetes]``, and imported only where discovery is on:
`router.discovery.start`.
"""

from router.discovery.discovery import Discovery
from router.discovery.rules import DiscoveryRules
from router.discovery.start import check_discovery, make_discovery, scopes_of
from router.discovery.watch import Selection

__all__ = ["Discovery", "DiscoveryRules", "Selection", "check_discovery", "make_discovery", "scopes_of"]
