"""The admin API's views of decisions, in front of a gateway with fake workers."""

import asyncio

import httpx
from fakes.gateway import EPOCH_S, Bench
from fastapi import FastAPI

from router.admin.decisions_view import add_decisions_view
from router.admin.errors import add_errors
from router.admin.explain import add_explain
from router.admin.shadow_view import add_shadow_view
from router.admin.tree_view import add_tree_view
from router.gateway.step_runner import StepRunner

BODY_BYTES_MAX = 8 << 20


def client_of(bench: Bench) -> httpx.AsyncClient:
    """Ask about a gateway. Its work in steps is done by the loop that runs."""
    bench.gateway.lane = StepRunner(asyncio.get_running_loop().call_soon)
    api = FastAPI()
    add_errors(api, "")
    add_explain(api, bench.gateway, BODY_BYTES_MAX, lambda: EPOCH_S)
    add_decisions_view(api, bench.gateway)
    add_shadow_view(api, bench.gateway)
    add_tree_view(api, bench.gateway)

    return httpx.AsyncClient(
        transport=httpx.ASGITransport(api, raise_app_exceptions=False), base_url="http://localhost"
    )
