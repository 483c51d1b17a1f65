"""Models: which one serves a request, and which workers of it.

    asked for ──alias──> model ──split──> model or workers ──> the gateway's decision
                 `── the name in the body is replaced in place; nothing else of it changes

For operators: docs/models.md. All of it is off until `router.model_rules` says otherwise, and changes while
the gateway serves. `ModelReader` is plugged in as the gateway's request reader; the plain path knows only
`router.gateway.parsing.ModelChoice`.
"""

from router.models.aliases import Aliases
from router.models.gate import AdapterGate
from router.models.loader import AdapterLoader
from router.models.mirror import Mirror
from router.models.reader import ModelReader

__all__ = ["AdapterGate", "AdapterLoader", "Aliases", "Mirror", "ModelReader"]
