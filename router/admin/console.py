"""``GET /``, ``/console`` and ``/events``: the console's page, its assets, and the stream that feeds it.

The files, some tens of kilobytes, are read once at the start. They hold nothing secret and need no token; the
page gets its data from the API, which asks for one. The content security policy allows the page nothing but
its own files: no inline script or style, nothing from elsewhere, in no frame.
"""

from hashlib import blake2b
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Annotated, Any, NamedTuple

from fastapi import FastAPI, Path, Request, Response
from fastapi.responses import HTMLResponse, StreamingResponse

from router import console as page
from router.console import EventStream
from router.errors import ClientError

PAGE = "console.html"
ASSETS = "/console/assets/"

CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; frame-ancestors 'none'; form-action 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    # Asked again each time, and answered with 304: after an upgrade no page mixes old and new files.
    "cache-control": "no-cache",
}


_EVENT = 'event: change\ndata: {"at_unix_s":1767225600.0,"loads":[[3,1.25,4,62]]}\n\n'

_UNCHANGED: dict[int | str, dict[str, Any]] = {304: {"description": "Unchanged since ``if-none-match``."}}

_ASSET: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The file.",
        "content": {kind: {"schema": {"type": "string"}} for kind in CONTENT_TYPES.values()},
    },
    404: {"description": "There is no such file."},
    **_UNCHANGED,
}


class Asset(NamedTuple):
    """One file, with the type of its ending and the hash of its bytes."""

    body: bytes
    content_type: str
    etag: str


def is_page(path: str) -> bool:
    """Return True if a path is the page's or one of its files', which need no token."""
    return path in ("/", "/console") or path.startswith(ASSETS)


def read_assets() -> dict[str, Asset]:
    """All files of the page by their names."""
    assets = {}
    for entry in files(page).joinpath("assets").iterdir():
        content_type = CONTENT_TYPES.get(PurePosixPath(entry.name).suffix)
        if content_type is not None:
            body = entry.read_bytes()
            digest = blake2b(body, digest_size=8).hexdigest()
            assets[entry.name] = Asset(body, content_type, f'"{digest}"')
    return assets


def add_console(api: FastAPI, stream: EventStream) -> None:
    """Add the routes."""
    assets = read_assets()

    def answer(request: Request, name: str) -> Response:
        asset = assets.get(name)
        if asset is None:
            raise ClientError(f"The console has no file {name!r}.", code="not_found", status=404)
        headers = {**HEADERS, "etag": asset.etag}
        if request.headers.get("if-none-match") == asset.etag:
            return Response(status_code=304, headers=headers)
        return Response(asset.body, headers=headers, media_type=asset.content_type)

    @api.get("/", tags=["console"], response_class=HTMLResponse, responses=_UNCHANGED)
    @api.get("/console", tags=["console"], response_class=HTMLResponse, responses=_UNCHANGED)
    async def page(request: Request) -> Response:
        """The console: a page for people."""
        return answer(request, PAGE)

    @api.get(f"{ASSETS}{{name}}", tags=["console"], response_class=Response, responses=_ASSET)
    async def asset(request: Request, name: Annotated[str, Path(description="Of the file.")]) -> Response:
        """A file of the console's page."""
        return answer(request, name)

    @api.get(
        "/events",
        tags=["console"],
        response_class=StreamingResponse,
        responses={
            200: {
                "description": "A stream without end; see docs/console.md for its messages.",
                "content": {"text/event-stream": {"schema": {"type": "string"}, "example": _EVENT}},
            },
            503: {"description": "Too many pages are connected to this replica."},
        },
    )
    async def events() -> StreamingResponse:
        """Everything that the console shows, then changes every second, and decisions as they happen."""
        return StreamingResponse(
            stream.messages(stream.join()),
            media_type="text/event-stream",
            # nginx buffers answers, unless it is told not to.
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )
