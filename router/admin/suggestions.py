"""Suggestion of the path that was probably meant by a path that is not served.

    /v1/v1/chat/completions   a base URL that ends with /v1, in a client that adds it
    /chat/completions         a base URL without it
    /v1/chat/completion       a slip

Clients get one suggestion, of a path for clients. Only clients that may use the admin API see its paths.
"""

import difflib
import re

from router.gateway.endpoints import ENDPOINTS, UPLOADS, Endpoint

PATH_CHARS_MAX = 200
"""A longer path gets no suggestion."""

LIKENESS_MIN = 0.8
"""Below, a guess leads astray more often than not."""

POSTED = tuple(sorted({path.decode() for path in ENDPOINTS} | {endpoint.value for endpoint in UPLOADS}))
"""Paths that clients post to."""

_OTHERS = ("/v1/models", Endpoint.REALTIME.value)


def suggestion_of(path: str) -> str:
    """Return a sentence that names the path that was probably meant; empty if none is near."""
    if len(path) > PATH_CHARS_MAX:
        return ""
    bare = re.sub(r"/{2,}", "/", path).rstrip("/").lower()
    rest = re.sub(r"^(?:/v1)+(?=/|$)", "", bare.removeprefix("/openai").removeprefix("/api"))
    for meant in (f"/v1{rest}", rest, bare):
        if meant != path and meant in (*POSTED, *_OTHERS):
            return f"Did you mean {meant}?"
    near = difflib.get_close_matches(f"/v1{rest}", (*POSTED, *_OTHERS), 1, LIKENESS_MIN)
    near = near or difflib.get_close_matches(bare, POSTED, 1, LIKENESS_MIN)
    return f"Did you mean {near[0]}?" if near and near[0] != path else ""
