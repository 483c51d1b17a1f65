"""The admin API against its own description: each operation of its OpenAPI, with valid and invalid requests.

A new route is tested here without further code: routes, parameters and bodies come from ``/openapi.json`` of
the process. Examples are drawn from fixed seeds.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import requests
import schemathesis
from fakes.running import Fleet, command
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.schemas import APIOperation

from loadtest.processes import free_port
from router.tenants.keys import digest_of

load_all_checks()

EXAMPLES = 4
"""Examples of each operation, for valid and for invalid requests."""

TOKENS = {"reader": "read", "writer": "write"}

NEVER_ENDS = frozenset(("/events",))
"""Streams; what they send is tested with the console."""

CHECKED = [
    *CHECKS.get_by_names(["not_a_server_error", "status_code_conformance", "content_type_conformance"]),
    *CHECKS.get_by_names(["response_headers_conformance", "response_schema_conformance"]),
]


@contextlib.asynccontextmanager
async def gateway(fleet: Fleet, folder: Path) -> AsyncIterator[str]:
    """A gateway process with two workers, an admin port and tokens; the URL of that port."""
    file = folder / "tokens.yaml"
    file.write_text(
        "tokens:\n"
        + "".join(
            f"  {name}: {{role: {role}, hash: 'sha256:{digest_of(name.encode()).hex()}'}}\n"
            for name, role in TOKENS.items()
        )
    )
    urls = [(await fleet.engine()).url for _ in range(2)]
    port, admin_port = free_port(), free_port()
    arguments = (
        *("serve", "--host", "127.0.0.1", "--port", str(port), "--worker-urls", *urls),
        *("--redis-url", fleet.redis_url, "--namespace", fleet.namespace),
        *("--admin-port", str(admin_port), "--admin-tokens-file", str(file), "--log-level", "warning"),
    )
    async with command(
        *arguments, ready_url=f"http://127.0.0.1:{port}/readiness", environ={"CACHEWAY_ADMIN_PORT": ""}
    ) as process:
        yield f"http://127.0.0.1:{admin_port}"
        assert process.returncode is None, "it outlives whatever it is asked"


def operations(url: str) -> Iterator[APIOperation]:  # type: ignore[type-arg]
    """Everything that the gateway claims to serve."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json", headers=bearer("reader"))
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path not in NEVER_ENDS:
            yield operation


def is_lenient(operation: APIOperation) -> bool:  # type: ignore[type-arg]
    """True if it accepts unknown parameters: probes and clients of older routers send some."""
    return "peers" in operation.tags or operation.definition.raw.get("x-role") is None


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}"}


def exercise(operation: APIOperation, mode: GenerationMode, session: requests.Session) -> None:  # type: ignore[type-arg]
    """Send one operation requests that it should accept, or should reject."""
    checks = list(CHECKED)
    if mode.is_negative and not is_lenient(operation):
        checks += CHECKS.get_by_names(["negative_data_rejection"])

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode, headers=bearer("writer")))
    def ask(case: Case) -> None:
        response = case.call(session=session, timeout=60)
        case.validate_response(response, checks=checks)

    ask()


def failures(url: str) -> list[str]:
    """Return the failures of all operations, a few lines each."""
    found = []
    with requests.Session() as session:
        session.trust_env = False
        for operation in operations(url):
            for mode in GenerationMode:
                try:
                    exercise(operation, mode, session)
                except Unsatisfiable:
                    continue  # the operation takes nothing that could be wrong
                except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - of three libraries
                    found.append(f"{operation.label} ({mode.value}): {error}")
    return found


async def test_every_operation_answers_as_it_says_to_whatever_is_asked(fleet: Fleet, tmp_path: Path) -> None:
    """No 5xx, no undescribed answer, and no invalid request is accepted."""
    async with gateway(fleet, tmp_path) as url:
        assert await asyncio.to_thread(failures, url) == []


async def test_nothing_is_told_or_changed_without_a_token_that_allows_it(
    fleet: Fleet, tmp_path: Path
) -> None:
    """Operations that the document calls open need no token."""
    async with gateway(fleet, tmp_path) as url, httpx.AsyncClient(base_url=url, trust_env=False) as client:
        for method, path, operation in await described(client):
            role = operation.get("x-role")
            bare = await client.request(method, path)
            wrong = await client.request(method, path, headers=bearer("nobody"))
            read = await client.request(method, path, headers=bearer("reader"))
            where = f"{method} {path}"
            if role is None:
                assert "security" not in operation, where
                assert {bare.status_code, wrong.status_code} & {401, 403} == set(), where
            else:
                assert (bare.status_code, wrong.status_code) == (401, 401), where
                assert (read.status_code == 403) is (role == "write"), where
        changes = (await client.get("/audit", headers=bearer("reader"))).json()["changes"]
        assert changes == [], "nobody was let in who changes anything"


async def test_every_path_knows_its_methods(fleet: Fleet, tmp_path: Path) -> None:
    """A path below that of a worker or a ticket may be the name of one that is not there."""
    async with gateway(fleet, tmp_path) as url, httpx.AsyncClient(base_url=url, trust_env=False) as client:
        methods: dict[str, set[str]] = {}
        for method, path, _ in await described(client):
            methods.setdefault(path, set()).add(method)
        for path, known in methods.items():
            for method in {"GET", "POST", "PUT", "PATCH", "DELETE"} - known:
                answer = await client.request(method, path, headers=bearer("writer"), json={})
                code = answer.json()["error"]["code"]
                if code not in ("worker_not_found", "ticket_not_found"):
                    assert (answer.status_code, code) == (405, "method_not_allowed"), f"{method} {path}"
                    assert set(answer.headers["allow"].split(", ")) <= known, f"{method} {path}"


async def described(client: httpx.AsyncClient) -> list[tuple[str, str, dict[str, Any]]]:
    """Return method, path and description of every operation, for missing objects; no streams."""
    document = (await client.get("/openapi.json", headers=bearer("reader"))).json()
    return [
        (method.upper(), re.sub(r"\{[^}]*\}", "nobody", path), operation)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if path not in NEVER_ENDS
    ]
