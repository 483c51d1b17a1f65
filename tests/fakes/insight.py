"""The admin API's views of decisions, in front of a gateway with fake workers."""

import asyncio

import httpx
from fakes.admin import parts_of
from fakes.gateway import EPOCH_S, Bench
from fastapi import FastAPI

from router.admin.decisions_view import add_decisions_view
from router.admin.errors import add_errors
from router.admin.explain import add_explain
from router.admin.tree_view import add_tree_view
from router.gateway.step_runner import StepRunner


def client_of(bench: Bench) -> httpx.AsyncClient:
    """Ask about a gateway. Its work in steps is done by the loop that runs."""
    bench.gateway.lane = StepRunner(asyncio.get_running_loop().call_soon)
    api, parts = FastAPI(), parts_of(bench, now_unix_s=lambda: EPOCH_S)
    add_errors(api, "")
    add_explain(api, parts)
    add_decisions_view(api, parts)
    add_tree_view(api, parts)

    return httpx.AsyncClient(
        transport=httpx.ASGITransport(api, raise_app_exceptions=False), base_url="http://localhost"
    )
