"""A request: parse, identify, wait, dispatch, learn from the answer."""

from router.gateway.exchange import starting
from router.gateway.gateway import Gateway, Plugins
from router.gateway.placing import MakePolicy
from router.gateway.priorities import weights
from router.gateway.reader import RequestReader
from router.gateway.reports import Telemetry

__all__ = ["Gateway", "MakePolicy", "Plugins", "RequestReader", "Telemetry", "starting", "weights"]
