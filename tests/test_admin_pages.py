"""The page of the admin API names every route there is, with its role, and none that is not."""

import re
from pathlib import Path

from fakes.admin import Setup

PAGE = Path(__file__).parent.parent / "docs" / "admin-api.md"


def served() -> dict[str, str]:
    """Every route of the application, and the role that it needs."""
    paths = Setup().api.openapi()["paths"]
    return {
        f"{method.upper()} {path}": operation.get("x-role", "none")
        for path, operations in paths.items()
        for method, operation in operations.items()
    }


def documented() -> dict[str, str]:
    """Every route of the page's tables, and the role beside it; empty where no role is told."""
    rows = re.findall(r"^\| (`[A-Z]+ /[^|]*) \|(?: (none|read|write) \|)?", PAGE.read_text(), re.MULTILINE)
    return {route: role for names, role in rows for route in re.findall(r"`([A-Z]+ [^`]*)`", names)}


async def test_every_route_is_on_the_page_with_its_role() -> None:
    pages = documented()
    missing = sorted(route for route in served() if route not in pages)
    assert missing == []
    roles = {route: role for route, role in served().items() if pages[route] and pages[route] != role}
    assert roles == {}
