"""One request: parse, identify, wait, dispatch, learn from the answer."""

from router.gateway.gateway import Gateway
from router.gateway.priorities import weights

__all__ = ["Gateway", "weights"]
