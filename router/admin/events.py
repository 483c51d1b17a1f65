"""``GET /events``: what the console shows, as Server-Sent Events (`router.console.stream`)."""

from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from router.console import EventStream

EXAMPLE = 'event: change\ndata: {"at_unix_s":1767225600.0,"loads":[[3,1.25,4,62]]}\n\n'


def add_events(api: FastAPI, stream: EventStream) -> None:
    """Add the route."""

    @api.get(
        "/events",
        tags=["console"],
        response_class=StreamingResponse,
        responses={
            200: {
                "description": "A stream without end; see docs/console.md for its messages.",
                "content": {"text/event-stream": {"schema": {"type": "string"}, "example": EXAMPLE}},
            },
            503: {"description": "Too many pages are connected to this replica."},
        },
    )
    async def events() -> StreamingResponse:
        """Everything that the console shows, then changes every second, and decisions as they happen."""
        return StreamingResponse(
            stream.messages(stream.join()),
            media_type="text/event-stream",
            # nginx gathers what it passes on, unless it is told not to.
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )
