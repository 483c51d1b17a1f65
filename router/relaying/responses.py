"""Which worker keeps a stored response.

Engines keep the responses that they stored in their own memory, so only the one that answered knows an id.
"""

from router.fleet import LocalWorker
from router.gateway.gateway import Gateway


def worker_of_response(gateway: Gateway, response_id: str) -> LocalWorker | None:
    """Return the worker that keeps a response; None if nobody knows, and any worker is asked."""
    return None
