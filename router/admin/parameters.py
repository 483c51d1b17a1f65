"""Parameters of a URL that its route does not know are refused: ``?drian=true`` must not remove at once.

Not those of probes and clients, who send more than we use, nor those of the older routers' dialect.
"""

from fastapi import Request
from fastapi.routing import APIRoute

from router.admin.gate import DATA_PATHS, is_open
from router.errors import ClientError

LENIENT_TAGS = frozenset(("peers", "models", "encoders"))


async def known_parameters(request: Request) -> None:
    """Refuse a request with a parameter that its route does not know.

    Raises:
        ClientError: If it has one.
    """
    route = request.scope.get("route")
    if not request.query_params or not isinstance(route, APIRoute):
        return
    if is_open(route.path) or route.path in DATA_PATHS or LENIENT_TAGS.intersection(route.tags):
        return
    known = [parameter.alias for parameter in route.dependant.query_params]
    unknown = sorted(set(request.query_params) - set(known))
    if unknown:
        offer = f"it knows {', '.join(known)}" if known else "it knows none"
        raise ClientError(
            f"{request.method} {route.path_format} has no parameter {unknown[0][:100]!r}; {offer}.",
            code="unknown_parameter",
            param=unknown[0][:100],
        )
