"""Surfaces of the gateway, without starting it: pages, routes, settings; and Python calls per request.

Texts are cut at their headings, so that a difference has a place.
"""

import asyncio
import os

import uvloop

from loadtest.bench.request import Stage, calls, cpu_us
from loadtest.unchanged.facts import CALLS, Facts, digest_of
from router.app import GatewayProcess
from router.logs import configure_logs
from router.metric_families import metrics_reference
from router.reference import configuration_reference, effective
from router.settings import Settings
from router.sources import load

WARM_UP = 2_000
"""Requests before calls are counted."""

ROUNDS = 20
"""Rounds of which the one with the fewest calls counts: no timer was due in it."""


def facts(*, counts_calls: bool) -> Facts:
    """Hashes of the texts; and, in some seconds, the Python functions that a request calls."""
    found = {
        **_parts("configuration reference", configuration_reference(), "## "),
        **_parts("metrics reference", metrics_reference(), "| `"),
        **_parts("cacheway config", effective(load({}, {}, None)), ""),
        **uvloop.run(_routes()),
    }
    if counts_calls:
        found |= uvloop.run(_calls())
    return found


def _parts(name: str, text: str, heading: str) -> Facts:
    """Hash the parts of a text that begin with a heading, or with a line that is not indented."""
    parts: dict[str, list[str]] = {}
    part = "beginning"
    for line in text.splitlines():
        if line.startswith(heading) if heading else line[:1].isalnum():
            part = line.removeprefix(heading).partition(" ")[0].rstrip(":`")
        parts.setdefault(part, []).append(line)
    return {f"{name}, {part}": digest_of("\n".join(lines)) for part, lines in parts.items()}


async def _routes() -> Facts:
    settings = Settings.model_validate({"admin": {"port": 0}})
    schema = GatewayProcess(settings, redis_url="redis://127.0.0.1:1/0").api.openapi()
    found = {f"openapi, {path}": digest_of(repr(routes)) for path, routes in schema.pop("paths").items()}
    kinds = schema["components"].pop("schemas")
    found |= {f"openapi, schema {name}": digest_of(repr(kind)) for name, kind in kinds.items()}
    found["openapi, all else"] = digest_of(repr(schema))
    return found


async def _calls() -> Facts:
    """Count the Python functions that a small request calls, plain and at two workers."""
    logs = configure_logs("info", os.open(os.devnull, os.O_WRONLY))
    found = {}
    for name, pairs in (("plain", False), ("pairs", True)):
        stage = Stage(pairs=pairs)
        await cpu_us(stage, WARM_UP, stream=False)
        counted = [await calls(stage) for _ in range(ROUNDS)]
        found[f"{CALLS}per request, {name}"] = str(int(min(counted)))
        stage.close()
        await asyncio.sleep(0)
    logs.close()
    return found
