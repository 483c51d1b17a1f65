"""``GET /openapi.json``: what every route takes and answers, made from the routes themselves.

FastAPI writes most of it. What all routes have in common is added here: the errors, which are all of one
shape; who may use a route; and what the groups of routes are about. Nothing of it is loaded from elsewhere.
"""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, Field

from router.admin.access import needed_role
from router.admin.gate import is_open

ABOUT = """Everything here may also be written with `/admin` in front, and is asked with
`Authorization: Bearer TOKEN`: a token of `admin.tokens_file` (made by `cacheway keys admin`), or
`server.api_key` without such a file. What reads needs the role read, all else the role write.

What is changed holds for all replicas, and is written to the audit."""

TAGS = {
    "workers": "Who serves, in which role, how well; adding, changing, draining and removing.",
    "queue": "Requests that wait for a worker with room, at all replicas.",
    "settings": "What is set, and what may be changed while the gateway runs.",
    "decisions": "Why requests went where they went, and what would be decided now.",
    "tree": "What is known of the workers' caches.",
    "links": "Links between sites, and prefill in another site.",
    "tenants": "Who may use the gateway, and how much. Changed in the keys file, which is read again.",
    "replicas": "The copies of this gateway that share one log.",
    "audit": "Who changed what.",
    "console": "The console's page, and what it shows.",
    "health": "For probes and scrapers; without a token.",
    "models": "What clients ask beside what is proxied.",
    "encoders": "For SGLang's encoders, which register themselves.",
    "peers": "The dialect of the older routers.",
}


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str = Field(description="For people.")
    type: str = Field(description="Whose fault it is.", examples=["invalid_request_error"])
    param: str | None = Field(description="Which part of the request, if it is one.")
    code: str | None = Field(description="For programs.", examples=["worker_not_found"])


class ErrorBody(BaseModel):
    """Every error, in OpenAI's shape."""

    error: ErrorDetail


ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "model": ErrorBody,
        "description": "The request is at fault: 400 a wrong value, 401 no valid token, 403 a token that may "
        "not, 404 nothing of that name, 405 another method.",
    },
    "5XX": {
        "model": ErrorBody,
        "description": "The gateway or a worker is: 502 a worker did not answer, 503 nobody can just now.",
    },
}
"""Given to every route."""


def describe(api: FastAPI) -> None:
    """Let an application describe itself when it is first asked."""

    def described() -> dict[str, Any]:
        if api.openapi_schema is None:
            api.openapi_schema = _schema(api)
        return api.openapi_schema

    api.openapi = described  # type: ignore[method-assign]


def _schema(api: FastAPI) -> dict[str, Any]:
    schema = get_openapi(
        title=api.title, version=api.version, summary=api.summary, description=ABOUT, routes=api.routes
    )
    schema["components"].setdefault("securitySchemes", {})["token"] = {
        "type": "http",
        "scheme": "bearer",
        "description": "A token of the tokens file, or the gateway's own key.",
    }
    used = set()
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            used.update(operation["tags"])
            summary, _, more = operation.get("description", "").partition("\n")
            operation["summary"] = summary.rstrip(".")
            operation["description"] = more.strip() or summary
            if not is_open(path):
                operation["security"] = [{"token": []}]
                operation["x-role"] = needed_role(method.upper(), path)
    schema["tags"] = [{"name": name, "description": about} for name, about in TAGS.items() if name in used]
    return schema
