"""A running vLLM on this machine, started by any process, and its own description."""

from typing import Self

import httpx
from prometheus_client.parser import text_string_to_metric_families

MODEL_NAME = "tiny"
"""Name of all of them in requests."""

TIMEOUT_S = 30.0


class VllmEngine:
    """One engine: its URL, and ZMQ endpoints of its KV events and their replay, empty without events."""

    def __init__(self, url: str, kv_events: str = "", kv_replay: str = "") -> None:
        self.url = url
        self.kv_events = kv_events
        self.kv_replay = kv_replay

    @classmethod
    async def at(cls, url: str) -> Self:
        """Return the engine at a URL with the endpoints that it reports.

        `httpx.HTTPError` if there is none.
        """
        async with _client(url) as client:
            answer = await client.get("/kv_event_sources")
        # A map by data-parallel rank, of its configuration (vllm/config/kv_events.py); 404 without events.
        source = answer.json().get("0", {}) if answer.is_success else {}
        return cls(url, source.get("endpoint") or "", source.get("replay_endpoint") or "")

    async def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples with these labels.

        Its name as in the page, with ``_total`` or ``_sum``.
        """
        async with _client(self.url) as client:
            page = (await client.get("/metrics")).text
        # All of the page would take the parser longer than the engine.
        lines = [line for line in page.splitlines() if line.startswith(name)]
        return sum(
            sample.value
            for family in text_string_to_metric_families("\n".join(lines) + "\n")
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    async def max_model_tokens(self) -> int:
        """Return the longest prompt and answer together."""
        async with _client(self.url) as client:
            models = (await client.get("/v1/models")).json()["data"]
        return int(models[0]["max_model_len"])

    async def forget(self) -> None:
        """Empty its prefix cache, which works only while nothing runs there."""
        async with _client(self.url) as client:
            (await client.post("/reset_prefix_cache")).raise_for_status()


def _client(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, trust_env=False, timeout=TIMEOUT_S)
