"""``POST /finish_session``: the end of a session, as clients of vllm-router tell it."""

from typing import Annotated, Any

from fastapi import FastAPI, Query, Request

from radix import NAME_CHARS_MAX
from router.admin.parts import AdminParts


def add_sessions(api: FastAPI, parts: AdminParts) -> None:
    """Add the route."""

    @api.post("/finish_session", tags=["models"])
    async def finish_session(
        request: Request,
        session_id: Annotated[
            str, Query(min_length=1, max_length=NAME_CHARS_MAX, description="Name of the session.")
        ],
    ) -> dict[str, Any]:
        """Forget the worker of one of the caller's sessions, at all replicas; say if it was known here."""
        tenant = parts.door.tenant_of(request.scope["headers"])
        return {"session_id": session_id, "finished": parts.finish_session(tenant.name, session_id)}
