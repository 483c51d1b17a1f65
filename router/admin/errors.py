"""Errors of the admin API in the OpenAI shape, as on the data path; under /v1/messages in Anthropic's.

An unknown parameter of a URL is an error: ``?drian=true`` must not remove at once. Exceptions are the routes
of probes, clients and the older routers' dialect, whose clients send more than we use.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from policies import OpRefused
from router.admin.gate import DATA_PATHS, is_open
from router.admin.suggestions import PATH_CHARS_MAX, POSTED
from router.errors import ClientError, Overloaded, RouterError, error_body
from router.proxy import Header, retry_after

Hint = Callable[[str, Sequence[Header]], str]
"""Ends the message for an unknown path, given the path and the headers of the request."""


def error_response(
    request_id: str, path: str, error: RouterError, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an error in the dialect of its path."""
    body = error_body(error, path.encode("latin-1", "replace"), request_id.encode("latin-1", "replace"))
    return Response(body, error.status, headers, "application/json")


def _shaped(request: Request, error: RouterError, headers: Mapping[str, str] | None = None) -> Response:
    return error_response(getattr(request.state, "request_id", ""), request.url.path, error, headers)


def add_errors(api: FastAPI, hint: Hint) -> None:
    """Add the handlers of errors."""

    async def known(request: Request, error: Exception) -> Response:
        assert isinstance(error, RouterError)
        headers = (
            {"retry-after": retry_after(error.retry_after_s).decode()}
            if isinstance(error, Overloaded)
            else {}
        )
        return _shaped(request, error, headers)

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path, status, headers = request.url.path, error.status_code, error.headers
        if status == 404 and request.method != "POST" and path in POSTED:
            status, headers = 405, {"Allow": "POST"}  # only POST requests there are not for this application
        code, message = "http_error", f"{request.method} {path}: {error.detail}"
        if status == 404:
            more = hint(path, request.headers.raw)
            code, message = "not_found", f"There is no {path[:PATH_CHARS_MAX]} here. {more}".rstrip()
        elif status == 405:
            takes = (headers or {}).get("Allow", "")
            code, message = "method_not_allowed", f"{path} takes {takes}, not {request.method}."
        shaped = ClientError(message, code=code, status=status)
        return _shaped(request, shaped, headers)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        # Invalid JSON has an offset for a place, which is no parameter.
        where = "" if first["type"] == "json_invalid" else ".".join(str(part) for part in first["loc"][1:])
        own = first["type"] == "value_error"  # a sentence of ours
        message = str(first["ctx"]["error"]) if own else f"{where or 'body'}: {first['msg']}"
        if first["loc"] == ("body",) and not _says_json(request):
            message = "The body must be JSON, and say so: content-type: application/json."
        shaped = ClientError(message, code="invalid_value", param=where or None)
        return _shaped(request, shaped)

    async def refused(request: Request, error: Exception) -> Response:
        """A value got past the checks of its route, and not into the shared log: nothing changed."""
        shaped = ClientError(f"The change has a value beyond its bounds: {error}", code="invalid_value")
        return _shaped(request, shaped)

    async def crashed(request: Request, _: Exception) -> Response:
        shaped = RouterError("The gateway failed to serve this request; its log says why.")
        return _shaped(request, shaped)

    api.add_exception_handler(Exception, crashed)
    api.add_exception_handler(RouterError, known)
    api.add_exception_handler(HTTPException, http)
    api.add_exception_handler(RequestValidationError, invalid)
    api.add_exception_handler(OpRefused, refused)


def _says_json(request: Request) -> bool:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return media_type == "application/json" or media_type.endswith("+json")


LENIENT_TAGS = frozenset(("peers", "models", "encoders"))


class StrictRoute(APIRoute):
    """A route that refuses parameters it does not know."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Check the parameters, then serve."""
        handler = super().get_route_handler()
        if is_open(self.path) or self.path in DATA_PATHS or LENIENT_TAGS.intersection(self.tags):
            return handler

        async def checked(request: Request) -> Response:
            if request.query_params:
                _check_parameters(self, request)
            return await handler(request)

        return checked


def _check_parameters(route: APIRoute, request: Request) -> None:
    known = [parameter.alias for parameter in route.dependant.query_params]
    unknown = sorted(set(request.query_params) - set(known))
    if unknown:
        offer = f"it knows {', '.join(known)}" if known else "it knows none"
        raise ClientError(
            f"{request.method} {route.path_format} has no parameter {unknown[0][:100]!r}; {offer}.",
            code="unknown_parameter",
            param=unknown[0][:100],
        )
