"""One request: parse, identify, dispatch, learn from the answer."""

from router.gateway.gateway import Gateway

__all__ = ["Gateway"]
